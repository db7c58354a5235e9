"""All sources of the section in force: configured, watched, read, and asked.

The loop waits on ``fileno()`` and calls ``poll("event")`` when it is ready, and ``poll("tick")`` at each tick, which looks
at every file whatever events said. Two rules that name the same file share one reading.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodes.clock import monotonic_s
from nodes.sources import matching
from nodes.sources.feed import Feed, Phase, Progress
from nodes.sources.follower import Follower
from nodes.sources.helper_desk import HelperDesk, Source
from nodes.sources.polling import Polling
from nodes.sources.probe import Owner, Probe
from nodes.sources.programs import ProgramPhase, ProgramPhases
from nodes.sources.reader import FileReader
from nodes.sources.source_rows import phase_row, progress_row
from nodes.sources.views import How, PhaseUpdate, PhaseView, ProgressView
from nodes.sources.watch import Watch
from policies.rules import ProcInfo
from policies.section.models import Section
from policies.section.sources import (
    ExecPhase,
    ExecProgress,
    JsonlEventPhase,
    JsonlFieldPhase,
    JsonlProgress,
    LogProgress,
)
from policies.sources.meaning import PhaseMeaning, ProgressMeaning
from policies.sources.windows import NOTHING_YET

if TYPE_CHECKING:
    from nodes.sources.helper_rows import Row

__all__ = ["SourceHub"]


class SourceHub:
    """The sources of one section.

    Args:
        clock: monotonic seconds.
        wall: seconds of the wall clock, to compare with file times and line stamps.
        watch: the watcher; by default one inotify instance, or the 250 ms check.
        helper_socket: where a session helper reports, for the remedy of what this account may not read; None: nowhere.
    """

    def __init__(
        self,
        clock: Callable[[], float] = monotonic_s,
        *,
        wall: Callable[[], float] = time.time,
        watch: Watch | None = None,
        helper_socket: str | None = None,
    ) -> None:
        self._clock = clock
        self._watch = watch if watch is not None else Watch()
        self._polling = Polling(self._watch, clock, wall)
        self._helper_socket = helper_socket
        self._owner: Owner | None = None
        self.desk = HelperDesk()
        self._probes: dict[str, Probe] = {}
        self._programs = ProgramPhases()
        self._feeds: dict[str, Feed] = {}
        self._progress: dict[str, tuple[Feed, Progress]] = {}
        self._phases: dict[tuple[str, int], tuple[Feed, Phase]] = {}

    def fileno(self) -> int:
        """Ready when something may have changed, and when it is time for the 250 ms check."""
        return self._watch.fileno()

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.follower.close()
        self._feeds.clear()
        self._polling.take(())
        self._watch.close()

    @property
    def watching(self) -> str:
        """How changes are seen, in words."""
        return self._watch.describe()

    def configure(self, section: Section, owner: Owner | str) -> None:
        """Takes the sources of ``section``; what it has in common with the section before keeps its track and phase.

        Reads every source once, so that ``phase`` and ``progress`` answer from what is there. ``~`` is the owner's home,
        and its probes run as the owner (a path alone: the home, and this account).
        """
        owner = owner if isinstance(owner, Owner) else Owner(os.geteuid(), owner)
        owner_home = owner.home
        self._configure_programs(section, owner)
        if owner != self._owner:
            # what one account may read says nothing of another
            for feed in self._feeds.values():
                feed.follower.close()
            self._feeds, self._progress, self._phases = {}, {}, {}
        self._owner = owner
        before, before_progress, before_phases = self._feeds, self._progress, self._phases
        self._feeds, self._progress, self._phases = {}, {}, {}
        self._polling.take(())

        def feed_of(file: str) -> tuple[Feed, bool]:
            pattern = matching.expand_home(file, owner_home)
            kept = before.get(pattern)
            if pattern not in self._feeds:
                feed = Feed(kept.follower if kept else self._follower(pattern, owner))
                if kept is not None:
                    feed.unreadable = kept.unreadable
                self._feeds[pattern] = feed
            return self._feeds[pattern], kept is not None

        for rule in section.rules:
            if rule.protect is not None and isinstance(rule.protect.source, (JsonlProgress, LogProgress)):
                progress = Progress(rule.id, rule.protect.source, rule.protect.window_s)
                feed, kept = feed_of(rule.protect.source.file)
                known = before_progress.get(rule.id)
                if kept and known is not None and known[1].source == progress.source:
                    progress, window_s = known[1], progress.window_s
                    progress.window_s = window_s
                feed.progress.append(progress)
                self._progress[rule.id] = (feed, progress)
            for index, during in enumerate(rule.during):
                if isinstance(during.source, (JsonlEventPhase, JsonlFieldPhase)):
                    self._add_phase(Phase(rule.id, index, during.source), *feed_of(during.source.file), before_phases)
        kept_followers = {id(feed.follower) for feed in self._feeds.values()}
        for feed in before.values():
            if id(feed.follower) not in kept_followers:
                feed.follower.close()
        self.desk.configure(
            {(rule, "progress", 0): _asks_helper(feed) for rule, (feed, _) in self._progress.items()}
            | {(rule, "phase", index): _asks_helper(feed) for (rule, index), (feed, _) in self._phases.items()}
        )
        self._polling.take(self._feeds.values())
        self.poll("tick")

    def _follower(self, pattern: str, owner: Owner) -> Follower:
        return Follower(pattern, owner_home=owner.home, owner_uid=owner.uid, helper_socket=self._helper_socket)

    def _configure_programs(self, section: Section, owner: Owner) -> None:
        """Probes and phases of running programs, which need no file."""
        before, self._probes = self._probes, {}
        phases = []
        for rule in section.rules:
            source = rule.protect.source if rule.protect is not None else None
            if isinstance(source, ExecProgress) and rule.protect is not None:
                kept = before.get(rule.id)
                same = kept is not None and (kept.argv, kept.owner) == (source.exec, owner)
                probe = kept if kept is not None and same else Probe(rule.id, source.exec, 1.0, owner)
                probe.every_s = rule.protect.window_s
                self._probes[rule.id] = probe
            for index, during in enumerate(rule.during):
                if isinstance(during.source, ExecPhase):
                    phases.append(ProgramPhase(rule.id, index, during.source, owner.uid, owner.home))
        self._programs.configure(phases)

    def look_at_programs(self, snapshot: Mapping[int, ProcInfo], fleet: Collection[int]) -> list[PhaseUpdate]:
        """Phases of running programs, from the process table. Those of processes of ``fleet`` are none of the owner's."""
        return self._programs.look(snapshot, fleet, self._clock())

    def take_report(self, home: str, rows: Sequence[Row]) -> list[PhaseUpdate]:
        """What the session helper in ``home`` says of sources that lie there; the phases that changed."""
        return self.desk.take(home, rows, self._clock())

    def _add_phase(
        self, phase: Phase, feed: Feed, kept: bool, before: dict[tuple[str, int], tuple[Feed, Phase]]
    ) -> None:
        known = before.get((phase.rule_id, phase.index))
        if kept and known is not None and known[1].source == phase.source:
            phase = known[1]
        elif kept:
            # the file is in hand already: what it said before is history for this phase only
            history, whole = feed.follower.look_back()
            phase.begin(history, whole, feed.unreadable)
        feed.phases.append(phase)
        self._phases[(phase.rule_id, phase.index)] = (feed, phase)

    def poll(self, how: How) -> list[PhaseUpdate]:
        """Reads what may have changed ("event"), or everything ("poll", "tick"); the phase changes in their order."""
        if how == "event":
            return self._polling.event()
        for probe in self._probes.values():
            probe.poll(self._clock())
        return self.desk.expire(self._clock()) + self._polling.all(how)

    # -- what is asked

    def progress(self, rule_id: str) -> ProgressView:
        """The rule's progress source. Raises KeyError for a rule without one."""
        if rule_id in self._probes:
            return self._probes[rule_id].view()
        feed, progress = self._progress[rule_id]
        view = feed.progress_view(progress)
        helped = self.desk.helped((rule_id, "progress", 0), self._clock())
        if helped is None:
            return view
        row = helped.row
        why = row.why if not row.readable else "" if helped.track.points else NOTHING_YET
        return replace(
            view,
            track=helped.track,
            why=why,
            counts=row.counts,
            **_as_helped(row),
        )

    def readable(self, rule_id: str) -> bool:
        """``progress(rule_id).readable`` alone. Raises KeyError for a rule without a source."""
        if rule_id in self._probes:
            return self._probes[rule_id].unreadable is None
        helped = self.desk.helped((rule_id, "progress", 0), self._clock())
        if helped is not None:
            return helped.row.readable
        feed, progress = self._progress[rule_id]
        return feed.unreadable is None and progress.unreadable is None

    def phase(self, rule_id: str, index: int) -> PhaseView:
        """The rule's phase of that ``during`` block. Raises KeyError where there is none."""
        if (rule_id, index) in self._programs.by_key:
            return self._programs.by_key[(rule_id, index)].view()
        feed, phase = self._phases[(rule_id, index)]
        view = feed.phase_view(phase)
        helped = self.desk.helped((rule_id, "phase", index), self._clock())
        if helped is None:
            return view
        row = helped.row
        return replace(
            view,
            state=row.state if row.readable else "on",
            why=row.why,
            **_as_helped(row),
        )

    def source_of(
        self, rule_id: str, role: str, index: int
    ) -> tuple[JsonlProgress | LogProgress | JsonlEventPhase | JsonlFieldPhase, float]:
        """A source in a file, as the section has it, and the window of its live rate. Raises KeyError."""
        if role == "progress":
            progress = self._progress[rule_id][1]
            return progress.source, progress.window_s
        return self._phases[(rule_id, index)][1].source, 0.0

    def pattern_of(self, rule_id: str, role: str, index: int) -> str:
        """The absolute pattern that a source in a file follows. Raises KeyError."""
        feed = self._progress[rule_id][0] if role == "progress" else self._phases[(rule_id, index)][0]
        return feed.follower.pattern

    def followed(
        self, rule_id: str, index: int
    ) -> tuple[JsonlEventPhase | JsonlFieldPhase, FileReader, frozenset[str]] | None:
        """The source of a phase, the file in which it is read now, and the names that events may give that file.

        None for a phase that is read in no file, or in one that cannot be read.
        """
        feed, phase = self._phases.get((rule_id, index), (None, None))
        if feed is None or phase is None or phase.unreadable is not None or feed.follower.reader is None:
            return None
        paths = (feed.follower.path, feed.follower.real_path)
        return phase.source, feed.follower.reader, frozenset(os.path.basename(path) for path in paths if path)

    def look_out(self, seen: Callable[[bytes], bool], begin: Callable[[], object]) -> bool:
        """Have events read in a thread that calls ``seen`` first (``Watch.look_out``)."""
        return self._watch.look_out(seen, begin)

    def has_progress(self, rule_id: str) -> bool:
        return rule_id in self._progress or rule_id in self._probes

    def describe(self) -> list[dict[str, Any]]:
        """A row a source, as the verb ``sources`` gives them; latencies are the observer's to fill in."""
        now_s = self._clock()
        rows: list[dict[str, Any]] = []
        for rule_id, (feed, progress) in self._progress.items():
            more = self._of_file(feed, progress.meaning)
            rows.append(progress_row(rule_id, self.progress(rule_id), progress.window_s, now_s, more))
        for rule_id, probe in self._probes.items():
            more = {"watch": "tick", "uid": probe.owner.uid}
            rows.append(progress_row(rule_id, probe.view(), probe.every_s, now_s, more))
        for (rule_id, index), (feed, phase) in self._phases.items():
            more = self._of_file(feed, phase.meaning)
            rows.append(phase_row(rule_id, index, self.phase(rule_id, index), more))
        for (rule_id, index), program in self._programs.by_key.items():
            more = {"watch": "tick", "uid": program.owner_uid}
            rows.append(phase_row(rule_id, index, program.view(), more))
        return rows

    def _of_file(self, feed: Feed, meaning: ProgressMeaning | PhaseMeaning) -> dict[str, Any]:
        watch = self._watch.how(feed.follower.dirs)
        return {
            "pattern": feed.follower.pattern,
            "path": feed.follower.path or feed.follower.pattern,
            "watch": watch,
            "watch_why": self._watch.describe() if watch == "poll" else "",
            "damage": feed.follower.damage,
            "skipped": meaning.skipped.as_dict(),
        }


def _as_helped(row: Row) -> dict[str, Any]:
    """What the session helper's word on a source makes of its view."""
    return {
        "readable": row.readable,
        "code": "" if row.readable else "PROTECTION_SOURCE_UNREADABLE",
        "remedy": "" if row.readable else "see that the file is there and that its owner may read it",
        "reader": "helper",
    }


def _asks_helper(feed: Feed) -> Source:
    def needs() -> bool:
        return feed.unreadable is not None and feed.unreadable.code == "PROTECTION_SOURCE_NEEDS_HELPER"

    return Source(feed.follower.pattern, needs)
