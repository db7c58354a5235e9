"""The simulated node: the model does what it says, and the governor does what it should beside it."""

from __future__ import annotations

import random
import statistics

import pytest

from policies.simulation import (
    Phase,
    Program,
    Setup,
    best_constant_duty,
    linear,
    measure,
    simulate,
    threshold,
    time_to_zero_s,
)
from policies.simulation.program import Speed

CEILING = 0.35
TARGET = 0.05


def rng(seed: int = 1) -> random.Random:
    return random.Random(seed)


def test_the_same_seed_gives_the_same_node() -> None:
    setup = Setup(Program(linear(0.1), noise_pct=2.0), fleet=("obeys", "vanishes"))
    assert list(simulate(setup, 0.5, rng())) == list(simulate(setup, 0.5, rng()))
    assert list(simulate(setup, 0.5, rng())) != list(simulate(setup, 0.5, rng(2)))


def test_noise_is_the_standard_deviation_of_a_minute() -> None:
    speed = Speed(Program(linear(0.0), noise_pct=2.0), rng(), 2.0)
    made = [speed.advance(0.0, 2.0 * tick)[0] for tick in range(30 * 2000)]
    minutes = [sum(made[start : start + 30]) / 60.0 for start in range(0, len(made), 30)]
    assert statistics.fmean(minutes) == pytest.approx(10.0, rel=0.005)
    assert statistics.stdev(minutes) / 10.0 == pytest.approx(0.02, rel=0.1)


def test_harm_is_felt_after_the_delay() -> None:
    speed = Speed(Program(linear(1.0), noise_pct=0.0, delay_s=60.0), rng(), 2.0)
    harms = [speed.advance(0.3, 2.0 * tick)[1] for tick in range(40)]
    assert harms == [0.0] * 30 + [0.3] * 10


def test_stalls_phases_drift_and_steps_are_the_programs_own() -> None:
    stalls = Program(linear(0.0), stall_every_s=600.0, stall_s=30.0)
    assert [stalls.own_speed(at_s) for at_s in (10.0, 30.0, 610.0)] == [0.0, 1.0, 0.0]
    phases = Program(linear(0.1), phases=(Phase(100.0), Phase(50.0, speed=0.8, sensitivity=3.0)))
    assert [phases.own_speed(at_s) for at_s in (99.0, 101.0, 151.0)] == [1.0, 0.8, 1.0]
    assert phases.harm_at(0.2, 120.0) == pytest.approx(0.06)
    drifts = Program(linear(0.0), drift_pct_h=2.0, drift_turn_h=6.0)
    speeds = [drifts.own_speed(hour * 3600.0) for hour in range(13)]
    assert max(speeds) - min(speeds) == pytest.approx(0.12)
    assert speeds[0] == pytest.approx(speeds[12])
    stepped = Program(linear(0.1), sensitivity_step=(50.0, 4.0))
    assert [stepped.harm_at(0.5, at_s) for at_s in (49.0, 50.0)] == pytest.approx([0.05, 0.2])


def test_the_best_constant_duty_is_the_largest_that_keeps_the_target() -> None:
    assert best_constant_duty(Program(linear(0.2)), TARGET, 1.0, 1.0) == pytest.approx(0.25)
    assert best_constant_duty(Program(linear(0.01)), TARGET, CEILING, 1.0) == CEILING
    assert best_constant_duty(Program(threshold(0.2, 1.0)), TARGET, 1.0, 1.0) == pytest.approx(0.25)
    phased = Program(linear(0.2), phases=(Phase(10.0), Phase(10.0, sensitivity=2.0)))
    assert best_constant_duty(phased, TARGET, 1.0, 1.0) == pytest.approx(0.125)


def test_beside_a_program_that_the_certificate_holds_for_nearly_all_duty_is_used() -> None:
    got = measure(Setup(Program(linear(0.01 / CEILING), noise_pct=0.5)), 3.0, rng())
    assert got.harm_above_target_pct == 0.0
    assert got.harvest_pct is not None
    # one minute in thirty is a baseline's
    assert got.harvest_pct >= 90.0


@pytest.mark.parametrize("noise_pct", [0.5, 1.0])
def test_beside_a_program_that_is_hurt_ten_times_as_much_harm_stays_rare(noise_pct: float) -> None:
    got = measure(Setup(Program(linear(0.10 / CEILING), noise_pct=noise_pct)), 4.0, rng())
    assert got.harm_above_target_pct < 5.0
    assert got.mean_harm_pct < 100.0 * TARGET
    assert got.mean_duty > 0.0


@pytest.mark.parametrize("gain", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_case_092_a_bounded_limit_cycle_over_gains_felt_one_sample_late(gain: float) -> None:
    """Gain 1 is harm at the target for a quarter of the ceiling; each minute's harm is that of the minute before."""
    program = Program(linear(gain * TARGET / (CEILING / 4.0)), noise_pct=0.0, delay_s=60.0)
    settled = list(simulate(Setup(program), 6.0, rng()))[3 * 1800 :]
    duty = [tick.used for tick in settled]
    best = best_constant_duty(program, TARGET, CEILING, 1.0)
    assert statistics.fmean(tick.harm for tick in settled) <= TARGET
    assert 0.25 * best <= statistics.fmean(duty) <= best
    # no swing from nothing to everything: one step of growth beyond a level that a slow minute did not yet show
    assert max(duty) <= best + 2 * 0.05 + 1e-9


@pytest.mark.parametrize(("harm", "limit_s"), [(0.12, 30.0), (0.3, 10.0), (0.6, 10.0)])
def test_a_sudden_harm_ends_the_budget_within_the_short_window(harm: float, limit_s: float) -> None:
    program = Program(linear(0.01 / CEILING), noise_pct=0.0, sensitivity_step=(500.0, harm / 0.01))
    took_s = time_to_zero_s(Setup(program), 500.0, rng())
    assert took_s is not None
    assert took_s <= limit_s


def test_a_source_that_goes_blind_ends_it_on_that_tick() -> None:
    setup = Setup(Program(linear(0.0)), blind=((500.0, 900.0),))
    assert time_to_zero_s(setup, 500.0, rng()) == 0.0
    ticks = {tick.now_s: tick for tick in simulate(setup, 0.3, rng())}
    assert {ticks[at_s].budget for at_s in (500.0, 700.0, 898.0, 958.0)} == {0.0}
    assert ticks[962.0].budget == CEILING


def test_harm_that_is_felt_late_does_not_become_the_new_normal() -> None:
    """Felt for a minute after it stopped, harm would be in every baseline of a minute's hold."""
    got = measure(Setup(Program(linear(0.10 / CEILING), noise_pct=0.0, delay_s=60.0)), 5.0, rng())
    assert got.mean_harm_pct <= 100.0 * TARGET


def test_a_unit_that_lies_is_stopped_and_cannot_have_the_device() -> None:
    setup = Setup(Program(linear(0.01 / CEILING), noise_pct=0.0), fleet=("obeys", "lies"))
    ticks = list(simulate(setup, 4.0, rng()))
    actions = [entry.data["action"] for tick in ticks for entry in tick.overruns if entry.code == "GPU_DUTY_EXCEEDED"]
    assert actions.count("stopped") >= 2
    over = sum(tick.used > CEILING + 0.1 for tick in ticks) / len(ticks)
    assert over < 0.05
    honest = [tick.used for tick in ticks if 0.0 < tick.used <= CEILING]
    assert statistics.fmean(honest) > 0.3, "the honest unit gets the budget"


def test_a_unit_that_cannot_be_read_gets_nothing() -> None:
    setup = Setup(Program(linear(0.0), noise_pct=0.0), fleet=("unreadable",))
    ticks = list(simulate(setup, 0.5, rng()))
    assert sum(tick.used > 0.0 for tick in ticks) <= 1


def test_late_ticks_alone_take_nothing_away() -> None:
    plain = Program(linear(0.01 / CEILING), noise_pct=0.0)
    got = measure(Setup(plain, late_share=0.1), 4.0, rng())
    assert got.harvest_pct is not None
    assert got.harvest_pct >= 90.0
    assert measure(Setup(plain, late_share=0.9), 4.0, rng()).harvest_pct == 0.0, "half the ticks late: never measured"
