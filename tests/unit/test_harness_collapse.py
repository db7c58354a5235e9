"""The watch for a collapse, tick by tick."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.harness.collapse import CollapseState, CollapseWatch, collapse_length_s, collapse_rule, watch


def first_collapse(
    rate: Callable[[float], float], off_rates=(10.0,), window_s=300.0, step_s=0.1, lasts_s=360.0, tick_s=2.0
):
    """When a program with this rate is seen to collapse; None: not in ``lasts_s``. The window begins after 60 s."""
    rule = collapse_rule(list(off_rates), None, window_s, step_s)
    state, now, events = CollapseState(1000.0), 0.0, 0.0
    while now < lasts_s:
        if now == 60.0:
            state = state.window_began(1000.0 + now, events)
        now += tick_s
        events += rate(now) * tick_s
        state, why = watch(state, rule, 1000.0 + now, events)
        if why is not None:
            return now
    return None


@pytest.mark.parametrize(
    ("window_s", "step_s", "length_s"),
    [
        (300.0, 0.1, 60.0),  # sixty seconds: ten steps would be a blink
        (300.0, 6.0, 60.0),
        (300.0, 7.0, 70.0),  # ten steps, where they are longer
        (300.0, 20.0, 150.0),  # no more than half the window
        (300.0, 40.0, 200.0),  # never under five steps
        (8.0, 0.03, 4.0),
        (20.0, 3.0, 15.0),  # half the window is 10 s: five steps are longer
        (20.0, 1.5, 10.0),  # half the window
        (300.0, None, 60.0),
        (20.0, None, 10.0),
    ],
)
def test_the_length(window_s: float, step_s: float | None, length_s: float) -> None:
    assert collapse_length_s(window_s, step_s) == length_s


def test_a_program_that_stops_is_seen_after_the_length() -> None:
    at = first_collapse(lambda _t: 0.0, step_s=3.0)
    assert at == 60.0
    at = first_collapse(lambda _t: 0.0, step_s=20.0)
    assert at == 150.0


def test_a_program_at_forty_percent_has_collapsed_and_one_at_sixty_has_not() -> None:
    assert first_collapse(lambda _t: 4.0) is not None
    assert first_collapse(lambda _t: 6.0) is None


def test_a_slow_start_that_recovers_is_no_collapse() -> None:
    assert first_collapse(lambda t: 0.0 if t <= 40 else 10.0, step_s=6.0) is None
    assert first_collapse(lambda t: 0.0 if t <= 70 else 10.0, step_s=6.0) == 60.0


def test_a_collapse_in_the_window_is_seen_though_the_washout_was_fine() -> None:
    at = first_collapse(lambda t: 10.0 if t <= 60 else 0.0, step_s=6.0)
    assert at is not None
    assert 120.0 <= at <= 130.0


def test_a_short_stall_late_in_the_window_is_no_collapse() -> None:
    assert first_collapse(lambda t: 0.0 if 200 < t <= 250 else 10.0, step_s=6.0) is None


def test_where_off_falls_as_low_the_program_stalls_by_itself() -> None:
    assert first_collapse(lambda _t: 0.0, off_rates=(10.0, 10.0, 4.9)) is None
    assert first_collapse(lambda _t: 0.0, off_rates=(10.0, 10.0, 5.1)) is not None


def test_the_reference_holds_until_there_is_an_off_window() -> None:
    assert collapse_rule([], 8.0, 300.0, 0.1).off_rate == 8.0
    assert collapse_rule([10.0, 12.0, 11.0], 8.0, 300.0, 0.1).off_rate == 11.0


@pytest.mark.parametrize("reference", [None, 0.0, math.nan])
def test_without_a_rate_to_hold_it_to_nothing_is_a_collapse(reference: float | None) -> None:
    rule = collapse_rule([], reference, 300.0, 0.1)
    assert rule.off_rate is None
    assert watch(CollapseState(0.0), rule, 1000.0, 0.0)[1] is None


@given(st.lists(st.floats(5.5, 20.0), min_size=180, max_size=180))
@settings(max_examples=15, deadline=None)
def test_a_rate_over_half_at_every_tick_never_collapses(rates: list[float]) -> None:
    assert first_collapse(lambda t: rates[int(t / 2.0) - 1], step_s=0.1) is None


@given(st.floats(0.0, 4.5), st.sampled_from([0.1, 1.0, 6.0, 20.0]))
@settings(max_examples=15, deadline=None)
def test_a_rate_under_half_from_the_start_is_always_seen(rate: float, step_s: float) -> None:
    at = first_collapse(lambda _t: rate, step_s=step_s)
    length = collapse_length_s(300.0, step_s)
    assert at is not None
    assert length <= at <= length + 4.0


class FakeTrack:
    """Events at a steady rate from 0 on; unreadable where ``rate`` is None."""

    def __init__(self, rate: float | None, median_step_s: float | None) -> None:
        self.rate, self.median_step_s = rate, median_step_s

    def count_between(self, start_s: float, end_s: float, now_s: float | None = None) -> FakeTrack:
        self.events = None if self.rate is None else self.rate * (end_s - start_s)
        return self


def test_the_watch_reads_a_track_from_its_first_tick_on() -> None:
    watching = CollapseWatch([10.0], None, 300.0)
    track = FakeTrack(1.0, 1.0)
    said = [watching.step(100.0 + t, track) for t in range(0, 62, 2)]
    assert said[:30] == [None] * 30
    assert said[30] is not None
    assert "OFF rate of 10/s" in said[30]


def test_the_length_is_not_stretched_by_the_collapse_itself() -> None:
    watching = CollapseWatch([10.0], None, 300.0)
    watching.step(0.0, FakeTrack(1.0, 0.1))
    slow = FakeTrack(0.1, 30.0)
    said = [watching.step(float(t), slow) for t in range(2, 64, 2)]
    assert any(said), "sixty seconds by the steps it had, not ten of its steps now"


def test_an_unknown_count_decides_nothing() -> None:
    watching = CollapseWatch([10.0], None, 300.0)
    assert all(watching.step(float(t), FakeTrack(None, 0.1)) is None for t in range(0, 300, 2))
