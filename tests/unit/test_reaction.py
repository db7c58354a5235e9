"""What ``protect`` does to other fleet work on harm: lowered, paused, released late; unknown is never free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.reaction import HarmSignals, Limit, Reaction, ReactionState, pressure, step_reaction
from policies.section.models import Cooldown
from policies.sources.progress import ProgressTrack
from policies.sources.windows import live_rate

RATE = Limit("progress_rate", 0.05, exit_after_s=60.0, cooldown=Cooldown(base_s=120.0))
STALL = Limit("cpu_stall", 0.1, exit_after_s=60.0, cooldown=Cooldown(base_s=120.0))
PROGRAM = frozenset({(10, 100)})
ORDER = ("paused", "lowered", "free")
TICK_S = 2.0


def at(rate: float | None, *, ran: bool = True, **more: object) -> HarmSignals:
    signals = HarmSignals(active=True, figure=rate, window_s=20.0, fleet_ran=ran, program=PROGRAM)
    return replace(signals, **more)  # type: ignore[arg-type]


class Node:
    """Steps a reaction tick by tick and keeps what happened."""

    def __init__(self, limit: Limit = RATE) -> None:
        self.limit, self.now_s = limit, 1000.0
        self.state = ReactionState()
        self.codes: list[str] = []
        self.reaction = Reaction("paused", "")

    def tick(self, signals: HarmSignals, for_s: float = TICK_S) -> str:
        until_s = self.now_s + for_s
        while self.now_s < until_s:
            self.now_s += TICK_S
            self.state, self.reaction, events = step_reaction(self.state, signals, self.now_s, self.limit)
            self.codes += [event.code for event in events]
        return self.reaction.level

    def seconds_until(self, level: str, signals: HarmSignals, limit_s: float = 4000.0) -> float:
        begun_s = self.now_s
        while self.tick(signals) != level:
            assert self.now_s - begun_s < limit_s, f"never {level}"
        return self.now_s - begun_s


def measured(limit: Limit = RATE, rate: float = 10.0) -> Node:
    """A node whose program was measured without fleet work."""
    node = Node(limit)
    node.tick(at(rate, ran=False), 62.0)
    assert node.reaction.level == "free"
    node.codes.clear()
    return node


def test_nothing_runs_until_the_program_was_measured_without_fleet_work() -> None:
    node = Node()
    assert node.tick(at(10.0)) == "paused"
    assert (node.reaction.measures, node.reaction.code) == (True, "PROTECTION_BASELINE")
    # the hold takes effect: quiet from here on; it lasts a minute
    assert node.seconds_until("free", at(10.0, ran=False)) == pytest.approx(60.0, abs=TICK_S)
    assert node.state.baseline == 10.0
    assert node.codes == ["PROTECTION_BASELINE"]


def test_the_baseline_is_the_newest_whole_window_without_fleet_work() -> None:
    node = measured(rate=10.0)
    node.tick(at(20.0), 40.0)
    node.tick(at(8.0, ran=False), 18.0)
    assert node.state.baseline == 10.0, "18 s are no window of 20 s"
    node.tick(at(8.0, ran=False), 4.0)
    assert node.state.baseline == 8.0


def test_a_stretch_that_fleet_work_interrupts_is_none() -> None:
    node = measured(rate=10.0)
    node.tick(at(10.0))
    for _ in range(20):
        node.tick(at(6.0, ran=False), 10.0)
        node.tick(at(6.0, ran=True))
    assert node.state.baseline == 10.0


@pytest.mark.parametrize("rate", [0.0, None])
def test_a_program_that_makes_no_progress_or_cannot_be_read_is_never_measured(rate: float | None) -> None:
    node = Node()
    node.tick(at(rate, ran=False), 4000.0)
    assert node.reaction.level == "paused"
    assert node.state.baseline is None


def test_harm_at_the_target_lowers_at_once_and_under_it_for_30_s_raises() -> None:
    node = measured()
    assert node.tick(at(9.5)) == "lowered"
    assert node.codes == ["PROTECTION_LOWER"]
    assert node.seconds_until("free", at(9.6)) == pytest.approx(30.0, abs=2 * TICK_S)
    assert node.codes == ["PROTECTION_LOWER", "PROTECTION_CALM"]


def test_a_relapse_begins_the_30_s_anew() -> None:
    node = measured()
    node.tick(at(9.5))
    node.tick(at(9.6), 28.0)
    node.tick(at(9.4))
    assert node.seconds_until("free", at(9.6)) == pytest.approx(30.0, abs=2 * TICK_S)


def test_one_sample_over_twice_the_target_does_not_pause_and_two_do() -> None:
    node = measured()
    assert node.tick(at(8.9)) == "lowered"
    assert node.tick(at(9.2)) == "lowered"
    assert node.tick(at(8.9)) == "lowered"
    assert node.tick(at(8.9)) == "paused"
    assert node.reaction.code == "PROTECTION_HARM"


def test_two_looks_at_one_instant_are_one_sample() -> None:
    node = measured()
    state = node.state
    for _ in range(5):
        state, reaction, _ = step_reaction(state, at(5.0), node.now_s + 2.0, RATE)
    assert reaction.level == "lowered"


def test_a_pause_is_released_after_the_exit_and_the_cooldown_and_first_to_lowered() -> None:
    node = measured()
    node.tick(at(5.0), 4.0)
    # nothing runs: the newest stretch becomes the baseline, so the program is at its speed
    quiet = at(10.0, ran=False)
    waited_s = node.seconds_until("lowered", quiet)
    assert waited_s == pytest.approx(60.0 + 120.0, abs=2 * TICK_S)
    assert node.seconds_until("free", quiet) == pytest.approx(30.0, abs=2 * TICK_S)


def test_each_further_pause_within_the_window_waits_twice_as_long() -> None:
    node = measured()
    waits = []
    for _ in range(3):
        node.tick(at(5.0), 4.0)
        waits.append(node.seconds_until("lowered", at(10.0, ran=False)))
    assert waits == pytest.approx([180.0, 300.0, 540.0], abs=3 * TICK_S)


def test_a_source_that_cannot_be_read_counts_as_harm() -> None:
    node = measured()
    assert node.tick(at(None)) == "lowered"
    assert node.tick(at(None)) == "paused"
    assert node.tick(at(None, ran=False), 600.0) == "paused"
    assert "not known" in node.reaction.why


def test_case_066_a_program_that_writes_in_bursts_is_not_stalled_between_them() -> None:
    """A hundred lines once a minute: the figure is over the window that the cadence needs, and is no stall."""
    track, node = ProgressTrack(), Node()
    burst_s = 0.0
    for _ in range(1200):
        if node.now_s - burst_s >= 60.0:
            track.add_events(node.now_s, 100)
            burst_s = node.now_s
        rate = live_rate(track, node.now_s, 20.0)
        # fleet work runs from the 20th minute on
        node.tick(at(rate.per_s, ran=node.now_s > 2200.0, window_s=rate.window_s, may_measure=False))
        if node.now_s > 2200.0:
            assert node.reaction.level == "free"
    assert node.state.baseline == pytest.approx(100.0 / 60.0, rel=0.05)


def test_case_078_a_pause_is_lifted_by_its_own_condition_only() -> None:
    """Not by time: while harm lasts, with work held or without, it stays."""
    node = Node(STALL)
    assert node.tick(at(0.9), 20_000.0) == "paused"
    assert node.tick(at(None), 20_000.0) == "paused"


def test_an_old_baseline_is_measured_anew_by_a_hold_of_a_minute() -> None:
    node = measured()
    since_s = node.now_s
    assert node.seconds_until("paused", at(10.0)) == pytest.approx(1800.0, abs=2 * TICK_S)
    assert node.now_s - since_s > 1790.0
    assert node.reaction.measures
    assert node.seconds_until("free", at(9.0, ran=False)) == pytest.approx(60.0, abs=2 * TICK_S)
    assert node.state.baseline == 9.0


def test_no_hold_is_made_for_a_baseline_that_nobody_needs_or_while_a_run_measures() -> None:
    for signals in (at(10.0, wanted=False), at(10.0, may_measure=False)):
        node = measured()
        node.tick(signals, 4000.0)
        assert not node.reaction.measures
        assert node.reaction.level == "free"


def test_another_program_is_measured_before_anything_runs_beside_it() -> None:
    node = measured()
    assert node.tick(at(10.0, program=frozenset({(77, 900)}))) == "paused"
    assert node.state.baseline is None


def test_a_program_that_keeps_one_of_its_processes_is_the_same() -> None:
    node = measured()
    assert node.tick(at(10.0, program=PROGRAM | {(77, 900)})) == "free"


def test_a_program_that_ended_is_not_the_one_that_begins() -> None:
    node = measured()
    node.tick(HarmSignals(active=False, figure=None, window_s=20.0))
    assert node.reaction.level == "free"
    assert node.tick(at(10.0)) == "paused"


def test_the_cooldown_of_a_pause_outlasts_the_program() -> None:
    node = measured()
    node.tick(at(5.0), 4.0)
    gone = HarmSignals(active=False, figure=None, window_s=0.0)
    assert node.seconds_until("free", gone) == pytest.approx(180.0, abs=2 * TICK_S)


def test_stall_and_share_need_no_baseline() -> None:
    node = Node(STALL)
    assert node.tick(at(0.05)) == "free"
    assert node.tick(at(0.1)) == "lowered"
    assert node.tick(at(0.25), 4.0) == "paused"
    fresh = Node(STALL)
    assert fresh.tick(at(None), 4.0) == "paused"


def test_a_share_that_is_not_known_yet_holds_without_a_cooldown_to_follow() -> None:
    node = Node(STALL)
    assert node.tick(at(None), 20.0) == "paused"
    assert node.reaction.code == "PROTECTION_BASELINE"
    assert node.tick(at(0.01)) == "free"
    assert node.codes == []
    # from here on unknown is harm
    assert node.tick(at(None), 4.0) == "paused"
    assert node.tick(at(0.01)) == "paused"


def test_pressure_is_harm_over_the_target() -> None:
    assert pressure(RATE, 9.75, 10.0) == pytest.approx(0.5)
    assert pressure(RATE, 12.0, 10.0) == 0.0
    assert pressure(RATE, 9.0, None) is None
    assert pressure(RATE, None, 10.0) is None
    assert pressure(STALL, 0.2, None) == pytest.approx(2.0)


# -- whatever happens ---------------------------------------------------------------------------------------------------

RATES = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 8.0, 8.95, 9.2, 9.5, 9.6, 10.0, 12.0]))
SIGNALS = st.builds(
    HarmSignals,
    active=st.sampled_from([True, True, True, False]),
    figure=RATES,
    window_s=st.sampled_from([2.0, 20.0, 100.0]),
    fleet_ran=st.booleans(),
    wanted=st.booleans(),
    program=st.sampled_from([PROGRAM, frozenset({(11, 5)}), frozenset()]),
    may_measure=st.booleans(),
)
STEPS = st.lists(st.tuples(SIGNALS, st.sampled_from([2.0, 2.0, 10.0, 40.0, 400.0, -5.0])), max_size=40)


def walk(steps: Iterable[tuple[HarmSignals, float]], limit: Limit) -> tuple[ReactionState, float]:
    state, now_s = ReactionState(), 0.0
    for signals, passed_s in steps:
        now_s += passed_s
        state, _, _ = step_reaction(state, signals, now_s, limit)
    return state, now_s


@settings(max_examples=60, deadline=None)
@given(STEPS, SIGNALS, RATES, st.sampled_from([RATE, STALL]))
def test_worse_or_missing_signals_never_give_more_freedom(
    steps: list[tuple[HarmSignals, float]], last: HarmSignals, other: float | None, limit: Limit
) -> None:
    state, now_s = walk(steps, limit)
    last = replace(last, active=True)

    def worse_is(a: float | None, b: float | None) -> bool:
        """Whether figure ``a`` is worse than ``b``: unknown is worst."""
        if a is None or b is None:
            return a is None
        return a <= b if limit is RATE else a >= b

    bad, good = (last.figure, other) if worse_is(last.figure, other) else (other, last.figure)
    levels = [step_reaction(state, replace(last, figure=figure), now_s + 2.0, limit)[1].level for figure in (bad, good)]
    assert ORDER.index(levels[0]) <= ORDER.index(levels[1])
    # fleet work that ran, or may have, never leaves more than none
    ran, quiet = (
        step_reaction(state, replace(last, fleet_ran=seen), now_s + 2.0, limit)[1].level for seen in (True, False)
    )
    assert ORDER.index(ran) <= ORDER.index(quiet) or limit is RATE


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_without_a_baseline_nothing_runs_beside_an_active_program(steps: list[tuple[HarmSignals, float]]) -> None:
    state, now_s = ReactionState(), 0.0
    for signals, passed_s in steps:
        now_s += passed_s
        state, reaction, _ = step_reaction(state, signals, now_s, RATE)
        if signals.active and state.baseline is None:
            assert reaction.level == "paused"


@settings(max_examples=60, deadline=None)
@given(STEPS, SIGNALS)
def test_a_new_baseline_comes_from_a_quiet_window_alone(
    steps: list[tuple[HarmSignals, float]], last: HarmSignals
) -> None:
    state, now_s = walk(steps, RATE)
    after, _, _ = step_reaction(state, replace(last, active=True, fleet_ran=True), now_s + 2.0, RATE)
    assert after.baseline in (state.baseline, None)


@settings(max_examples=60, deadline=None)
@given(STEPS, SIGNALS)
def test_a_pause_ends_only_after_the_exit_time_without_known_harm(
    steps: list[tuple[HarmSignals, float]], last: HarmSignals
) -> None:
    state, now_s = walk(steps, RATE)
    if not state.pause.active:
        return
    after, reaction, _ = step_reaction(state, replace(last, active=True, figure=None), now_s + 2.0, RATE)
    assert after.pause.active
    assert reaction.level == "paused"
