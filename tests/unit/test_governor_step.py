"""The governor, tick by tick: its states, growth, halving and ceiling, anchored to the literals of governor.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.codes import CODES
from policies.governor import INITIAL, Inputs, step
from tests.unit.governor_ticks import CLEAN, TRAINER, Node, at_rate


def test_free_sets_no_duty() -> None:
    node = Node()
    assert node.tick(Inputs(units=("a",))).budget is None
    assert node.out.shares == {}
    assert (node.state.name, node.out.decides, node.entries) == ("free", "nobody", [])
    assert node.tick(replace(CLEAN, gpu_jobs="always")).budget is None
    assert node.state.name == "free"


def test_a_rule_without_certificate_closes_and_says_which() -> None:
    node = Node()
    other = replace(TRAINER, rule="renderer", certified_duty=None)
    assert node.tick(replace(CLEAN, holding=(TRAINER, other))).budget == 0.0
    assert node.state.name == "closed"
    assert node.codes() == ["GPU_NOT_CERTIFIED"]
    assert node.last("GPU_NOT_CERTIFIED")["rules"] == ["renderer"]
    node.run(replace(CLEAN, holding=(TRAINER, other)), 60.0)
    assert node.codes() == ["GPU_NOT_CERTIFIED"], "journaled once"
    node.tick(CLEAN)
    assert node.state.name == "baseline"


@pytest.mark.parametrize("gpu_jobs", ["never", "when_no_gpu_protected"])
def test_other_choices_close_without_asking_for_a_certificate(gpu_jobs: Any) -> None:
    node = Node()
    assert node.tick(replace(CLEAN, gpu_jobs=gpu_jobs)).budget == 0.0
    assert (node.state.name, node.codes()) == ("closed", [])


def test_never_holds_even_where_no_rule_does() -> None:
    assert Node().tick(Inputs(gpu_jobs="never")).budget == 0.0


def test_a_clean_minute_grows_by_a_twentieth_up_to_the_ceiling(running: Node) -> None:
    running.state = replace(running.state, budget=0.27)
    running.run(CLEAN, 58.0)
    assert running.out.budget == 0.27
    running.tick()
    assert running.out.budget == 0.32
    running.run(CLEAN, 60.0)
    assert running.out.budget == 0.35
    running.run(CLEAN, 120.0)
    assert running.out.budget == 0.35
    assert running.codes().count("GPU_DUTY_GROW") == 2
    assert running.last("GPU_DUTY_GROW")["budget"] == 0.35


@pytest.mark.parametrize(
    ("minute_rate", "budget"),
    [(9.5, 0.1), (9.4, 0.1), (9.51, 0.2), (9.75, 0.2), (9.76, 0.25), (10.0, 0.25), (11.0, 0.25)],
)
def test_the_minute_decides_on_its_own_rate(running: Node, minute_rate: float, budget: float) -> None:
    running.state = replace(running.state, budget=0.2)
    running.run(at_rate(10.0, minute=minute_rate), 60.0)
    assert running.out.budget == pytest.approx(budget)


def test_an_unknown_minute_is_no_clean_minute(running: Node) -> None:
    blind = replace(CLEAN, holding=(replace(TRAINER, minute_rate=None),))
    running.run(blind, 60.0)
    assert running.out.budget == pytest.approx(0.175)


def test_halving_ends_at_zero_and_growth_starts_there(running: Node) -> None:
    harm = at_rate(9.45)
    seen = [running.run(harm, 60.0)[-1] for _ in range(5)]
    assert seen == pytest.approx([0.175, 0.0875, 0.04375, 0.0, 0.0])
    assert running.codes().count("GPU_DUTY_HALVE") == 4, "nothing fell in the fifth minute"
    assert running.run(CLEAN, 58.0)[-1] == 0.0, "no growth within a minute of harm"
    assert running.tick().budget == 0.05


def test_a_falling_ceiling_clamps_at_once(running: Node) -> None:
    lower = replace(CLEAN, holding=(replace(TRAINER, certified_duty=0.2),))
    assert running.tick(lower).budget == 0.2
    assert running.last("GPU_DUTY_CLAMP") == {"from": "running", "budget": 0.2, "before": 0.35, "ceiling": 0.2}
    tiny = replace(CLEAN, holding=(replace(TRAINER, certified_duty=0.02),))
    assert running.tick(tiny).budget == 0.0, "a budget under 0.025 is 0"


def test_a_lapsed_certificate_clamps_and_closes(running: Node) -> None:
    none = replace(CLEAN, holding=(replace(TRAINER, certified_duty=None),))
    before = len(running.entries)
    assert running.tick(none).budget == 0.0
    assert [entry.code for entry in running.entries[before:]] == ["GPU_DUTY_CLAMP", "GPU_NOT_CERTIFIED"]
    assert running.state.name == "closed"


def test_the_rule_lets_go(running: Node) -> None:
    assert running.tick(Inputs(units=("a",))).budget is None
    assert running.state.name == "free"


def test_a_harness_run_decides_while_it_measures(running: Node) -> None:
    assert running.tick(replace(CLEAN, run_measures=True, run_duty=0.8)).budget == 0.8
    assert (running.state.name, running.out.decides, running.out.shares) == ("stood_down", "run", {})
    assert running.tick(replace(CLEAN, run_measures=True, run_duty=0.0)).budget == 0.0
    uncertified = replace(CLEAN, holding=(replace(TRAINER, certified_duty=None),), run_measures=True, run_duty=0.5)
    assert running.tick(uncertified).budget == 0.5, "a certificate is earned without one"
    assert running.state.name == "stood_down"
    running.tick()
    assert running.state.name == "baseline"


@pytest.mark.parametrize(
    ("inputs", "after"),
    [(Inputs(), "free"), (replace(CLEAN, holding=(replace(TRAINER, certified_duty=None),)), "closed")],
)
def test_the_end_of_a_run_leads_where_the_rules_say(running: Node, inputs: Inputs, after: str) -> None:
    running.tick(replace(CLEAN, run_measures=True))
    running.tick(inputs)
    assert running.state.name == after


def test_several_rules_smallest_ceiling_largest_pressure() -> None:
    renderer = replace(TRAINER, rule="renderer", certified_duty=0.3, max_slowdown=0.02)
    both = replace(CLEAN, holding=(TRAINER, renderer))
    node = Node()
    node.run(both, 62.0)
    assert node.out.budget == 0.3
    # 2 % harm: 0.4 of the trainer's target, all of the renderer's
    node.run(replace(CLEAN, holding=(replace(TRAINER, minute_rate=9.8), replace(renderer, minute_rate=9.8))), 60.0)
    assert node.out.budget == 0.15
    assert node.last("GPU_DUTY_HALVE")["rule"] == "renderer"


def test_a_minute_with_late_ticks_decides_nothing(running: Node) -> None:
    running.state = replace(running.state, budget=0.2)
    assert set(running.run(CLEAN, 300.0, every_s=3.0)) == {0.2}
    assert set(running.run(at_rate(10.0, minute=9.0), 60.0, every_s=3.0)) == {0.2}
    assert running.run(CLEAN, 60.0)[-1] == 0.25, "ticks in time: it grows again"


def test_case_118_a_suspend_is_no_clean_minute(running: Node) -> None:
    running.state = replace(running.state, budget=0.2)
    running.run(CLEAN, 50.0)
    running.tick(CLEAN, after_s=600.0)
    assert running.out.budget == 0.2
    running.tick(CLEAN, after_s=7200.0)
    assert (running.state.name, running.out.budget) == ("baseline", 0.0), "the baseline is old after a long sleep"


def test_extra_calls_do_not_stand_in_for_ticks(running: Node) -> None:
    running.state = replace(running.state, budget=0.2)
    for _ in range(100):
        running.tick(CLEAN, after_s=0.01)
    running.tick(CLEAN, after_s=60.0)
    assert running.out.budget == 0.2


def test_a_clock_that_goes_back_is_no_time_passed(running: Node) -> None:
    running.state = replace(running.state, budget=0.2)
    before = running.state
    state, out = step(before, CLEAN, running.now_s - 500.0)
    assert out.budget == 0.2
    assert state.last_tick_s == before.last_tick_s


@pytest.mark.parametrize(("short_rate", "budget"), [(9.4, 0.2), (9.75, 0.2), (9.76, 0.25)])
def test_harm_on_one_tick_keeps_the_minute_from_growing(running: Node, short_rate: float, budget: float) -> None:
    running.state = replace(running.state, budget=0.2)
    running.run(CLEAN, 30.0)
    running.tick(at_rate(short_rate, minute=10.0))
    running.run(CLEAN, 28.0)
    assert running.out.budget == budget
    running.run(CLEAN, 60.0)
    assert running.out.budget == pytest.approx(budget + 0.05)


def test_every_code_is_in_the_table(running: Node) -> None:
    running.run(at_rate(10.0, minute=9.0), 60.0)
    running.tick(at_rate(0.0))
    assert set(running.codes()) <= set(CODES)


@pytest.mark.parametrize(
    "bad", [{"short_rate": -1.0}, {"minute_rate": float("nan")}, {"max_slowdown": 0.0}, {"certified_duty": 1.2}]
)
def test_impossible_readings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        replace(TRAINER, **bad)


def test_counting_a_tick_changes_nothing_else(running: Node) -> None:
    assert running.state.at_tick(1.0, 2, 3.0) == replace(running.state, last_tick_s=1.0, ticks=2, barred_until_s=3.0)
    other = replace(
        INITIAL, name="closed", since_s=4.0, budget=0.1, resume=0.2, stretch_s=5.0, ended_s=7.0, harm_s=6.0, again="x"
    )
    assert other.at_tick(1.0, 2, 3.0) == replace(other, last_tick_s=1.0, ticks=2, barred_until_s=3.0)


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in name"):
        Inputs(holding=(TRAINER, TRAINER))


def test_of_several_rules_an_unknown_minute_is_the_worst() -> None:
    renderer = replace(TRAINER, rule="renderer")
    node = Node(state=replace(INITIAL, resume=0.2))
    node.run(replace(CLEAN, holding=(TRAINER, renderer)), 62.0)
    node.run(replace(CLEAN, holding=(replace(TRAINER, minute_rate=None), renderer)), 60.0)
    assert node.out.budget == 0.1
    assert (node.last("GPU_DUTY_HALVE")["rule"], node.last("GPU_DUTY_HALVE")["pressure"]) == ("trainer", None)
