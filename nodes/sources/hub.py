"""All sources of the section in force: configured, watched, read, and asked.

The loop waits on ``fileno()`` and calls ``poll("event")`` when it is ready, and ``poll("tick")`` at each tick, which looks
at every file whatever events said. Two rules that name the same file share one reading.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from nodes.clock import monotonic_s
from nodes.sources import matching
from nodes.sources.feed import Feed, Phase, Progress
from nodes.sources.follower import Follower
from nodes.sources.views import How, PhaseUpdate, PhaseView, ProgressView
from nodes.sources.watch import Watch
from policies.section.models import Section
from policies.section.sources import JsonlEventPhase, JsonlFieldPhase, JsonlProgress, LogProgress
from policies.sources.progress import ProgressTrack, live_rate
from policies.sources.timed import check_timed

__all__ = ["SourceHub"]

# Wake-ups that changed no phase, a second in the long run and at once. A source that floods makes the watcher rest, for
# 20 ms at most, so that thousands of lines a second cost one wake-up for many of them. Phase changes never make it rest.
IDLE_WAKES_PER_S = 25.0
IDLE_WAKES_AT_ONCE = 50.0
MAX_REST_S = 0.02
# Growth that no event told of, this often in a row, means that the file system gives none.
UNANNOUNCED = 2
MAX_SETTLE = 4
MAX_ASKED = 64


class SourceHub:
    """The sources of one section.

    Args:
        clock: monotonic seconds.
        wall: seconds of the wall clock, to compare with file times and line stamps.
        watch: the watcher; by default one inotify instance, or the 250 ms check.
    """

    def __init__(
        self,
        clock: Callable[[], float] = monotonic_s,
        *,
        wall: Callable[[], float] = time.time,
        watch: Watch | None = None,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._watch = watch if watch is not None else Watch()
        self._feeds: dict[str, Feed] = {}
        self._progress: dict[str, tuple[Feed, Progress]] = {}
        self._phases: dict[tuple[str, int], tuple[Feed, Phase]] = {}
        self._asked: dict[tuple[str, bool], list[tuple[Feed, bool]]] = {}
        self._behind = False
        self._wakes_left = IDLE_WAKES_AT_ONCE
        self._woke_at_s = clock()

    def fileno(self) -> int:
        """Ready when something may have changed, and when it is time for the 250 ms check."""
        return self._watch.fileno()

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.follower.close()
        self._feeds.clear()
        self._watch.close()

    @property
    def watching(self) -> str:
        """How changes are seen, in words."""
        return self._watch.describe()

    def configure(self, section: Section, owner_home: str) -> None:
        """Takes the sources of ``section``; what it has in common with the section before keeps its track and phase.

        Reads every source once, so that ``phase`` and ``progress`` answer from what is there. ``~`` is ``owner_home``.
        """
        before, before_progress, before_phases = self._feeds, self._progress, self._phases
        self._feeds, self._progress, self._phases = {}, {}, {}
        self._asked.clear()

        def feed_of(file: str) -> tuple[Feed, bool]:
            pattern = matching.expand_home(file, owner_home)
            kept = before.get(pattern)
            if pattern not in self._feeds:
                feed = Feed(kept.follower if kept else Follower(pattern, owner_home=owner_home))
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
        self.poll("tick")

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
            updates = self._poll_events()
            if not updates:
                self._rest()
            return updates
        announced, _ = self._watch.changed()
        return self._read([(feed, True) for feed in self._feeds.values()], how, announced)

    def _poll_events(self) -> list[PhaseUpdate]:
        paths, everything = self._watch.changed()
        todo = self._concerned(paths, everything)
        updates = self._read(todo, "event", paths)
        if everything:
            rest = [(feed, True) for feed in self._feeds.values() if all(feed is not done for done, _ in todo)]
            updates += self._read(rest, "poll", paths)
        return updates

    def _concerned(self, paths: dict[str, bool], everything: bool) -> list[tuple[Feed, bool]]:
        """The feeds to read, and which of them may follow another file now."""
        if len(paths) == 1 and not everything and not self._behind:
            # one known file grew: by far the most frequent, and between a phase's line and the pause
            event = next(iter(paths.items()))
            if event not in self._asked:
                if len(self._asked) >= MAX_ASKED:  # a neighbour that makes files without end
                    self._asked.clear()
                self._asked[event] = self._touched(paths, everything)
            return self._asked[event]
        return self._touched(paths, everything)

    def _touched(self, paths: dict[str, bool], everything: bool) -> list[tuple[Feed, bool]]:
        todo: list[tuple[Feed, bool]] = []
        for feed in self._feeds.values():
            rescan = concerned = False
            for path, other_file in paths.items():
                touched, again = feed.touched(path, other_file)
                concerned |= touched
                rescan |= again
            if concerned or (feed.behind and not everything):
                todo.append((feed, rescan))
        return todo

    def _read(self, todo: list[tuple[Feed, bool]], how: How, announced: dict[str, bool]) -> list[PhaseUpdate]:
        updates: list[PhaseUpdate] = []
        rescanned: list[Feed] = []
        behind = False
        for feed, rescan in todo:
            found, reading = feed.read(self._clock(), self._wall(), how, rescan=rescan)
            updates += found
            behind |= reading.behind
            if rescan:
                rescanned.append(feed)
            if how != "event" and not reading.behind:
                self._heed(feed, bool(reading.records), announced)
            elif reading.records:
                feed.unannounced = 0
        for _ in range(MAX_SETTLE):
            # a directory that is watched from now on may have got a file just before
            if not rescanned or not self._watch_dirs():
                break
            for feed in rescanned:
                found, reading = feed.read(self._clock(), self._wall(), how, rescan=True)
                updates += found
                behind |= reading.behind
        if rescanned:
            self._asked.clear()  # a feed may follow another file, or look elsewhere
        self._behind = any(feed.behind for feed in self._feeds.values())
        if behind:
            self._watch.wake_soon()
        return updates

    def _watch_dirs(self) -> bool:
        dirs = {path for feed in self._feeds.values() for path in feed.follower.dirs}
        return self._watch.set_dirs(dirs)

    def _heed(self, feed: Feed, grew: bool, announced: dict[str, bool]) -> None:
        """Notices files that grow without events (network, overlay and bind mounts)."""
        if not grew:
            return
        told = any(feed.touched(path, other)[0] for path, other in announced.items())
        if not told and self._watch.how(feed.follower.dirs) == "inotify":
            late, _ = self._watch.changed()  # written between the drain and the look
            told = any(feed.touched(path, other)[0] for path, other in late.items())
            announced.update(late)
        feed.unannounced = 0 if told else feed.unannounced + 1
        self._watch.set_muted(any(other.unannounced >= UNANNOUNCED for other in self._feeds.values()))

    def _rest(self) -> None:
        now_s = self._clock()
        earned = IDLE_WAKES_PER_S * (now_s - self._woke_at_s)
        self._woke_at_s = now_s
        self._wakes_left = min(IDLE_WAKES_AT_ONCE, self._wakes_left + earned) - 1.0
        if self._wakes_left < 0.0:
            self._watch.rest(min(MAX_REST_S, -self._wakes_left / IDLE_WAKES_PER_S))
            self._wakes_left = max(self._wakes_left, -IDLE_WAKES_PER_S * MAX_REST_S)

    # -- what is asked

    def progress(self, rule_id: str) -> ProgressView:
        """The rule's progress source. Raises KeyError for a rule without one."""
        feed, progress = self._progress[rule_id]
        return feed.progress_view(progress)

    def phase(self, rule_id: str, index: int) -> PhaseView:
        """The rule's phase of that ``during`` block. Raises KeyError where there is none."""
        feed, phase = self._phases[(rule_id, index)]
        return feed.phase_view(phase)

    def has_progress(self, rule_id: str) -> bool:
        return rule_id in self._progress

    def tracks(self) -> Iterator[tuple[str, ProgressTrack]]:
        for rule_id, (_, progress) in self._progress.items():
            yield rule_id, progress.track

    def describe(self) -> list[dict[str, Any]]:
        """A row a source, as the verb ``sources`` gives them; latencies are the journal's to fill in."""
        now_s = self._clock()
        rows: list[dict[str, Any]] = []
        for feed, progress in self._progress.values():
            rows.append(self._progress_row(feed, progress, now_s))
        for feed, phase in self._phases.values():
            view = feed.phase_view(phase)
            rows.append(
                self._row(feed, phase.rule_id, "phase", phase.index, view)
                | {"phase": view.state, "skipped": phase.meaning.skipped.as_dict()}
            )
        return rows

    def _progress_row(self, feed: Feed, progress: Progress, now_s: float) -> dict[str, Any]:
        view = feed.progress_view(progress)
        rate = live_rate(progress.track, now_s, progress.window_s)
        timed = check_timed(progress.track.recent_reads())
        return self._row(feed, progress.rule_id, "progress", 0, view) | {
            "rate": rate.per_s if view.readable else None,
            "rate_window_s": rate.window_s,
            "why": view.why or rate.why,
            "counts": view.counts,
            "timed": timed.looks_timed,
            "timed_why": timed.words,
            "skipped": progress.meaning.skipped.as_dict(),
        }

    def _row(self, feed: Feed, rule: str, role: str, index: int, view: ProgressView | PhaseView) -> dict[str, Any]:
        return {
            "rule": rule,
            "role": role,
            "index": index,
            "kind": view.kind,
            "path": view.path if view.path is not None else feed.follower.pattern,
            "pattern": feed.follower.pattern,
            "state": "ok" if view.readable else "unreadable",
            "code": view.code,
            "why": view.why,
            "remedy": view.remedy,
            "rate": None,
            "phase": None,
            "reader": "agent",
            "uid": os.geteuid(),
            "watch": self._watch.how(feed.follower.dirs),
            "timed": None,
            "damage": feed.follower.damage,
            "latency_p50_ms": None,
            "latency_p99_ms": None,
        }
