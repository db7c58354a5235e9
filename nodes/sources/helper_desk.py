"""What the session helper says of sources that the agent's account may not read: states and counts, for as long as it is there.

A report names every source that it is about; one that is older than ``STALE_S`` counts for nothing: the phase is on again and
the progress unknown. Sources that the agent reads itself are never taken from a report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from nodes.sources.views import PhaseUpdate
from policies.sources.meaning import PhaseState
from policies.sources.progress import ProgressTrack

if TYPE_CHECKING:
    from nodes.sources.helper_rows import Row

__all__ = ["HELPER_BEATS_S", "STALE_S", "Helped", "HelperDesk", "Source", "below"]

HELPER_BEATS_S = 1.0
STALE_S = 5.0

Key = tuple[str, Literal["progress", "phase"], int]


@dataclass(frozen=True, slots=True)
class Source:
    """A source that a helper may report: where it lies, and whether the agent cannot read it itself."""

    pattern: str
    needs_helper: Callable[[], bool]


@dataclass(slots=True)
class Helped:
    """What is known of one source through the helper."""

    row: Row
    at_s: float
    track: ProgressTrack = field(default_factory=ProgressTrack)


def below(pattern: str, home: str) -> bool:
    """Whether a pattern names files under ``home`` and, as written, nothing outside of it."""
    home = home.rstrip("/")
    parts = pattern.split("/")
    return bool(home) and os.path.isabs(home) and pattern.startswith(home + "/") and ".." not in parts


class HelperDesk:
    """Takes reports, and forgets them when they are stale."""

    def __init__(self) -> None:
        self._sources: Mapping[Key, Source] = {}
        self._known: dict[Key, Helped] = {}

    def configure(self, sources: Mapping[Key, Source]) -> None:
        """The section's sources in files. A section set anew is reported anew."""
        self._sources = sources
        self._known.clear()

    def asked_of(self, home: str) -> list[Key]:
        """The sources that a helper in this home is to read."""
        return [key for key, source in self._sources.items() if below(source.pattern, home) and source.needs_helper()]

    def helped(self, key: Key, now_s: float) -> Helped | None:
        """What the helper says of a source, if it said so lately and the agent cannot read it itself."""
        known, source = self._known.get(key), self._sources.get(key)
        if known is None or source is None or now_s - known.at_s > STALE_S or not source.needs_helper():
            return None
        return known

    def take(self, home: str, rows: Sequence[Row], now_s: float) -> list[PhaseUpdate]:
        """A report of the account whose home that is; rows about anything else are left out. The phases that changed."""
        updates: list[PhaseUpdate] = []
        asked = set(self.asked_of(home))
        for row in rows:
            if row.key not in asked:
                continue
            before = self._state(row.key, now_s)
            known = self._known.get(row.key)
            if known is None:
                known = self._known[row.key] = Helped(row, now_s)
            elif now_s - known.at_s > STALE_S:
                known.track.break_here()
            known.row, known.at_s = row, now_s
            if row.role == "progress":
                for when_s, events in row.points:
                    if events < 0.0:
                        known.track.break_here()
                    elif when_s <= now_s + 1.0:
                        known.track.add_known(when_s, events)
            elif (after := self._state(row.key, now_s)) != before:
                updates.append(self._update(row, before, after, "helper"))
        return updates

    def expire(self, now_s: float) -> list[PhaseUpdate]:
        """Forget what is stale: phases that were off by such a report are on again."""
        updates = []
        for key, known in list(self._known.items()):
            if now_s - known.at_s <= STALE_S:
                continue
            if known.row.role == "phase":
                del self._known[key]
                if known.row.readable and known.row.state != "on":
                    updates.append(self._update(known.row, known.row.state, "on", "tick"))
        return updates

    def _state(self, key: Key, now_s: float) -> PhaseState:
        known = self.helped(key, now_s)
        return known.row.state if known is not None and known.row.readable else "on"

    def _update(self, row: Row, before: PhaseState, after: PhaseState, how: Literal["helper", "tick"]) -> PhaseUpdate:
        why = row.why if how == "helper" else "the session helper no longer reports it"
        code = "PROTECTION_SOURCE_NEEDS_HELPER" if how == "tick" else ""
        path = self._sources[row.key].pattern
        return PhaseUpdate(row.rule, row.index, before, after, how, row.mtime_s, row.line_s, path, why, code)
