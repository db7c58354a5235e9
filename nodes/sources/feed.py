"""One followed file and everything that is read from it: the tracks and phases of every rule that names it."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from nodes.sources.follower import Follower, Reading
from nodes.sources.unreadable import Unreadable, because_slow
from nodes.sources.views import How, PhaseUpdate, PhaseView, ProgressView
from policies.section.sources import JsonlEventPhase, JsonlFieldPhase, JsonlProgress, LogProgress
from policies.sources.meaning import (
    Counter,
    EventPhaseMeaning,
    FieldPhaseMeaning,
    JsonlProgressMeaning,
    LogProgressMeaning,
    PhaseMeaning,
    PhaseState,
    ProgressMeaning,
)
from policies.sources.progress import ProgressTrack
from policies.sources.windows import NOTHING_YET

__all__ = ["Feed", "Phase", "Progress", "phase_meaning", "progress_meaning"]

# A file that switches its phase thousands of times in one read: the newest changes are told, the older ones dropped.
MAX_CHANGES_A_READ = 64
_NOT_READ = Unreadable("PROTECTION_SOURCE_UNREADABLE", "not read yet", "wait for the next tick")


def progress_meaning(source: JsonlProgress | LogProgress) -> ProgressMeaning:
    if isinstance(source, JsonlProgress):
        return JsonlProgressMeaning(source.event, source.event_key, source.time_key)
    return LogProgressMeaning(source.log_regex)


def phase_meaning(source: JsonlEventPhase | JsonlFieldPhase) -> PhaseMeaning:
    if isinstance(source, JsonlEventPhase):
        return EventPhaseMeaning(source.enter, source.exit, source.enter_soon, source.event_key)
    return FieldPhaseMeaning(source.event, source.field, source.on, source.soon, source.event_key)


class Progress:
    """A rule's progress source: its meaning and its track."""

    def __init__(self, rule_id: str, source: JsonlProgress | LogProgress, window_s: float) -> None:
        self.rule_id = rule_id
        self.source = source
        self.window_s = window_s
        self.meaning = progress_meaning(source)
        self.track = ProgressTrack()
        self._last_arrival_s = float("-inf")

    @property
    def unreadable(self) -> Unreadable | None:
        """Why its lines are not believed, whatever the file gives."""
        if not self.meaning.skipped.too_long:
            return None
        return because_slow(self.meaning.skipped.too_long)

    def take(self, reading: Reading, arrival_s: float, wall_s: float, how: How) -> None:
        if reading.ended:
            self._add(reading.ended, arrival_s, wall_s, arrival_s)
        # A cumulative counter outlives lost lines, but not another program run; counted lines the other way round.
        if reading.replaced if self.meaning.counts == "counter" else reading.lost:
            self.track.break_here()
        if reading.records:
            written_s = arrival_s
            if how != "event" and reading.mtime_s is not None:
                written_s = min(arrival_s, max(self._last_arrival_s, arrival_s - (wall_s - reading.mtime_s)))
            self._add(reading.records, arrival_s, wall_s, written_s)
            self._last_arrival_s = arrival_s

    def _add(self, records: list[bytes], arrival_s: float, wall_s: float, written_s: float) -> None:
        found = self.meaning.read_all(records)
        if not found:
            return
        if self.meaning.counts == "counter":
            values = [item.value for item in found if isinstance(item, Counter)]
            self.track.add_counter(arrival_s, values, written_s=written_s)
            return
        stamps = (
            [item.time_s for item in found if not isinstance(item, Counter) and item.time_s is not None]
            if self.meaning.stamped
            else []
        )
        self.track.add_stamped(arrival_s, wall_s, stamps, written_s=written_s)
        self.track.add_events(arrival_s, len(found) - len(stamps), written_s=written_s)


class Phase:
    """A ``during`` block's phase.

    It is on while the source cannot be read; off when all of a file was seen and no line told of the phase; on when only
    the newest MiB was seen and no line told of it there, until one does.
    """

    def __init__(self, rule_id: str, index: int, source: JsonlEventPhase | JsonlFieldPhase) -> None:
        self.rule_id = rule_id
        self.index = index
        self.source = source
        self.meaning = phase_meaning(source)
        self.told: PhaseState | None = None
        self.whole = False  # nothing older can tell otherwise
        self.unreadable: Unreadable | None = _NOT_READ

    @property
    def state(self) -> PhaseState:
        if self.unreadable is not None:
            return "on"
        return self.told if self.told is not None else ("off" if self.whole else "on")

    @property
    def why(self) -> str:
        if self.unreadable is not None:
            return self.unreadable.why
        if self.told is None and not self.whole:
            return "no line of the file's last 1 MiB tells of the phase: it counts as on until one does"
        return ""

    def take(self, reading: Reading, how: How, path: str | None) -> list[PhaseUpdate]:
        changes: deque[PhaseUpdate] = deque(maxlen=MAX_CHANGES_A_READ)
        before = self.state

        def note(line_time_s: float | None = None) -> None:
            nonlocal before
            if (state := self.state) != before:
                changes.append(
                    PhaseUpdate(
                        self.rule_id,
                        self.index,
                        before,
                        state,
                        how,
                        reading.mtime_s,
                        line_time_s,
                        path,
                        self.why,
                        self.unreadable.code if self.unreadable is not None else "",
                    )
                )
                before = state

        def read(records: list[bytes]) -> None:
            for change in self.meaning.read_all(records):
                self.told = change.state
                note(change.time_s)

        read(reading.ended)
        was_unreadable = self.unreadable is not None
        if reading.history is not None:
            self.told, self.whole = self._newest(reading.history), reading.history_whole
        elif reading.history_whole and (reading.replaced or was_unreadable):
            self.told, self.whole = None, True
        self.unreadable = reading.unreadable
        if not was_unreadable or not reading.records:
            note()
        read(reading.records)
        note()
        return list(changes)

    def begin(self, history: list[bytes], whole: bool, unreadable: Unreadable | None) -> None:
        """Takes what a file already in hand said before."""
        self.told, self.whole, self.unreadable = self._newest(history), whole, unreadable

    def _newest(self, history: list[bytes]) -> PhaseState | None:
        changes = self.meaning.read_all(history)
        return changes[-1].state if changes else None


@dataclass(slots=True)
class Feed:
    """A pattern, its follower, and who reads along."""

    follower: Follower
    progress: list[Progress] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    unreadable: Unreadable | None = _NOT_READ
    unannounced: int = 0  # growths in a row that no event told of
    behind: bool = False

    def touched(self, path: str, other_file: bool) -> tuple[bool, bool]:
        """Whether a change at ``path`` concerns this feed, and whether another file may be the newest now."""
        current = self.follower.path
        if current is not None and path in (current, self.follower.real_path):
            return True, other_file
        if path in self.follower.dirs:
            return True, True
        if os.path.dirname(path) not in self.follower.dirs:
            return False, False
        name = os.path.basename(path)
        meant = any(fnmatchcase(name, part) for part in self.follower.pattern.split("/") if part)
        return meant, meant

    def read(self, arrival_s: float, wall_s: float, how: How, *, rescan: bool) -> tuple[list[PhaseUpdate], Reading]:
        reading = self.follower.poll(arrival_s, rescan=rescan)
        self.unreadable = reading.unreadable
        self.behind = reading.behind
        for progress in self.progress:
            progress.take(reading, arrival_s, wall_s, how)
        updates = [update for phase in self.phases for update in phase.take(reading, how, self.follower.path)]
        return updates, reading

    def progress_view(self, progress: Progress) -> ProgressView:
        bad = self.unreadable or progress.unreadable
        skipped = progress.meaning.skipped
        why = bad.why if bad is not None else ""
        if bad is None and progress.track.points == 0:
            why = NOTHING_YET
            if skipped.total:
                why += f"; {skipped.total} lines could not be read ({', '.join(skipped.as_dict())})"
        return ProgressView(
            track=progress.track,
            readable=bad is None,
            why=why,
            code=bad.code if bad is not None else "",
            remedy=bad.remedy if bad is not None else "",
            path=self.follower.path,
            kind=progress.source.kind,
            counts=progress.meaning.counts,
        )

    def phase_view(self, phase: Phase) -> PhaseView:
        bad = phase.unreadable
        return PhaseView(
            state=phase.state,
            readable=bad is None,
            why=phase.why,
            code=bad.code if bad is not None else "",
            remedy=bad.remedy if bad is not None else "",
            path=self.follower.path,
            kind=phase.source.kind,
        )
