"""The owner's hours as instants: overnight, by day, and across clock changes in three time zones."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.harness.hours import Hours, parse_hours
from policies.refusal import Refused

BERLIN, KOLKATA, NEW_YORK = (ZoneInfo(name) for name in ("Europe/Berlin", "Asia/Kolkata", "America/New_York"))
NIGHT = parse_hours("22:00-06:30")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("zone", "start", "end", "hours"),
    [
        (BERLIN, "2026-11-28T22:00+01:00", "2026-11-29T06:30+01:00", 8.5),
        (BERLIN, "2026-03-28T22:00+01:00", "2026-03-29T06:30+02:00", 7.5),  # clocks go on at 02:00
        (BERLIN, "2026-10-24T22:00+02:00", "2026-10-25T06:30+01:00", 9.5),  # and back at 03:00
        (KOLKATA, "2026-03-28T22:00+05:30", "2026-03-29T06:30+05:30", 8.5),  # no such nights there
        (NEW_YORK, "2026-03-07T22:00-05:00", "2026-03-08T06:30-04:00", 7.5),
        (NEW_YORK, "2026-10-31T22:00-04:00", "2026-11-01T06:30-05:00", 9.5),
    ],
)
def test_case_119_a_nights_hours_are_instants_in_each_zone(zone: ZoneInfo, start: str, end: str, hours: float) -> None:
    begin, stop = at(start).astimezone(UTC), at(end).astimezone(UTC)
    for now in (begin, begin + (stop - begin) / 2, stop - timedelta(seconds=1)):
        span = NIGHT.span(now, zone)
        assert span is not None
        assert (span.start, span.end) == (begin, stop)
        assert NIGHT.left_s(now, zone) == (stop - now).total_seconds()
    assert (stop - begin).total_seconds() == hours * 3600.0
    assert NIGHT.span(begin - timedelta(seconds=1), zone) is None
    assert NIGHT.span(stop, zone) is None
    assert NIGHT.left_s(stop, zone) == 0.0
    assert NIGHT.next_span(begin - timedelta(hours=3), zone).start == begin


def test_a_time_that_the_clock_skips_is_the_moment_of_the_jump() -> None:
    jump = at("2026-03-29T01:00+00:00")
    to_a_gap = Hours(time(22), time(2, 30)).span(at("2026-03-28T23:00+01:00"), BERLIN)
    from_a_gap = Hours(time(2, 30), time(6)).span(at("2026-03-29T04:00+02:00"), BERLIN)
    assert to_a_gap is not None
    assert to_a_gap.end == jump
    assert from_a_gap is not None
    assert from_a_gap.start == jump
    # hours that lie in the gap whole do not take place that day
    assert Hours(time(2, 10), time(2, 40)).next_span(jump - timedelta(minutes=5), BERLIN).start == at(
        "2026-03-30T02:10+02:00"
    )


def test_a_time_that_comes_twice_is_its_first() -> None:
    span = Hours(time(22), time(2, 30)).span(at("2026-10-24T23:00+02:00"), BERLIN)
    assert span is not None
    assert span.end == at("2026-10-25T02:30+02:00")
    assert Hours(time(22), time(2, 30)).left_s(at("2026-10-25T02:29+01:00"), BERLIN) == 0.0


def test_hours_by_day_and_how_they_are_written() -> None:
    day = parse_hours(" 9:00 – 17:30 ")
    assert str(day) == "09:00-17:30"
    assert day.left_s(at("2026-11-29T17:00+01:00"), BERLIN) == 1800.0
    assert day.span(at("2026-11-29T20:00+01:00"), BERLIN) is None
    assert str(NIGHT) == "22:00-06:30"


@pytest.mark.parametrize("text", ["", "22-6", "25:00-06:00", "22:00", "22:60-06:00", "22:00-22:00", "night"])
def test_what_is_no_span_of_the_day_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_hours(text)
    assert "22:00-06:30" in refusal.value.remedy


def test_a_date_without_an_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="without an offset"):
        NIGHT.span(datetime(2026, 11, 29, 23, 0), BERLIN)  # noqa: DTZ001


@given(
    st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31)),  # noqa: DTZ001
    st.sampled_from([BERLIN, KOLKATA, NEW_YORK, ZoneInfo("Australia/Lord_Howe")]),
    st.times().map(lambda t: t.replace(second=0, microsecond=0)),
    st.times().map(lambda t: t.replace(second=0, microsecond=0)),
)
def test_inside_the_hours_the_wall_clock_shows_them_but_for_clock_changes(
    naive: datetime, zone: ZoneInfo, start: time, end: time
) -> None:
    if start == end:
        return
    now = naive.replace(tzinfo=UTC)
    span = Hours(start, end).next_span(now, zone)
    assert now < span.end
    assert span.start < span.end <= span.start + timedelta(hours=25)
    wall = span.start.astimezone(zone)
    assert (
        wall.time().replace(second=0) >= start
        or wall.utcoffset() != (span.start - timedelta(hours=2)).astimezone(zone).utcoffset()
    )
