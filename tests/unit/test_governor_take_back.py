"""The governor takes its budget back at once, and when it may have one again, anchored to the literals of governor.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.governor import Inputs, restarted
from tests.unit.governor_ticks import CLEAN, TRAINER, Node, at_rate


@pytest.mark.parametrize(
    ("inputs", "cause"),
    [
        (at_rate(8.99), "harm"),
        (at_rate(4.99), "collapse"),
        (at_rate(0.0), "collapse"),
        (replace(CLEAN, memory_hard=True), "memory"),
    ],
)
def test_take_back_is_at_once_for_five_minutes_then_half(running: Node, inputs: Inputs, cause: str) -> None:
    assert running.tick(inputs).budget == 0.0
    taken_s = running.now_s
    assert running.state.name == "taken_back"
    assert running.last("GPU_DUTY_TAKE_BACK")["cause"] == cause
    while running.tick().budget == 0.0:
        pass
    assert running.now_s - taken_s == 360.0, "300 s, then a baseline"
    assert running.out.budget == 0.175


def test_twice_the_target_is_not_over_it(running: Node) -> None:
    assert running.tick(at_rate(9.0)).budget == 0.35
    assert running.state.name == "running"


def test_a_collapse_counts_whatever_the_target(running: Node) -> None:
    lenient = replace(TRAINER, max_slowdown=0.9)
    assert running.tick(at_rate(5.0, base=lenient)).budget == 0.35
    assert running.tick(at_rate(4.9, base=lenient)).budget == 0.0


def test_after_a_take_back_at_least_a_twentieth_at_most_the_ceiling(running: Node) -> None:
    running.state = replace(running.state, budget=0.06)
    running.tick(at_rate(0.0))
    running.run(CLEAN, 362.0)
    assert running.out.budget == 0.05
    low = replace(CLEAN, holding=(replace(TRAINER, certified_duty=0.03),))
    running.tick(at_rate(0.0))
    while running.tick(low).budget == 0.0:
        pass
    assert running.out.budget == 0.03, "from its first tick on"


def test_memory_that_stays_hard_keeps_the_budget_away(running: Node) -> None:
    hard = replace(CLEAN, memory_hard=True)
    assert set(running.run(hard, 900.0)) == {0.0}
    last_hard_s = running.now_s
    while running.tick().budget == 0.0:
        pass
    assert running.now_s - last_hard_s >= 300.0


def test_memory_during_a_baseline_bars_the_start_for_five_minutes() -> None:
    node = Node()
    node.tick()
    node.tick(replace(CLEAN, memory_hard=True))
    hard_s = node.now_s
    while node.tick().budget == 0.0:
        pass
    assert node.now_s - hard_s == 300.0
    assert node.out.budget == 0.35, "nothing ran, so nothing is halved"


@pytest.mark.parametrize("away", [Inputs(), replace(CLEAN, holding=(replace(TRAINER, certified_duty=None),))])
def test_leaving_for_a_tick_does_not_end_a_take_back(running: Node, away: Inputs) -> None:
    running.tick(at_rate(0.0))
    taken_s = running.now_s
    running.tick(away)
    while running.tick().budget in (0.0, None):
        pass
    assert running.now_s - taken_s >= 300.0
    assert running.out.budget == 0.175


@pytest.mark.parametrize("change", [{"readable": False}, {"short_rate": None}])
def test_an_unreadable_source_takes_it_to_zero_until_it_reads(running: Node, change: dict[str, Any]) -> None:
    blind = replace(CLEAN, holding=(replace(TRAINER, **change),))
    assert running.tick(blind).budget == 0.0
    assert running.state.name == "unreadable"
    assert running.last("GPU_DUTY_TAKE_BACK")["cause"] == "source"
    assert set(running.run(blind, 1000.0)) == {0.0}
    running.tick()
    assert running.state.name == "baseline"
    running.run(CLEAN, 60.0)
    assert running.out.budget == 0.35, "at its last level"


def test_a_new_agent_keeps_levels_baselines_and_the_bar(running: Node) -> None:
    running.tick(at_rate(0.0))
    taken_s = running.now_s
    node = Node(state=restarted(running.state), now_s=running.now_s)
    assert node.state.name == "free"
    node.tick()
    assert node.state.name == "baseline"
    while node.tick().budget == 0.0:
        pass
    assert node.now_s - taken_s >= 300.0
    assert node.out.budget == 0.175
    assert restarted(replace(running.state, name="running", budget=0.2)).resume == 0.2
