"""Busy seconds from utilisation samples: each counted exactly once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.meters.nvml_samples import Cursor, Sample, integrate

PERIOD_US = 166_667
START_US = 1_800_000_000_000_000


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=20, max_size=40),
    st.lists(st.integers(1, 18), min_size=1, max_size=40),
    st.integers(0, 5),
)
def test_case_006_every_sample_is_counted_exactly_once(
    busy: list[tuple[int, int]], steps: list[int], handed_out_late: int
) -> None:
    """Readings at any pace, samples handed out up to a second after their stamp, answers that repeat old samples."""
    stamps = [START_US + (index + 1) * PERIOD_US for index in range(len(busy))]
    wanted = {pid: sum(pair[pid] for pair in busy) / 100 * PERIOD_US / 1e6 for pid in (0, 1)}
    cursor, none = integrate(Cursor(), [], 0.0, START_US)
    assert none is None
    got = {0: 0.0, 1: 0.0}
    at = 0
    for step in itertools.chain(steps, itertools.repeat(18)):
        if at > len(busy) + handed_out_late:
            break
        at += step
        now_us = START_US + at * PERIOD_US
        shown = [
            Sample(pid, stamp, pair[pid])
            for stamp, pair in zip(stamps, busy, strict=True)
            for pid in (0, 1)
            if stamp <= now_us - handed_out_late * PERIOD_US
        ]
        cursor, used = integrate(cursor, [*shown, *shown[-4:]], (now_us - START_US) / 1e6, now_us)
        assert used is not None
        for pid, seconds in used.items():
            got[pid] += seconds
    assert got == {pid: pytest.approx(seconds, abs=1e-6) for pid, seconds in wanted.items()}


def test_case_004_a_cursor_is_the_largest_stamp_returned_and_not_the_clock() -> None:
    cursor, _ = integrate(Cursor(), [Sample(1, START_US - 9_000_000, 50)], 0.0, START_US)
    assert cursor.stamp_us == START_US, "an old value before the first query is no baseline"
    cursor, used = integrate(cursor, [Sample(1, START_US + 1_000_000, 100)], 1.0, START_US + 1_900_000)
    assert (cursor.stamp_us, used) == (START_US + 1_000_000, {1: 1.0})


def test_nobody_was_busy_for_longer_than_the_time_that_passed() -> None:
    """After a minute of silence the newest value of a driver that gives no means stands for the last reading alone."""
    cursor = Cursor(START_US, 58.0)
    _, used = integrate(cursor, [Sample(1, START_US + 60_000_000, 100)], 60.0, START_US + 60_000_000)
    assert used == {1: 2.0}


def test_a_short_burst_after_long_silence_is_not_rounded_away() -> None:
    cursor = Cursor(START_US, 0.0)
    for second in range(2, 602, 2):
        cursor, used = integrate(cursor, [], float(second), START_US + second * 1_000_000)
        assert used == {}
    assert cursor.stamp_us is not None
    since_s = (START_US + 602_000_000 - cursor.stamp_us) / 1e6
    assert 1.0 < since_s <= 3.5, "behind the queries by more than the driver is late, and no more than needed"


def test_a_clock_that_was_set_back_gives_no_figure_and_then_goes_on() -> None:
    cursor = Cursor(START_US, 0.0)
    cursor, used = integrate(cursor, [], 2.0, START_US - 3_600_000_000)
    assert used is None
    again = START_US - 3_600_000_000 + 1_000_000
    cursor, used = integrate(cursor, [Sample(1, again, 40)], 3.0, again)
    assert used == {1: pytest.approx(0.4)}
