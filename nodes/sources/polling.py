"""Which feeds are read when, and what becomes of files that grow without events, or of sources that flood."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nodes.sources.feed import Feed
from nodes.sources.views import How, PhaseUpdate
from nodes.sources.watch import Watch

__all__ = ["Polling"]

# Wake-ups that changed no phase, a second in the long run and at once. A source that floods makes the watcher rest, for
# 20 ms at most, so that thousands of lines a second cost one wake-up for many of them. Phase changes never make it rest.
IDLE_WAKES_PER_S = 25.0
IDLE_WAKES_AT_ONCE = 50.0
MAX_REST_S = 0.02
# Growth that no event told of, this often in a row, means that the file system gives none.
UNANNOUNCED = 2
MAX_SETTLE = 4
MAX_ASKED = 64


class Polling:
    """Of the feeds that it was given last.

    Args:
        clock: monotonic seconds.
        wall: seconds of the wall clock, to compare with file times and line stamps.
    """

    def __init__(self, watch: Watch, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._watch = watch
        self._clock = clock
        self._wall = wall
        self._feeds: tuple[Feed, ...] = ()
        self._asked: dict[tuple[str, bool], list[tuple[Feed, bool]]] = {}
        self._behind = False
        self._wakes_left = IDLE_WAKES_AT_ONCE
        self._woke_at_s = clock()

    def take(self, feeds: Iterable[Feed]) -> None:
        self._feeds = tuple(feeds)
        self._asked.clear()

    def event(self) -> list[PhaseUpdate]:
        """Reads what an event told of; the phase changes in their order."""
        updates = self._read_told()
        if not updates:
            self._rest()
        return updates

    def all(self, how: How) -> list[PhaseUpdate]:
        """Reads every feed whatever events said."""
        announced, _ = self._watch.changed()
        return self._read([(feed, True) for feed in self._feeds], how, announced)

    def _read_told(self) -> list[PhaseUpdate]:
        paths, everything = self._watch.changed()
        todo = self._concerned(paths, everything)
        updates = self._read(todo, "event", paths)
        if everything:
            rest = [(feed, True) for feed in self._feeds if all(feed is not done for done, _ in todo)]
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
        for feed in self._feeds:
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
        self._behind = any(feed.behind for feed in self._feeds)
        if behind:
            self._watch.wake_soon()
        return updates

    def _watch_dirs(self) -> bool:
        dirs = {path for feed in self._feeds for path in feed.follower.dirs}
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
        self._watch.set_muted(any(other.unannounced >= UNANNOUNCED for other in self._feeds))

    def _rest(self) -> None:
        now_s = self._clock()
        earned = IDLE_WAKES_PER_S * (now_s - self._woke_at_s)
        self._woke_at_s = now_s
        self._wakes_left = min(IDLE_WAKES_AT_ONCE, self._wakes_left + earned) - 1.0
        if self._wakes_left < 0.0:
            self._watch.rest(min(MAX_REST_S, -self._wakes_left / IDLE_WAKES_PER_S))
            self._wakes_left = max(self._wakes_left, -IDLE_WAKES_PER_S * MAX_REST_S)
