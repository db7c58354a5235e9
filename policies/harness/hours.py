"""The owner's hours of the day, ``22:00-06:30`` in the node's local time, as instants.

Local times are turned into instants one by one and compared in UTC only: a night with a clock change is an hour longer or
shorter, and arithmetic between two local times would not see it. Source: ``harness.md``, "The sweep".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from policies.instants import aware_utc
from policies.refusal import Refused

__all__ = ["HOURS_PATTERN", "Hours", "Span", "parse_hours"]

# For forms: empty, or two times; whether these are times ``parse_hours`` says.
HOURS_PATTERN = r"^$|^\d{1,2}:\d{2}\s*[-–]\s*\d{1,2}:\d{2}$"
_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*[-–]\s*([01]?\d|2[0-3]):([0-5]\d)")
# A clock change is found to this, in seconds; they happen at whole minutes.
_FOUND_TO_S = 0.5


@dataclass(frozen=True, slots=True)
class Span:
    """One night's hours as instants in UTC, the end not part of them."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Hours:
    """From ``start`` to ``end`` by the clock on the wall; an end that is not after the start is on the next day."""

    start: time
    end: time

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"

    def span(self, now: datetime, zone: tzinfo) -> Span | None:
        """The hours that ``now`` (aware) lies in, or None where it lies in none."""
        now = aware_utc(now)
        return next((span for span in self._around(now, zone) if span.start <= now < span.end), None)

    def next_span(self, now: datetime, zone: tzinfo) -> Span:
        """The hours that ``now`` lies in, else the next to come."""
        now = aware_utc(now)
        return next(span for span in self._around(now, zone) if now < span.end)

    def left_s(self, now: datetime, zone: tzinfo) -> float:
        """Seconds until these hours end; 0 outside them."""
        span = self.span(now, zone)
        return 0.0 if span is None else (span.end - aware_utc(now)).total_seconds()

    def _around(self, now: datetime, zone: tzinfo) -> list[Span]:
        """The spans that begin from two days before to three days after, without empty ones, in order."""
        today = now.astimezone(zone).date()
        overnight = self.end <= self.start
        found = []
        for days in range(-2, 4):
            day = today + timedelta(days=days)
            start = _first_moment(day, self.start, zone)
            end = _first_moment(day + timedelta(days=1) if overnight else day, self.end, zone)
            if start < end:  # hours that a clock change skips whole are no hours
                found.append(Span(start, end))
        return found


def parse_hours(text: str) -> Hours:
    """``22:00-06:30``.

    Raises:
        Refused: it is none, or names no time at all (start and end alike).
    """
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise _refused(text, "it is no span of the day")
    numbers = [int(part) for part in found.groups()]
    hours = Hours(time(numbers[0], numbers[1]), time(numbers[2], numbers[3]))
    if hours.start == hours.end:
        raise _refused(text, "it begins and ends at the same time; leave it out for the whole day")
    return hours


def _refused(text: str, why: str) -> Refused:
    return Refused("SWEEP_BAD_HOURS", f"hours {text!r}", why, "write them as 22:00-06:30, in the node's local time")


def _first_moment(day: date, at: time, zone: tzinfo) -> datetime:
    """The first instant at which the clock of ``zone`` shows ``day`` and ``at``, or has jumped past it.

    So hours that end at a time that comes twice end the first time, and one that a jump leaves out is the jump.
    """
    wall = datetime.combine(day, at)
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == wall:
        return first
    before, after = wall.replace(tzinfo=zone, fold=1).astimezone(UTC), first
    offset = before.astimezone(zone).utcoffset()
    while (after - before).total_seconds() > _FOUND_TO_S:
        middle = before + (after - before) / 2
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return (after + timedelta(milliseconds=500)).replace(microsecond=0)
