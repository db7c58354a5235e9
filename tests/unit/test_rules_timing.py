"""When a rule is active: after it held long enough, until it was away long enough, and work waits a cooldown more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rules import RuleEvent, RuleState, start_rule, step_rule
from policies.section.models import Cooldown

COOLDOWN = Cooldown(base_s=120, backoff=2, max_s=960, window_s=3600)


def drive(
    ticks: list[tuple[float, bool]],
    *,
    enter_for_s: float = 4,
    exit_after_s: float = 60,
    cooldown: Cooldown = COOLDOWN,
    state: RuleState | None = None,
) -> tuple[RuleState, list[tuple[float, str]]]:
    """Final state, and (time, code) of each event."""
    state = state or RuleState()
    seen: list[tuple[float, str]] = []
    for now_s, present in ticks:
        state, events = step_rule(state, present, now_s, enter_for_s, exit_after_s, cooldown)
        seen += [(now_s, event.code) for event in events]
    return state, seen


def every(start_s: float, stop_s: float, present: bool) -> list[tuple[float, bool]]:
    return [(float(now_s), present) for now_s in range(int(start_s), int(stop_s), 2)]


def test_a_rule_enters_after_its_time_leaves_after_its_time_and_work_waits_the_cooldown() -> None:
    state, seen = drive(every(0, 20, True) + every(20, 300, False))
    assert seen == [
        (4.0, "PROTECTION_ACTIVE"),
        (80.0, "PROTECTION_CLEARED"),
        (200.0, "PROTECTION_RESUME"),
    ]
    assert not state.holds


def test_work_is_held_in_the_cooldown_too() -> None:
    state, _ = drive(every(0, 20, True) + every(20, 150, False))
    assert not state.active
    assert state.holds
    assert state.resume_at_s == 200.0


def test_a_gap_in_presence_starts_the_wait_again() -> None:
    _, seen = drive([(0, True), (2, True), (3, False), (4, True), (6, True), (8, True)])
    assert seen == [(8, "PROTECTION_ACTIVE")]


def test_a_return_while_leaving_starts_the_leaving_again() -> None:
    state, seen = drive([*every(0, 6, True), *every(6, 60, False), (60.0, True), *every(62, 120, False)])
    assert seen == [(4.0, "PROTECTION_ACTIVE")]
    assert state.active
    assert drive([(122.0, False)], state=state)[1] == [(122.0, "PROTECTION_CLEARED")]


def test_each_activation_within_the_window_doubles_the_wait_up_to_the_most() -> None:
    state, waits, now_s = RuleState(), [], 0.0
    for _ in range(6):
        for present, for_s in ((True, 4.0), (False, 60.0)):
            for at_s in (now_s, now_s + for_s):
                state, events = step_rule(state, present, at_s, 4, 60, COOLDOWN)
                waits += [event.wait_s for event in events if event.code == "PROTECTION_CLEARED"]
            now_s += for_s + 1
    assert waits == [120, 240, 480, 960, 960, 960]


def test_activations_older_than_the_window_no_longer_count() -> None:
    state, _ = drive(every(0, 8, True) + every(8, 80, False))
    late = 4 + COOLDOWN.window_s
    again, _ = drive([(late - 3, True), (late + 1, True)], state=state)
    assert again.active
    _, events = step_rule(*_leaving(again, late + 10), 4, 60, COOLDOWN)
    assert [event.wait_s for event in events if event.code == "PROTECTION_CLEARED"] == [120]


def _leaving(state: RuleState, at_s: float) -> tuple[RuleState, bool, float]:
    state, _ = step_rule(state, False, at_s, 4, 60, COOLDOWN)
    return state, False, at_s + 60


def test_a_return_in_the_cooldown_keeps_work_held_until_the_next_one_is_over() -> None:
    state, seen = drive(every(0, 8, True) + every(8, 80, False) + every(80, 90, True) + every(90, 400, False))
    assert [code for _, code in seen] == [
        "PROTECTION_ACTIVE",
        "PROTECTION_CLEARED",
        "PROTECTION_ACTIVE",
        "PROTECTION_CLEARED",
        "PROTECTION_RESUME",
    ]
    assert seen[-1][0] - seen[-2][0] == pytest.approx(240, abs=2)
    assert not state.holds


def test_a_program_that_runs_when_the_agent_starts_is_protected_at_once() -> None:
    state, events = start_rule(True, 1000.0)
    assert (state.active, events) == (True, (RuleEvent("PROTECTION_ACTIVE"),))
    assert start_rule(False, 1000.0) == (RuleState(now_s=1000.0), ())
    _, seen = drive([(1002, False), (1062, False)], state=state)
    assert seen == [(1062, "PROTECTION_CLEARED")]


def test_a_clock_that_goes_back_stands_still() -> None:
    state, seen = drive([(100, True), (10, True), (11, True), (103, True)])
    assert seen == []
    assert state.now_s == 103
    assert drive([(104, True)], state=state)[1] == [(104, "PROTECTION_ACTIVE")]


def test_a_clock_that_goes_back_does_not_run_the_same_seconds_twice() -> None:
    _, seen = drive([(100, True), (10, False), (11, True), (20, True), (103, True)])
    assert seen == []


def test_an_old_cooldown_that_ends_while_the_rule_is_active_again_releases_nothing() -> None:
    """Cleared at 68 its work would go on at 188; the program came back before that and stays."""
    state, seen = drive(every(0, 8, True) + every(8, 80, False) + every(80, 400, True))
    assert [code for _, code in seen] == ["PROTECTION_ACTIVE", "PROTECTION_CLEARED", "PROTECTION_ACTIVE"]
    assert state.holds


def test_no_times_at_all() -> None:
    instant = Cooldown(base_s=0, max_s=0)
    _, seen = drive([(0, True), (1, False)], enter_for_s=0, exit_after_s=0, cooldown=instant)
    assert [code for _, code in seen] == ["PROTECTION_ACTIVE", "PROTECTION_CLEARED", "PROTECTION_RESUME"]


def test_thousands_of_activations_overflow_nothing() -> None:
    ticks = [(float(now_s), now_s % 2 == 0) for now_s in range(1500)]
    state, seen = drive(ticks, enter_for_s=0, exit_after_s=0)
    assert state.resume_at_s == pytest.approx(1499 + 960)
    assert sum(code == "PROTECTION_ACTIVE" for _, code in seen) == 750


steps = st.lists(st.tuples(st.floats(-5, 90), st.booleans()), max_size=60)


@settings(max_examples=70, deadline=None)
@given(steps=steps, enter_for_s=st.sampled_from([0.0, 4.0, 30.0]), exit_after_s=st.sampled_from([0.0, 60.0]))
def test_whatever_comes(steps: list[tuple[float, bool]], enter_for_s: float, exit_after_s: float) -> None:
    """Never active before the condition held that long without a break, never released before it was away that long
    and the shortest cooldown is over; events come in turn."""
    state, now_s, latest_s = RuleState(), 0.0, 0.0
    came_s = went_s = None
    cleared_s = None
    last = "PROTECTION_CLEARED"
    for step_s, present in steps:
        now_s += step_s
        latest_s = max(latest_s, now_s)
        came_s = (latest_s if came_s is None else came_s) if present else None
        went_s = (latest_s if went_s is None else went_s) if not present else None
        was = state
        state, events = step_rule(state, present, now_s, enter_for_s, exit_after_s, COOLDOWN)
        for event in events:
            if event.code == "PROTECTION_ACTIVE":
                assert last != "PROTECTION_ACTIVE"
                assert came_s is not None
                assert latest_s - came_s >= enter_for_s
            elif event.code == "PROTECTION_CLEARED":
                assert last == "PROTECTION_ACTIVE"
                assert went_s is not None
                assert latest_s - went_s >= exit_after_s
                assert COOLDOWN.base_s <= event.wait_s <= COOLDOWN.max_s
                cleared_s = latest_s
            else:
                assert cleared_s is not None
                assert latest_s - cleared_s >= COOLDOWN.base_s
            last = event.code if event.code != "PROTECTION_RESUME" else last
        if was.active:
            assert state.holds
        if present and came_s is not None and latest_s - came_s >= enter_for_s:
            assert state.active
