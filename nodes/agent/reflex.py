"""Stops what a phase pauses in the moment its line is seen, from the lookout's thread, without waiting for the loop.

The loop prepares: for each phase of an ``immediate`` rule the file in which it is read, and for each attempt that it pauses a
pidfd of every process known of it, opened through the guard (so only of the spawn registry) and checked against its start ticks.
A pidfd is proof of identity for as long as it is open. ``glance``, in the thread, reads the new bytes, asks the source's
own meaning whether they end in a phase that is on, and sends SIGSTOP. It writes nothing and decides nothing for good: the loop
reads the same bytes a moment later in full and judges (holds what must be held, journals), and what was stopped here and is not to
be held goes on. An agent killed between the two leaves stopped processes to its launchers and to the adoption that
follows, as any hold does.

One lock keeps the thread's aims open while it uses them; the loop takes it only to exchange them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from nodes.clock import monotonic_s
from nodes.jobs.proctree import STOPPED
from nodes.sources.feed import phase_meaning
from nodes.sources.reader import FileReader
from policies.section.sources import JsonlEventPhase, JsonlFieldPhase
from policies.sources.glance import newest_state
from policies.sources.meaning import PhaseMeaning

__all__ = ["Reflex", "Stopped", "Wanted", "seen_stopped"]

# More new bytes than this at once are left to the loop.
PIECE_BYTES = 64 * 1024
# Of one attempt, the runner first, and of all; the others of a large tree are stopped by the loop.
AIMS_PER_ATTEMPT, AIMS_MAX = 32, 256
# For so long at most the core is left to the runners: each must be scheduled once more to stop, and on a busy machine all that
# the agent does next (walks, journal) would be done in their place. It looks in growing intervals whether they did.
LOOK_S = 20e-3
FIRST_LOOK_S = 1e-4

T = TypeVar("T")
Key = tuple[str, int]
Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A phase, and what it pauses: ``attempts`` as (id, processes as (pid, start ticks), the runner first).

    ``restarts``: of the reader, when this was made.
    """

    key: Key
    source: JsonlEventPhase | JsonlFieldPhase
    reader: FileReader
    restarts: int
    names: frozenset[str]
    attempts: tuple[tuple[str, tuple[Identity, ...]], ...]


@dataclass(frozen=True, slots=True)
class Stopped:
    """What was stopped for a phase.

    Attributes:
        to: every runner was seen stopped at ``wall_s``, or the last signal was sent then.
        wall_s: seconds of the wall clock, as file times and the stamps of lines are.
    """

    key: Key
    attempts: tuple[str, ...]
    to: Literal["stopped", "signalled"]
    wall_s: float


class _Cursor:
    """A place in a file of which only new bytes are of interest. The descriptor is its own."""

    def __init__(self, wanted: Wanted) -> None:
        self.reader, self.restarts = wanted.reader, wanted.restarts
        self.names = wanted.names
        self.in_events = [os.fsencode(name) for name in wanted.names]
        self.fd = os.dup(wanted.reader.fd)
        self.at = wanted.reader.line_at
        self.lost = False

    def follows(self, wanted: Wanted) -> bool:
        return (
            self.reader is wanted.reader
            and self.restarts == wanted.restarts
            and self.names == wanted.names
            and not self.lost
        )

    def new(self) -> bytes:
        """What was written from ``at`` on; nothing where that is more than a glance can take in."""
        if self.lost:
            return b""
        data = os.pread(self.fd, PIECE_BYTES, self.at)
        if len(data) == PIECE_BYTES:
            self.lost = True
            return b""
        return data


@dataclass(slots=True)
class _Aim:
    """An attempt's processes, to be signalled at once. ``stat``: of the runner, open."""

    attempt: str
    identities: tuple[Identity, ...]
    grips: list[int] = field(default_factory=list)
    stat: int = -1

    def close(self) -> None:
        for fd in (*self.grips, *([self.stat] if self.stat >= 0 else ())):
            os.close(fd)
        self.grips, self.stat = [], -1


@dataclass(slots=True)
class _Trigger:
    wanted: Wanted
    cursor: _Cursor
    meaning: PhaseMeaning
    aims: list[_Aim]


class Reflex:
    """Args:
    hold_of: gives a pidfd of a process of the spawn registry, and of no other (``Guard.hold_of``).
    """

    def __init__(self, hold_of: Callable[[int, int], int | None]) -> None:
        self._hold_of = hold_of
        self._lock = threading.Lock()
        self._triggers: list[_Trigger] = []
        self._cursors: dict[Key, _Cursor] = {}
        self._aims: dict[str, _Aim] = {}
        self._done: deque[Stopped] = deque()

    # -- the loop's side

    @property
    def lost(self) -> bool:
        """Whether a place in a file was given up; the next ``arm`` finds it anew."""
        return any(cursor.lost for cursor in self._cursors.values())

    def arm(self, wanted: Sequence[Wanted]) -> None:
        """What is stopped from now on, in place of what was before."""
        aims = self._aims_of(wanted)
        cursors = {each.key: self._cursor_of(each) for each in wanted}
        triggers = [
            _Trigger(
                each, cursor, phase_meaning(each.source), [aims[name] for name, _ in each.attempts if name in aims]
            )
            for each in wanted
            if (cursor := cursors[each.key]) is not None
        ]
        with self._lock:
            self._triggers = triggers
            for trigger in triggers:  # what the loop has read is of no interest any more
                trigger.cursor.at = max(trigger.cursor.at, trigger.cursor.reader.line_at)
        # nobody uses from here on what is not among them
        for name, aim in self._aims.items():
            if aims.get(name) is not aim:
                aim.close()
        for key, cursor in self._cursors.items():
            if cursors.get(key) is not cursor:
                os.close(cursor.fd)
        self._aims = aims
        self._cursors = {key: cursor for key, cursor in cursors.items() if cursor is not None}

    def take(self) -> list[Stopped]:
        """What was stopped since the last call, in order."""
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def _cursor_of(self, wanted: Wanted) -> _Cursor | None:
        kept = self._cursors.get(wanted.key)
        if kept is not None and kept.follows(wanted):
            return kept
        try:
            return _Cursor(wanted)
        except OSError:
            return None

    def _aims_of(self, wanted: Iterable[Wanted]) -> dict[str, _Aim]:
        aims: dict[str, _Aim] = {}
        left = AIMS_MAX
        for name, identities in {name: whom for each in wanted for name, whom in each.attempts}.items():
            few = identities[: min(AIMS_PER_ATTEMPT, left)]
            left -= len(few)
            kept = self._aims.get(name)
            aims[name] = kept if kept is not None and kept.identities == few else self._take_aim(name, few)
        return aims

    def _take_aim(self, name: str, identities: tuple[Identity, ...]) -> _Aim:
        aim = _Aim(name, identities)
        for pid, ticks in identities:
            fd = self._hold_of(pid, ticks)
            if fd is not None:
                aim.grips.append(fd)
                if aim.stat < 0:
                    with contextlib.suppress(OSError):
                        aim.stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        return aim

    # -- the thread's side

    def glance(self, events: bytes) -> bool:
        """Look at the files that ``events`` (as inotify gives them) name; whether something was stopped."""
        with self._lock:
            done = [
                stopped
                for trigger in self._triggers
                if trigger.aims
                and any(name in events for name in trigger.cursor.in_events)
                and (stopped := self._look(trigger)) is not None
            ]
        return bool(done)

    def _look(self, trigger: _Trigger) -> Stopped | None:
        cursor = trigger.cursor
        state, whole = newest_state(cursor.new(), trigger.meaning)
        cursor.at += whole
        aims = [aim for aim in trigger.aims if aim.grips]
        if state != "on" or not aims:
            return None
        to: Literal["stopped", "signalled"] = "signalled"
        try:
            for aim in aims:
                for fd in aim.grips:
                    with contextlib.suppress(OSError):  # gone, or not to be signalled: the others are
                        signal.pidfd_send_signal(fd, signal.SIGSTOP)
            to = "stopped" if seen_stopped([aim.stat for aim in aims], _stopped) else "signalled"
        finally:
            # after the signals, always: what is not told of is let go by nobody
            done = Stopped(trigger.wanted.key, tuple(aim.attempt for aim in aims), to, time.time())
            self._done.append(done)
        return done


def seen_stopped(whom: Iterable[T], stopped: Callable[[T], bool]) -> bool:
    """Whether each of ``whom`` is seen stopped, looked at for no longer than ``LOOK_S`` in all."""
    until_s, pause_s = monotonic_s() + LOOK_S, FIRST_LOOK_S
    for each in whom:
        while not stopped(each):
            left_s = until_s - monotonic_s()
            if left_s <= 0.0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s *= 1.5
    return True


def _stopped(stat: int) -> bool:
    """Whether the process of this open ``stat`` file is in state T, or dead."""
    if stat < 0:
        return False
    try:
        raw = os.pread(stat, 512, 0)
    except ProcessLookupError:
        return True  # it is gone
    except OSError:
        return False
    fields = raw[raw.rindex(b")") + 2 :].split(None, 18)
    state = fields[0].decode("ascii", "replace")
    # of a process whose other threads outlive its first one, Z is no end
    return state in STOPPED or (state in "ZX" and int(fields[17]) <= 1)
