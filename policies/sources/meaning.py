"""What one record of a source says: an event, a counter's value, a phase, or nothing.

A record is read once and never kept. What a program reports of its own speed (a ``throughput`` field) is never used:
a rate is our count over our clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic_core import from_json

from policies.patterns import TooLong, search
from policies.sources.json_lines import at_path, line_time_s, looks_whole, needle_of, read_object, same_json, stamp_s
from policies.sources.skipped import Skipped

__all__ = [
    "Counter",
    "EventPhaseMeaning",
    "FieldPhaseMeaning",
    "JsonlProgressMeaning",
    "LogProgressMeaning",
    "PhaseChange",
    "PhaseMeaning",
    "PhaseState",
    "ProgressEvent",
    "ProgressMeaning",
]

PhaseState = Literal["on", "off", "soon"]

# From so many records on it pays to look at all of them at once.
MANY = 8


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One step was done; ``time_s`` is the line's own stamp (seconds, any origin) where ``time_key`` names one."""

    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Counter:
    """A cumulative counter stood at ``value``."""

    value: float


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """A line says that the phase is in ``state``; ``time_s`` is the line's own wall time, where it has one."""

    state: PhaseState
    time_s: float | None = None


class ProgressMeaning(Protocol):
    """Reads records of a progress source. ``counts``: what a record adds (an event each, or a counter). ``stamped``: events may carry
    times of their own.
    """

    counts: Literal["events", "counter"]
    stamped: bool
    skipped: Skipped

    def read(self, record: bytes) -> ProgressEvent | Counter | None: ...

    def read_all(self, records: Sequence[bytes]) -> list[ProgressEvent | Counter]: ...


class PhaseMeaning(Protocol):
    """Reads records of a phase source."""

    skipped: Skipped

    def read(self, record: bytes) -> PhaseChange | None: ...

    def read_all(self, records: Sequence[bytes]) -> list[PhaseChange]: ...


class JsonlProgressMeaning:
    """Lines whose ``event_key`` holds ``event`` count one each."""

    def __init__(self, event: Any, event_key: str = "event", time_key: str | None = None) -> None:
        self.event = event
        self.event_key = event_key
        self.time_key = time_key
        self.counts: Literal["events", "counter"] = "events"
        self.stamped = time_key is not None
        self.skipped = Skipped()
        self._needle = needle_of(event)
        self._is_plain = bool(self._needle) and "." not in event_key and time_key is None
        self._dense = False

    def read(self, record: bytes) -> ProgressEvent | None:
        obj = read_object(record, self.skipped)
        if obj is None or not same_json(at_path(obj, self.event_key), self.event):
            return None
        if self.time_key is None:
            return _PLAIN_EVENT
        when = stamp_s(at_path(obj, self.time_key))
        if when is None:
            self.skipped.no_time += 1
            return _PLAIN_EVENT
        return ProgressEvent(when)

    def read_all(self, records: Sequence[bytes]) -> list[ProgressEvent | Counter]:
        """As ``read`` for each; lines that cannot hold the event are only looked at from outside."""
        events = self._count_plain(records) if self._dense else None
        if events is not None:
            self._dense = 2 * events > len(records)
        else:
            some = [record for record in records if self._needle in record or not looks_whole(record)]
            # where few lines tell of something else, looking at each before it is read costs more than it saves
            self._dense = self._is_plain and 2 * len(some) > len(records)
            events = self._count_plain(some) if self._is_plain else None
            if events is None:
                return [seen for record in some if (seen := self.read(record)) is not None]
        return [_PLAIN_EVENT] * events

    def _count_plain(self, records: Sequence[bytes]) -> int | None:
        """How many hold the event; None where one is no object, which ``read`` must say."""
        key = self.event_key
        try:
            return [from_json(record).get(key) for record in records].count(self.event)
        except (ValueError, AttributeError):
            return None


_PLAIN_EVENT = ProgressEvent()


class LogProgressMeaning:
    """Matches of a regular expression count one each; with a capture group, the group is a cumulative counter.

    A line on which the search was given up is counted (``too_long``) and says nothing: from then on the source counts too
    little, so it may not be believed.

    A group must hold a plain or decimal number ("1250", "12.5", "1e3") of at most 2**53, beyond which a step of one cannot
    be told; anything else is counted and skipped, "1,250" too: which of its readings is meant cannot be told.
    """

    def __init__(self, log_regex: str) -> None:
        self._regex = re.compile(log_regex)
        if self._regex.groups > 1:
            raise ValueError(f"log_regex may have one capture group at most, this has {self._regex.groups}")
        self.counts: Literal["events", "counter"] = "counter" if self._regex.groups else "events"
        self.stamped = False
        self.skipped = Skipped()

    def read(self, record: bytes) -> ProgressEvent | Counter | None:
        try:
            text = record.decode()
        except UnicodeDecodeError:
            self.skipped.no_utf8 += 1
            return None
        try:
            match = search(self._regex, text)
        except TooLong:
            self.skipped.too_long += 1
            return None
        if match is None:
            return None
        if self.counts == "events":
            return _PLAIN_EVENT
        value = _number(match.group(1))
        if value is None:
            self.skipped.no_number += 1
            return None
        return Counter(value)

    def read_all(self, records: Sequence[bytes]) -> list[ProgressEvent | Counter]:
        return [found for record in records if (found := self.read(record)) is not None]


LARGEST_COUNT = 2.0**53
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\s*", re.ASCII)


def _number(text: str | None) -> float | None:
    if text is None or len(text) > 64:
        return None
    if not (text.isascii() and text.isdigit()) and _NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    return value if abs(value) <= LARGEST_COUNT else None


def _changes(
    records: Sequence[bytes], needles: Sequence[bytes], read: Callable[[bytes], PhaseChange | None]
) -> list[PhaseChange]:
    if len(records) >= MANY and _no_word(b"\n".join(records), len(records), needles):
        return []
    found = []
    for record in records:
        for needle in needles:
            if needle in record:
                break
        else:
            if looks_whole(record):
                continue
        if (change := read(record)) is not None:
            found.append(change)
    return found


def _no_word(joined: bytes, count: int, needles: Sequence[bytes]) -> bool:
    """Whether each of ``count`` records looks whole from outside and none holds a needle: in a file that tells of much else, almost
    always. As ``looks_whole`` for each, in a fraction of its time.
    """
    return (
        joined[:1] == b"{"
        and joined[-1:] == b"}"
        and joined.count(b"}\n{") == joined.count(b"\n") == count - 1
        and b"\\" not in joined
        and not any(needle in joined for needle in needles)
    )


class EventPhaseMeaning:
    """On after ``enter``, off after ``exit``, soon after ``enter_soon``."""

    def __init__(self, enter: Any, exit: Any, enter_soon: Any = None, event_key: str = "event") -> None:
        self._states: tuple[tuple[Any, PhaseState], ...] = (
            (enter, "on"),
            (exit, "off"),
            *(((enter_soon, "soon"),) if enter_soon is not None else ()),
        )
        self._event_key = event_key
        self._needles = [needle_of(name) for name, _ in self._states]
        self.skipped = Skipped()

    def read_all(self, records: Sequence[bytes]) -> list[PhaseChange]:
        """As ``read`` for each; lines that cannot hold the names are only looked at from outside."""
        return _changes(records, self._needles, self.read)

    def read(self, record: bytes) -> PhaseChange | None:
        obj = read_object(record, self.skipped)
        if obj is None:
            return None
        name = at_path(obj, self._event_key)
        for wanted, state in self._states:
            if same_json(name, wanted):
                return PhaseChange(state, line_time_s(obj))
        return None


class FieldPhaseMeaning:
    """On while ``field`` of that event's newest line holds one of ``on``; soon likewise; off for any other value."""

    def __init__(
        self, event: Any, field: str, on: Sequence[Any], soon: Sequence[Any] = (), event_key: str = "event"
    ) -> None:
        self._event = event
        self._event_key = event_key
        self._field = field
        self._on = tuple(on)
        self._soon = tuple(soon)
        self.skipped = Skipped()

    def read_all(self, records: Sequence[bytes]) -> list[PhaseChange]:
        """As ``read`` for each; lines that cannot hold the event are only looked at from outside."""
        return _changes(records, [needle_of(self._event)], self.read)

    def read(self, record: bytes) -> PhaseChange | None:
        obj = read_object(record, self.skipped)
        if obj is None or not same_json(at_path(obj, self._event_key), self._event):
            return None
        value = at_path(obj, self._field)
        state: PhaseState = "off"
        if any(same_json(value, wanted) for wanted in self._on):
            state = "on"
        elif any(same_json(value, wanted) for wanted in self._soon):
            state = "soon"
        return PhaseChange(state, line_time_s(obj))
