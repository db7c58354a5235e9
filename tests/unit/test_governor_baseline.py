"""The governor's baseline: how it is measured, when anew, and what of it is believed, anchored to the literals of governor.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.governor import INITIAL
from tests.unit.governor_ticks import CLEAN, TRAINER, Node, at_rate


def test_baseline_holds_for_a_minute_then_starts_at_the_ceiling() -> None:
    node = Node()
    node.tick()
    began = node.now_s
    assert (node.state.name, node.out.budget, node.out.shares) == ("baseline", 0.0, {"a": 0.0, "b": 0.0})
    while node.state.name == "baseline":
        node.tick()
    assert node.now_s - began == 60.0
    assert node.out.budget == 0.35
    assert node.out.shares == {"a": 0.175, "b": 0.175}
    assert node.codes() == ["GPU_DUTY_BASELINE", "GPU_DUTY_START"]
    assert node.last("GPU_DUTY_START")["baselines"] == {"trainer": 10.0}


def test_a_slow_program_is_measured_over_five_median_steps() -> None:
    slow = replace(CLEAN, holding=(replace(TRAINER, median_step_s=30.0),))
    node = Node()
    node.tick(slow)
    began = node.now_s
    while node.state.name == "baseline":
        node.tick(slow)
    assert node.now_s - began == 10.0 + 5 * 30.0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"baseline_rate": 0.0}, "no progress"),
        ({"baseline_rate": None}, "does not read"),
        ({"readable": False}, "does not read"),
        ({"median_step_s": None}, "too few steps"),
    ],
)
def test_a_baseline_that_is_none_is_measured_again(change: dict[str, Any], why: str) -> None:
    bad = replace(CLEAN, holding=(replace(TRAINER, **change),))
    node = Node()
    budgets = node.run(bad, 400.0)
    assert set(budgets) == {0.0}
    assert node.state.name == "baseline"
    assert node.codes().count("GPU_DUTY_BASELINE") == 2, "the hold and, once, why it goes on"
    assert why in node.last("GPU_DUTY_BASELINE")["cause"]
    node.run(CLEAN, 62.0)
    assert node.state.name == "running"


def test_a_baseline_with_late_ticks_is_measured_again() -> None:
    node = Node()
    node.tick()
    node.run(CLEAN, 120.0, every_s=3.0)
    assert (node.state.name, node.out.budget) == ("baseline", 0.0)
    assert "late" in node.last("GPU_DUTY_BASELINE")["cause"]


def test_every_thirty_minutes_it_measures_again_and_goes_on_at_its_level(running: Node) -> None:
    running.state = replace(running.state, budget=0.2)
    still = at_rate(10.0, minute=9.6)
    started_s = running.now_s
    while running.tick(still).budget != 0.0:
        pass
    assert running.now_s - started_s == 1800.0
    assert running.state.name == "baseline"
    running.run(still, 60.0)
    assert running.out.budget == 0.2


def test_the_minute_that_ends_with_the_baseline_is_judged(running: Node) -> None:
    running.run(at_rate(10.0, minute=9.6), 1798.0)
    assert running.state.name == "running"
    running.tick(at_rate(10.0, minute=9.0))
    assert running.state.name == "baseline"
    running.run(CLEAN, 60.0)
    assert running.out.budget == 0.175


def test_a_baseline_falls_by_a_twentieth_at_most(running: Node) -> None:
    slower = replace(CLEAN, holding=(replace(TRAINER, baseline_rate=8.0, certified_off_rate=8.0),))
    running.run(CLEAN, 1800.0)
    running.run(slower, 300.0)
    baseline = running.state.baseline_of("trainer")
    assert baseline is not None
    assert (baseline.rate, baseline.measured) == (9.5, 8.0)


def test_a_fallen_baseline_is_waited_for_while_the_work_may_still_be_felt(running: Node) -> None:
    """A program that feels the work for over a minute after it stopped must not be measured as it is with the work."""
    harmed = replace(CLEAN, holding=(replace(TRAINER, baseline_rate=9.75),))
    running.run(harmed, 1800.0)
    assert running.state.name == "baseline"
    assert set(running.run(harmed, 120.0)) == {0.0}
    assert "may still feel" in running.last("GPU_DUTY_BASELINE")["cause"]
    assert running.run(CLEAN, 60.0)[-1] == 0.35
    baseline = running.state.baseline_of("trainer")
    assert baseline is not None
    assert baseline.measured == 10.0


def test_a_program_that_stays_slower_is_believed_after_five_minutes_without_work(running: Node) -> None:
    slower = replace(CLEAN, holding=(replace(TRAINER, baseline_rate=9.7),))
    running.run(slower, 1800.0)
    began_s = running.now_s
    while running.tick(slower).budget == 0.0:
        pass
    assert running.now_s - began_s == 300.0
    running.tick(at_rate(0.0))
    taken_s = running.now_s
    even_slower = replace(CLEAN, holding=(replace(TRAINER, baseline_rate=9.3),))
    while running.tick(even_slower).budget == 0.0:
        pass
    assert running.now_s - taken_s == 360.0, "five minutes of a take-back are such minutes too"


@pytest.mark.parametrize(("off_rate", "grows"), [(11.0, True), (11.2, False), (None, False)])
def test_a_baseline_far_under_the_certificate_stops_growth(off_rate: float | None, grows: bool) -> None:
    judged = replace(CLEAN, holding=(replace(TRAINER, certified_off_rate=off_rate),))
    node = Node(state=replace(INITIAL, resume=0.1))
    node.run(judged, 62.0)
    node.run(judged, 180.0)
    assert node.out.budget == pytest.approx(0.25 if grows else 0.1)
    assert any("OFF rate" in entry.data.get("cause", "") for entry in node.entries) is not grows


def test_growth_comes_back_with_a_baseline_that_is_not_low() -> None:
    low = replace(CLEAN, holding=(replace(TRAINER, certified_off_rate=12.0),))
    node = Node(state=replace(INITIAL, resume=0.1))
    node.run(low, 62.0 + 1800.0)
    assert node.state.name == "baseline"
    node.run(CLEAN, 60.0 + 60.0)
    assert node.out.budget == pytest.approx(0.15)


def test_a_rule_that_begins_to_hold_is_measured_first(running: Node) -> None:
    both = replace(CLEAN, holding=(TRAINER, replace(TRAINER, rule="renderer")))
    assert running.tick(both).budget == 0.0
    assert running.state.name == "baseline"
    running.run(both, 60.0)
    assert running.tick(CLEAN).budget == 0.35, "one that lets go ends nothing"
    assert running.tick(both).budget == 0.35, "its baseline is still young"
