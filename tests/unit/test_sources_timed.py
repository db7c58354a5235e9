"""Timers are told from work, also when lines come late; the writers here are models of those measured for the check."""

from __future__ import annotations

import random

import pytest

from policies.sources.progress import ProgressTrack
from policies.sources.timed import MIN_GAPS, check_timed


def timer(period_s: float, count: int, seed: int, late_share: float = 0.05, drift_s: float = 0.0004) -> list[float]:
    rng = random.Random(seed)
    times, now = [], 1000.0
    for _ in range(count):
        now += period_s + rng.gauss(drift_s, 0.0001)
        late = rng.uniform(0.0, 0.012) if rng.random() < late_share else 0.0
        times.append(now + late)
    return times


def work(step_s: float, jitter: float, count: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    times, now = [], 1000.0
    for _ in range(count):
        now += step_s * rng.lognormvariate(0.0, jitter)
        times.append(now)
    return times


@pytest.mark.parametrize("period_s", [0.1, 0.25, 0.5, 1.0, 2.0, 10.0, 60.0])
def test_a_timer_is_seen_also_with_late_lines(period_s: float) -> None:
    result = check_timed([(when, 1.0) for when in timer(period_s, 200, seed=4)])
    assert result.looks_timed is True
    assert "timer" in result.words


@pytest.mark.parametrize("own_work_s", [0.003, 0.006, 0.009])
@pytest.mark.parametrize("period_s", [1.0, 2.0, 10.0])
def test_a_loop_that_sleeps_and_works_a_little_is_a_timer(period_s: float, own_work_s: float) -> None:
    rng, times, now = random.Random(3), [], 1000.0
    for _ in range(200):
        now += period_s + rng.gauss(0.0004, 0.0001) + own_work_s * rng.lognormvariate(0.0, 0.2)
        times.append(now)
    result = check_timed([(when, 1.0) for when in times])
    assert result.looks_timed is True
    assert f"every {period_s:g} s by a timer" in result.words


def test_a_loop_that_works_for_longer_than_a_hundredth_of_its_sleep_is_let_through() -> None:
    for period_s, own_work_s in ((1.0, 0.015), (0.1, 0.003)):
        times = timer(period_s, 200, seed=14, late_share=0.0, drift_s=own_work_s)
        assert check_timed([(when, 1.0) for when in times]).looks_timed is False


@pytest.mark.parametrize("least_s", [0.2, 1.0, 5.0])
def test_steady_work_is_no_oftener_taken_for_a_timer_than_the_page_allows(least_s: float) -> None:
    rng = random.Random(15)
    taken = allowed = 0
    for _ in range(600):
        step_s = least_s + rng.uniform(0.0, 0.5)
        times = work(step_s, 0.0005, 60, seed=rng.randrange(1 << 30))
        taken += check_timed([(when, 1.0) for when in times]).looks_timed is True
        allowed += abs(step_s - round(step_s / 0.1) * 0.1) <= 0.01 * step_s
    assert 0 < taken < allowed


def test_late_lines_spoil_the_coefficient_of_variation_but_not_the_spread() -> None:
    result = check_timed([(when, 1.0) for when in timer(0.1, 400, seed=5, late_share=0.1)])
    assert result.cv is not None
    assert result.cv > 0.005
    assert result.looks_timed is True


@pytest.mark.parametrize("jitter", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("step_s", [0.08, 0.1, 0.5, 1.0, 10.0])
def test_work_is_not_taken_for_a_timer(step_s: float, jitter: float) -> None:
    assert check_timed([(when, 1.0) for when in work(step_s, jitter, 200, seed=6)]).looks_timed is False


def test_steady_work_beside_a_round_step_is_not_taken_for_a_timer() -> None:
    assert check_timed([(when, 1.0) for when in work(0.137, 0.001, 200, seed=7)]).looks_timed is False
    # within 1 % of a tenth, as every step of 10 s is, and yet no timer
    assert check_timed([(when, 1.0) for when in work(13.04, 0.001, 200, seed=7)]).looks_timed is False


def test_too_few_gaps_decide_nothing() -> None:
    assert check_timed([(when, 1.0) for when in timer(1.0, MIN_GAPS, seed=1)]).looks_timed is None
    assert check_timed([(when, 1.0) for when in timer(1.0, MIN_GAPS + 1, seed=1)]).looks_timed is True
    assert check_timed([]).looks_timed is None


def test_a_counter_printed_on_a_timer_is_a_good_source() -> None:
    rng = random.Random(8)
    track, value = ProgressTrack(), 0.0
    for when in timer(1.0, 100, seed=8):
        value += rng.randint(90, 110)
        track.add_counter(when, [value])
    result = check_timed(track.recent_reads())
    assert result.looks_timed is False
    assert "varies with the work" in result.words


@pytest.mark.parametrize("step", [1.0, 100.0])
def test_a_counter_that_rises_by_the_same_on_a_timer_is_not(step: float) -> None:
    track = ProgressTrack()
    for index, when in enumerate(timer(1.0, 100, seed=9)):
        track.add_counter(when, [index * step])
    assert check_timed(track.recent_reads()).looks_timed is True


def test_a_counter_of_milliseconds_passed_is_a_timer() -> None:
    rng, track, value = random.Random(10), ProgressTrack(), 0.0
    for when in timer(1.0, 100, seed=10):
        value += 1000 + rng.randint(-2, 2)
        track.add_counter(when, [value])
    assert check_timed(track.recent_reads()).looks_timed is True


def test_a_counter_whose_increments_are_equal_while_the_gaps_are_not_is_paced_by_work() -> None:
    track = ProgressTrack()
    for index, when in enumerate(work(1.0, 0.05, 100, seed=11)):
        track.add_counter(when, [index * 10.0])
    assert check_timed(track.recent_reads()).looks_timed is False


def test_several_lines_a_beat_are_a_timer_too() -> None:
    track = ProgressTrack()
    for when in timer(1.0, 60, seed=12):
        track.add_events(when, 3)
    assert check_timed(track.recent_reads()).looks_timed is True


def test_stamps_rounded_to_a_second_are_no_timer() -> None:
    track = ProgressTrack()
    for when in work(1.04, 0.02, 100, seed=13):
        track.add_stamped(when, 1e9 + when, [1e9 + float(round(when))])
    assert check_timed(track.recent_reads()).looks_timed is False
