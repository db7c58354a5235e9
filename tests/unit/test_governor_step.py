"""The governor, tick by tick: every state, every number of governor.md, anchored to literals of that page."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from policies.codes import CODES
from policies.governor import INITIAL, Entry, GovernorState, Holding, Inputs, Outputs, restarted, step

TRAINER = Holding(
    rule="trainer",
    certified_duty=0.35,
    readable=True,
    short_rate=10.0,
    minute_rate=10.0,
    baseline_rate=10.0,
    median_step_s=0.1,
    certified_off_rate=10.0,
)
CLEAN = Inputs(holding=(TRAINER,), units=("a", "b"))


def at_rate(rate: float | None, *, minute: float | None = None, base: Holding = TRAINER) -> Inputs:
    """Readings of a program whose short window and minute show ``rate`` (``minute`` where given)."""
    return replace(CLEAN, holding=(replace(base, short_rate=rate, minute_rate=rate if minute is None else minute),))


@dataclass
class Node:
    """Drives the governor with two-second ticks and keeps what it did."""

    state: GovernorState = INITIAL
    now_s: float = 1000.0
    out: Outputs = field(default_factory=lambda: Outputs(None))
    entries: list[Entry] = field(default_factory=list)

    def tick(self, inputs: Inputs = CLEAN, *, after_s: float = 2.0) -> Outputs:
        self.now_s += after_s
        self.state, self.out = step(self.state, inputs, self.now_s)
        self.entries += self.out.entries
        return self.out

    def run(self, inputs: Inputs, for_s: float, *, every_s: float = 2.0) -> list[float | None]:
        return [self.tick(inputs, after_s=every_s).budget for _ in range(round(for_s / every_s))]

    def codes(self) -> list[str]:
        return [entry.code for entry in self.entries]

    def last(self, code: str) -> dict[str, Any]:
        return dict(next(entry.data for entry in reversed(self.entries) if entry.code == code))


@pytest.fixture
def running() -> Node:
    """A node whose budget has just started at the ceiling, 0.35."""
    node = Node()
    node.run(CLEAN, 62.0)
    assert (node.state.name, node.out.budget) == ("running", 0.35)
    return node


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


def test_a_rule_that_begins_to_hold_is_measured_first(running: Node) -> None:
    both = replace(CLEAN, holding=(TRAINER, replace(TRAINER, rule="renderer")))
    assert running.tick(both).budget == 0.0
    assert running.state.name == "baseline"
    running.run(both, 60.0)
    assert running.tick(CLEAN).budget == 0.35, "one that lets go ends nothing"
    assert running.tick(both).budget == 0.35, "its baseline is still young"


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
