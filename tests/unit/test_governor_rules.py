"""The governor beside several rules, and what it remembers while it is elsewhere, against the literals of governor.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.governor import Baseline, Inputs, baseline_window_s, restarted, short_window_s
from tests.unit.governor_ticks import CLEAN, TRAINER, Node, at_rate

RENDERER = replace(TRAINER, rule="renderer")
BOTH = replace(CLEAN, holding=(TRAINER, RENDERER))


def readings(trainer: dict[str, Any] | None = None, renderer: dict[str, Any] | None = None) -> Inputs:
    return replace(CLEAN, holding=(replace(TRAINER, **(trainer or {})), replace(RENDERER, **(renderer or {}))))


def started(inputs: Inputs = BOTH, *, budget: float = 0.2) -> Node:
    """A node whose budget has just started beside both rules, at ``budget``."""
    node = Node()
    while node.state.name != "running":
        node.tick(inputs)
    node.state = replace(node.state, budget=budget)
    return node


def baseline_of(node: Node, rule: str) -> Baseline:
    found = node.state.baseline_of(rule)
    assert found is not None
    return found


SLOW = {"short_rate": 9.7}


@pytest.mark.parametrize("worse", [readings(trainer=SLOW), readings(renderer=SLOW)], ids=["the first", "the last"])
def test_harm_of_any_rule_on_one_tick_keeps_the_minute_from_growing(worse: Inputs) -> None:
    node = started()
    node.tick(worse)
    assert node.run(BOTH, 58.0)[-1] == 0.2
    assert node.run(BOTH, 60.0)[-1] == 0.25


@pytest.mark.parametrize("low", ["trainer", "renderer"])
def test_a_low_baseline_of_any_rule_stops_growth(low: str) -> None:
    node = started(readings(**{low: {"certified_off_rate": 12.0}}))
    assert node.run(BOTH, 300.0)[-1] == 0.2


def test_the_slowest_program_decides_how_long_device_work_is_held() -> None:
    node = Node()
    inputs = readings(renderer={"median_step_s": 30.0})
    node.tick(inputs)
    began_s = node.now_s
    while node.state.name == "baseline":
        node.tick(inputs)
    assert node.now_s - began_s == 10.0 + 5 * 30.0


def test_the_worst_rule_is_the_one_that_is_named() -> None:
    for inputs in (
        readings(trainer={"short_rate": 8.5}, renderer={"short_rate": 8.9}),
        readings(trainer={"short_rate": 8.9}, renderer={"short_rate": 8.5}),
    ):
        node = started()
        node.tick(inputs)
        told = node.last("GPU_DUTY_TAKE_BACK")
        assert (told["rate"], told["pressure"]) == (8.5, 3.0)


def test_one_old_baseline_of_several_is_due() -> None:
    """The renderer lets go, the trainer is measured anew; when the renderer is back its own baseline is the older one."""
    node = started()
    node.run(CLEAN, 1802.0 + 60.0)
    assert node.state.name == "running"
    assert baseline_of(node, "renderer").at_s < baseline_of(node, "trainer").at_s
    assert node.tick(BOTH).budget == 0.0
    assert node.state.name == "baseline"


def test_a_rule_that_let_go_for_a_while_keeps_its_floor_and_nothing_is_said_of_it() -> None:
    node = started(readings(renderer={"certified_off_rate": 12.0}))
    told = len(node.entries)
    node.run(CLEAN, 1802.0 + 60.0)
    assert not [entry for entry in node.entries[told:] if entry.data.get("rule") == "renderer"]
    slower = readings(renderer={"baseline_rate": 8.0})
    node.run(slower, 400.0)
    assert (baseline_of(node, "renderer").rate, baseline_of(node, "renderer").measured) == (9.5, 8.0)


def test_the_floor_does_not_hide_that_the_program_fell_under_the_certificates_rate() -> None:
    node = started(CLEAN)
    node.run(CLEAN, 1800.0)
    node.run(replace(CLEAN, holding=(replace(TRAINER, baseline_rate=8.0),)), 300.0)
    assert baseline_of(node, "trainer") == Baseline("trainer", 9.5, 8.0, node.now_s, low=True)


@pytest.mark.parametrize(
    "away", [Inputs(units=("a",)), replace(CLEAN, run_measures=True, run_duty=1.0)], ids=["free", "a run"]
)
def test_work_that_ran_without_the_governor_may_be_felt_as_well(away: Inputs) -> None:
    """Five minutes from the end of that work, and not of the budget before it, a fallen baseline is believed."""
    node = started(CLEAN)
    node.run(away, 1000.0)
    slower = replace(CLEAN, holding=(replace(TRAINER, baseline_rate=9.7),))
    node.tick(slower)
    began_s = node.now_s
    while node.state.name != "running":
        node.tick(slower)
    assert node.now_s - began_s == 300.0


def test_work_that_ran_while_there_was_no_agent_may_be_felt_as_well() -> None:
    node = started(CLEAN)
    again = Node(state=restarted(node.state), now_s=node.now_s + 500.0)
    slower = replace(CLEAN, holding=(replace(TRAINER, baseline_rate=9.7),))
    while again.state.name != "running":
        again.tick(slower)
    assert again.now_s - (node.now_s + 500.0) >= 300.0


@pytest.mark.parametrize("state", ["baseline", "taken_back", "unreadable"])
def test_a_certificate_that_lapses_closes_on_that_tick_whatever_the_state(state: str) -> None:
    node = Node()
    if state == "baseline":
        node.tick()
    else:
        node = started(CLEAN)
        node.tick(at_rate(0.0 if state == "taken_back" else None))
    assert node.state.name == state
    node.tick(replace(CLEAN, holding=(replace(TRAINER, certified_duty=None),)))
    assert (node.state.name, node.codes()[-1]) == ("closed", "GPU_NOT_CERTIFIED")


@pytest.mark.parametrize(
    ("median_step_s", "short_s", "baseline_s"), [(None, 20.0, 50.0), (0.1, 20.0, 50.0), (4.1, 20.5, 50.0), (11.0, 55.0, 55.0)]
)  # fmt: skip
def test_windows_hold_five_median_steps(median_step_s: float | None, short_s: float, baseline_s: float) -> None:
    assert short_window_s(median_step_s) == pytest.approx(short_s)
    assert baseline_window_s(median_step_s) == pytest.approx(baseline_s)
