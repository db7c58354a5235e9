"""What the hub tells about sources: immutable answers, and the one place where "unreadable" becomes "on"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policies.sources.meaning import PhaseState
from policies.sources.progress import ProgressTrack

__all__ = ["How", "PhaseUpdate", "PhaseView", "ProgressView"]

How = Literal["event", "poll", "tick", "helper"]


@dataclass(frozen=True, slots=True)
class PhaseUpdate:
    """A phase changed.

    Attributes:
        how: how it was seen: an event, the 250 ms check, the tick, or the session helper's report.
        source_mtime_s: the file's modification time, wall clock; None without a file.
        line_time_s: the line's own time, wall clock, where it carries one.
        why: why the phase counts as on without a line that says so; empty otherwise.
    """

    rule_id: str
    index: int
    old: PhaseState
    new: PhaseState
    how: How
    source_mtime_s: float | None
    line_time_s: float | None
    path: str | None
    why: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A phase now. ``state`` is what counts: on for a source that cannot be read."""

    state: PhaseState
    readable: bool
    why: str
    code: str
    remedy: str
    path: str | None
    kind: str
    reader: Literal["agent", "helper"] = "agent"


@dataclass(frozen=True, slots=True)
class ProgressView:
    """A progress source now. An unreadable one counts as harm, whatever its track still holds."""

    track: ProgressTrack
    readable: bool
    why: str
    code: str
    remedy: str
    path: str | None
    kind: str
    counts: Literal["events", "counter", "rate"]
    reader: Literal["agent", "helper"] = "agent"
