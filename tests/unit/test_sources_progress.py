"""Fractional counts: additive, exact in total, and unknown where they are not known."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.sources import progress as progress_module
from policies.sources.progress import ProgressTrack
from policies.sources.stamps import StampClock
from policies.sources.windows import fitting_window_s, holds_steps, live_rate, window_fits


def steady(step_s: float, count: int, begin_s: float = 100.0) -> ProgressTrack:
    track = ProgressTrack()
    for index in range(count):
        track.add_events(begin_s + index * step_s)
    return track


def test_a_step_is_spread_over_its_duration() -> None:
    track = steady(20.0, 20)
    counted = track.count_between(110.0, 410.0)
    assert counted.events == pytest.approx(15.0)
    assert counted.closed
    assert track.count_between(103.0, 107.0).events == pytest.approx(0.2)


def test_the_straddling_step_is_open_until_its_event_comes() -> None:
    track = steady(20.0, 3)
    assert not track.count_between(110.0, 150.0).closed
    track.add_events(160.0)
    assert track.count_between(110.0, 150.0).closed
    assert track.count_between(110.0, 150.0).events == pytest.approx(2.0)


def test_an_open_step_counts_elapsed_over_the_longest_known_at_most_one() -> None:
    track = steady(20.0, 3)  # last point at 140
    assert track.count_between(100.0, 150.0, 150.0).events == pytest.approx(2.5)
    assert track.count_between(100.0, 900.0, 900.0).events == pytest.approx(3.0)
    assert track.count_between(100.0, 150.0).events == pytest.approx(2.0)


def test_a_slow_program_is_not_quantised() -> None:
    track = steady(2.0, 50)
    rates = [track.rate(190.0 + shift / 10, 20.0) for shift in range(30)]
    for rate in rates:
        assert rate == pytest.approx(0.5, rel=1e-6)


def test_a_stall_at_the_edge_is_seen() -> None:
    track = steady(1.0, 100)  # last point at 199
    assert track.rate(219.0, 20.0) == pytest.approx(1.0 / 20.0)
    assert track.rate(300.0, 20.0) == pytest.approx(0.0)


def test_nothing_is_known_before_the_first_event() -> None:
    track = ProgressTrack()
    assert track.count_between(0.0, 10.0).events is None
    assert track.rate(10.0, 10.0) is None
    track.add_events(50.0, 7)
    assert track.count_between(0.0, 50.0).events is None, "when its step began is not known"
    track.add_events(60.0)
    counted = track.count_between(40.0, 60.0)
    assert counted.events == pytest.approx(1.0)
    assert counted.unknown_s == pytest.approx(10.0)


def test_events_of_one_read_are_spread_over_the_gap() -> None:
    track = steady(1.0, 2)
    track.add_events(111.0, 10)
    assert track.count_between(101.0, 106.0).events == pytest.approx(5.0)


def test_case_064_a_counter_that_restarts_starts_a_new_segment() -> None:
    track = ProgressTrack()
    for index, value in enumerate([11980.0, 11990.0, 12000.0, 0.0, 1.0]):
        track.add_counter(10.0 * index, [value])
    assert track.resets == 1
    whole = track.count_between(0.0, 40.0)
    assert whole.events == pytest.approx(21.0)
    assert whole.void_s == pytest.approx(10.0)
    assert track.count_between(21.0, 29.0).events is None, "the pair that spans the restart is void"
    rate = track.rate(40.0, 40.0)
    assert rate == pytest.approx(21.0 / 30.0)


def test_case_064_a_restart_within_one_read_is_void_too() -> None:
    track = ProgressTrack()
    track.add_counter(0.0, [100.0])
    track.add_counter(10.0, [110.0])
    track.add_counter(20.0, [120.0, 0.0, 1.0])
    track.add_counter(30.0, [11.0])
    assert track.count_between(0.0, 30.0).events == pytest.approx(20.0)
    assert track.count_between(0.0, 30.0).void_s == pytest.approx(10.0)


def test_case_064_a_counter_set_to_its_checkpoint_is_no_leap_of_progress() -> None:
    track = ProgressTrack()
    for index in range(12):
        track.add_counter(10.0 * index, [float(index)])
    track.add_counter(120.0, [12000.0])
    track.add_counter(130.0, [12001.0])
    assert track.count_between(0.0, 130.0).events == pytest.approx(12.0)
    assert track.resets == 1


def test_a_counter_on_a_timer_tells_of_a_stall() -> None:
    track = ProgressTrack()
    for second, value in enumerate([0, 1000, 2000, 2000, 2000, 2000, 3000]):
        track.add_counter(float(second), [float(value)])
    assert track.count_between(2.0, 5.0).events < 1.0
    assert track.count_between(5.0, 6.0).events > 999.0
    assert track.count_between(0.0, 6.0).events == pytest.approx(3000.0)


def test_lines_that_may_be_lost_leave_a_void() -> None:
    track = steady(1.0, 10)
    track.break_here()
    assert track.count_between(109.0, 110.0, 110.0).events is None
    track.add_events(115.0)
    track.add_events(116.0)
    counted = track.count_between(100.0, 116.0)
    assert counted.events == pytest.approx(10.0)
    assert counted.void_s == pytest.approx(6.0)


def test_case_066_bursts_are_told_from_stalls() -> None:
    track = ProgressTrack()
    for minute in range(8):
        track.add_events(60.0 * minute, 100)
    assert track.arrival_cadence_s == pytest.approx(60.0)
    assert window_fits(track, 20.0).ok is False
    assert window_fits(track, 300.0).ok is True
    assert fitting_window_s(track, 20.0) == pytest.approx(300.0)
    # 55 s of silence, and no stall
    live = live_rate(track, 475.0, 20.0)
    assert live.window_s == pytest.approx(300.0)
    assert live.per_s == pytest.approx(100.0 / 60.0, rel=0.05)
    # but a program that has stopped is seen to have stopped
    stopped = live_rate(track, 475.0 + 600.0, 20.0)
    assert stopped.per_s == pytest.approx(0.0)


def test_case_066_stamped_lines_may_arrive_in_bursts() -> None:
    track = ProgressTrack()
    for minute in range(1, 9):
        arrival = 60.0 * minute
        track.add_stamped(arrival, 1e9 + arrival, [1e9 + arrival - 60.0 + 0.6 * (k + 1) for k in range(100)])
    assert window_fits(track, 20.0).ok is False, "a live window would look at what has not arrived"
    assert window_fits(track, 20.0, live=False).ok is True
    assert track.count_between(130.0, 142.0).events == pytest.approx(20.0)


def test_too_few_arrivals_decide_nothing() -> None:
    assert window_fits(steady(1.0, 4), 20.0).ok is None
    assert fitting_window_s(steady(1.0, 4), 20.0) == 20.0


@pytest.mark.parametrize("origin", [1e9, 1e9 + 7200.0, 0.0, -5e8])
def test_stamps_of_any_origin_land_where_they_were_written(origin: float) -> None:
    clock = StampClock()
    for second in range(1, 200):
        when = float(second)
        # every tenth read brings three seconds at once
        placed = clock.place(when, 1e9 + when, [origin + when])
        assert placed == pytest.approx([when])
    placed = clock.place(203.0, 1e9 + 203.0, [origin + 200.0, origin + 201.0, origin + 203.0])
    assert placed == pytest.approx([200.0, 201.0, 203.0])
    # the first read of all may be a burst, too: its newest line is the one that did not wait
    assert StampClock().place(9.0, 1e9 + 9.0, [origin + 6.0, origin + 9.0]) == pytest.approx([6.0, 9.0])


def test_a_wall_clock_that_is_set_moves_no_event() -> None:
    clock = StampClock()
    for second in range(1, 20):
        clock.place(float(second), 1e9 + second, [1e9 + second])
    for second in range(20, 40):
        assert clock.place(float(second), 1e9 + second - 3600.0, [1e9 + second - 3600.0]) == pytest.approx([second])


def test_stamps_out_of_order_make_no_negative_step() -> None:
    track = ProgressTrack()
    for index, stamp in enumerate([1.0, 2.0, 3.0, 2.5, 4.0]):
        track.add_stamped(100.0 + index, 1e9 + 100.0 + index, [1e9 + 100.0 + stamp])
    assert track.late == 1
    assert track.count_between(track._times[0], track._times[-1]).events == pytest.approx(4.0)
    assert all(later > earlier for earlier, later in zip(track._times, track._times[1:], strict=False))


GAPS = st.lists(st.tuples(st.floats(0.001, 50.0), st.integers(1, 9)), min_size=2, max_size=60)


@given(gaps=GAPS, cuts=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
@settings(deadline=None)
def test_counts_are_additive_and_conserve_the_total(gaps: list[tuple[float, int]], cuts: list[float]) -> None:
    track, now = ProgressTrack(), 1000.0
    track.add_events(now)
    for gap, count in gaps:
        now += gap
        track.add_events(now, count)
    total = sum(count for _, count in gaps)
    edges = sorted({1000.0, now, *(1000.0 + cut * (now - 1000.0) for cut in cuts)})
    parts = [track.count_between(low, high).events for low, high in itertools.pairwise(edges)]
    assert all(part is not None and part >= -1e-9 for part in parts)
    assert math.fsum(part or 0.0 for part in parts) == pytest.approx(total)
    assert track.count_between(1000.0, now).events == pytest.approx(total)


@given(
    values=st.lists(st.floats(0.0, 1e6), min_size=2, max_size=50),
    gap=st.floats(0.01, 10.0),
    window=st.floats(1.0, 100.0),
)
@settings(deadline=None)
def test_no_counter_gives_a_negative_or_impossible_rate(values: list[float], gap: float, window: float) -> None:
    track = ProgressTrack()
    for index, value in enumerate(values):
        track.add_counter(index * gap, [value])
    end = (len(values) - 1) * gap
    rises = [later - earlier for earlier, later in itertools.pairwise(values) if later >= earlier]
    assume(end > 0)
    counted = track.count_between(0.0, end)
    if counted.events is not None:
        assert -1e-6 <= counted.events <= math.fsum(rises) * (1 + 1e-9) + 1e-6
    rate = track.rate(end, window)
    assert rate is None or (rate >= -1e-9 and rate <= max([0.0, *rises]) / gap * (1 + 1e-6) + 1e-6)


def test_memory_is_bounded_and_merging_does_not_move_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "MAX_POINTS", 20_000)
    track, exact = ProgressTrack(), []
    for index in range(100_000):
        when = index * 0.001 + (0.0004 if index % 3 else 0.0)
        track.add_events(when)
        exact.append(when)
    assert track.points <= 20_000 + 4096
    begin, end = 20.0, 80.0
    counted = track.count_between(begin, end).events
    assert counted == pytest.approx(60_000, abs=2 * 1000 * (100.0 / 10_000))
    assert track.count_between(0.0, exact[-1]).events == pytest.approx(99_999)


def test_old_points_go_unless_a_block_needs_them() -> None:
    def filled(keep: float | None) -> ProgressTrack:
        track = ProgressTrack(retain_s=50.0)
        track.keep_since(keep)
        for index in range(20_000):
            track.add_events(index * 0.05)
        return track

    assert filled(None).count_between(100.0, 200.0).events is None
    kept = filled(90.0).count_between(100.0, 200.0)
    assert kept.events == pytest.approx(2000.0)
    assert kept.unknown_s == 0.0


@pytest.mark.parametrize(("step_s", "void_s"), [(-3600.0, 1.0), (-86_400.0 * 30, 0.0)])
def test_a_programs_clock_that_is_set_back_loses_no_later_event(step_s: float, void_s: float) -> None:
    """Its lines must not all fall on the moment before the step: the time since would read as a standstill."""
    track = ProgressTrack()
    for second in range(1, 41):
        at = 100.0 + second
        track.add_stamped(at, 1e9 + at, [1e9 + at + (step_s if second > 20 else 0.0)])
    assert track.count_between(130.0, 139.0).events == pytest.approx(9.0)
    # far back the stamps are no wall times any more, and begin anew by themselves; nearer the step over the set is not known
    assert track.count_between(110.0, 135.0).void_s == pytest.approx(void_s)


def test_one_stamp_that_ran_ahead_costs_one_step() -> None:
    track = ProgressTrack()
    for second in range(1, 41):
        at = 100.0 + second
        track.add_stamped(at, 1e9 + at, [1e9 + at + (86_400.0 if second == 20 else 0.0)])
    assert track.count_between(125.0, 139.0).events == pytest.approx(14.0)
    assert live_rate(track, 140.0, 10.0).per_s == pytest.approx(1.0, rel=0.1)


def test_writers_whose_clocks_differ_a_little_are_no_clock_that_was_set() -> None:
    track = ProgressTrack()
    for second in range(1, 41):
        at = 100.0 + second
        track.add_stamped(at, 1e9 + at, [1e9 + at - 5.0 * (second % 2)])
    assert track.count_between(110.0, 130.0).void_s == 0.0


def test_steps_of_a_stretch_are_those_that_ended_in_it() -> None:
    track = ProgressTrack()
    for when in (10.0, 20.0, 30.0, 40.0):
        track.add_events(when, 3)
    assert [track.steps_between(*span) for span in ((0.0, 9.0), (10.0, 40.0), (10.0, 39.0), (35.0, 36.0))] == [
        0,
        3,
        2,
        0,
    ]


@pytest.mark.parametrize(("window_s", "ok"), [(60.0, False), (99.9, False), (100.0, True), (300.0, True)])
def test_a_window_that_holds_too_few_steps_is_told_with_one_that_would_do(window_s: float, ok: bool) -> None:
    track = ProgressTrack()
    for number in range(10):
        track.add_events(20.0 * number)
    found = holds_steps(track, window_s, 5)
    assert found.ok is ok
    assert ("--window 120 would work" in found.why) is not ok
    assert holds_steps(track, 120.0, 5).ok is True


def test_how_long_steps_take_is_not_known_from_the_first_few() -> None:
    track = ProgressTrack()
    assert holds_steps(track, 1.0, 5).ok is None
    for number in range(5):
        track.add_events(20.0 * number)
    assert holds_steps(track, 1.0, 5).ok is None, "four steps, and a window is judged by five"
    track.add_events(100.0)
    assert holds_steps(track, 1.0, 5).ok is False


def track_of(steps_s: list[float]) -> ProgressTrack:
    track, at_s = ProgressTrack(), 0.0
    track.add_events(at_s)
    for step_s in steps_s:
        at_s += step_s
        track.add_events(at_s)
    return track


STARTS_S = [40.0, 35.0, 30.0]


@pytest.mark.parametrize("steps", range(1, 12))
def test_a_program_that_compiles_as_it_starts_is_not_taken_for_one_of_long_steps(steps: int) -> None:
    assert holds_steps(track_of((STARTS_S + [0.5] * 9)[:steps]), 60.0, 5).ok is not False


def test_a_program_whose_steps_stay_long_after_its_start_is_told_by_what_they_take_now() -> None:
    found = holds_steps(track_of([*STARTS_S, 20.0, 18.0, 20.0, 22.0, 20.0]), 60.0, 5)
    assert found.ok is False
    assert "--window 120 would work" in found.why
    assert holds_steps(track_of([0.5] * 100 + [20.0] * 5), 60.0, 5).ok is not False, "a short stretch of a fast program"
