"""Builds and doctors: process trees that take every core for minutes, give way to all other work, and end with their agent.

A class of the scheduler alone does not let a build give way: inside a control group or, with autogroup, inside a session, it counts only
against the group's own processes. So each build has a session of its own with the lowest weight, and a control group where one can be made.

A doctor, or a virtual environment, takes a second or so: at the lowest weight beside a busy program that would be minutes, until which
nothing runs. So ``short`` ones get a tenth of what an ordinary process gets instead.

They are work on the protected machine like any other: while something holds fleet work (``Builds.held``) none is begun and those that run
are stopped. The time that one is stopped, and within bounds the time that it waits for a CPU which others have, is not its own.
One that is stopped keeps its memory, so while memory is short those that run are ended instead: else it might never come back.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from nodes.clock import monotonic_s
from nodes.jobs import proctree
from nodes.jobs.cgroup import Group, make_group, parents
from nodes.meters.reading import Unreadable
from nodes.meters.stall import StallMeter

__all__ = ["BuildEnded", "Builds", "Built"]

OUTPUT_BYTES = 1 << 16
# The grace inside, and time for a busy machine to get there.
STOP_WITHIN_S = 60.0
LOOK_S = 0.25
STARVED_LOOK_S = 2.0
# As long as launchers wait for an agent that is silent (``nodes.jobs.manager``).
SILENCE_S = 10.0
_NUMBERS = itertools.count(1)

NICE_LOWEST = 19
# A weight of 110, beside 1024 of an ordinary process.
NICE_SHORT = 10

SHELL = "/bin/sh"
# $1 is the control group or empty, $2 the nice value of the session.
# Descriptor 0 is a socket whose other end only the agent holds: when that is closed, by the agent or
# with it, reading ends and so does everything of the session. TERM first, as ninja keeps its children in groups that it alone ends; and
# CONT, since what is stopped could not end them. Over it the agent is told which process the watcher is, before the build begins.
# The build is not the last command: some shells execute that one in their own place, and it would be taken for the shell.
WATCHED = """
[ -z "$1" ] || echo $$ 2>/dev/null >"$1/cgroup.procs"
echo "$2" 2>/dev/null >/proc/self/autogroup
ionice -c 3 -p $$ 2>/dev/null
shift 2
exec 3<&0 </dev/null
(trap '' TERM; read -r _; kill -TERM 0; kill -CONT 0; sleep 3; kill -KILL 0) <&3 3<&- &
echo $! >&3
exec 3<&-
"$@"
exit $?
"""


class BuildEnded(OSError):
    """It was ended through no fault of its own (``Built.ended``): nothing is known of what was built."""


@dataclass(frozen=True, slots=True)
class Built:
    """How a build ended: its exit status (negative: a signal) and the end of what it said."""

    code: int
    words: str
    late: bool = False
    ended: bool = False
    """By ``Builds.end``, or for want of memory; also one that came after ``Builds.end`` and was not begun.

    It says nothing of what was run.
    """
    starved_s: float = 0.0
    """Of the time that it took, what it waited for a CPU and what did not count for its limit."""
    short_of_memory: str | None = None
    """How short memory was, where it was ended for that."""

    @property
    def how_ended(self) -> str:
        """In words, of one that was ``ended``."""
        return f"out of memory: {self.short_of_memory}" if self.short_of_memory is not None else "with the agent"


class Builds:
    """The builds of one agent. ``run`` blocks: call it in a thread; ``end`` may be called from any other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[_End] = set()
        self._over = False
        self._on_hold: tuple[str | None, str | None] = (None, None)
        self._insisted: Counter[Path] = Counter()
        self._short_of_memory: str | None = None
        self._judged_s: float | None = None

    def hold(self, why: str | None, *, on_gpu: str | None = None, short_of_memory: str | None = None) -> None:
        """Stop what runs and begin nothing, for this reason, until told None. Comes into force within ``LOOK_S`` and some.

        ``on_gpu``: what holds those of modules that use the GPU (where it is not given, ``why`` alone).
        ``short_of_memory``: how short memory is; what runs is ended then.
        """
        self._on_hold, self._short_of_memory = (why, on_gpu or why), short_of_memory

    def judged(self, now_s: float) -> None:
        """The agent judged the node at ``now_s`` (monotonic). From the first time on it has to go on doing so: what it said last
        is of no use when it does not, and all is held after ``SILENCE_S``, as launchers hold their runners."""
        self._judged_s = now_s

    def held(self, *, gpu: bool) -> str | None:
        """Why none may run now, but for what a person insists on; None: they may. ``gpu``: of a module that uses the GPU."""
        if (why := self._on_hold[gpu]) is not None:
            return why
        silent_s = 0.0 if self._judged_s is None else monotonic_s() - self._judged_s
        return f"the agent's ticks fail: nothing was judged for {silent_s:.0f} s" if silent_s > SILENCE_S else None

    @contextlib.contextmanager
    def insisting(self, lock: Path) -> Iterator[None]:
        """A person insists on what waits for this lock: whoever has it goes on, whatever holds it (``is_insisted``)."""
        with self._lock:
            self._insisted[lock] += 1
        try:
            yield
        finally:
            with self._lock:
                self._insisted[lock] -= 1

    def is_insisted(self, lock: Path) -> bool:
        return self._insisted[lock] > 0

    @property
    def is_over(self) -> bool:
        """The agent stops: nothing is begun any more."""
        return self._over

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        limit_s: float,
        *,
        cwd: str | os.PathLike[str] | None = None,
        out: IO[bytes] | None = None,
        errors: IO[bytes] | None = None,
        starved_s: float = 0.0,
        insists: bool | Callable[[], bool] = False,
        gpu: bool = True,
        short: bool = False,
    ) -> Built:
        """Run it at the lowest priority, or a low one. What it leaves running is ended.

        Args:
            out, errors: files for what it writes; without them the end of both is ``Built.words``.
            starved_s: so much of the time that it waits for a CPU does not count for ``limit_s``.
            insists: a person asked for it in spite of what holds fleet work; or whether one does by now.
            gpu: the module uses the GPU, so what holds that holds it.
            short: it is of seconds, and others wait for it: a low priority instead of the lowest.

        Raises:
            OSError: it cannot be started, or does not end.
        """
        free = insists if callable(insists) else lambda: insists

        def held_back() -> bool:
            return self.held(gpu=gpu) is not None and not free() and not self._over

        while held_back():
            time.sleep(LOOK_S)
        group = make_group(f"build-{os.getpid()}-{next(_NUMBERS)}", parents())
        nice = NICE_SHORT if short else NICE_LOWEST
        if group is not None and short:
            group.set_tenth()
        elif group is not None:
            group.set_idle(True)
        watched, ours = (end.detach() for end in socket.socketpair())
        os.set_blocking(ours, False)
        held = _End(ours)
        with self._lock:
            self._held.add(held)
        try:
            with tempfile.TemporaryFile() as said:
                try:
                    if self._over:
                        return Built(-15, "", ended=True)
                    process = subprocess.Popen(
                        [SHELL, "-c", WATCHED, "build", group.path if group else "", str(nice), *argv],
                        cwd=cwd,
                        env=env,
                        stdin=watched,
                        stdout=said if out is None else out,
                        stderr=(subprocess.STDOUT if out is None else said) if errors is None else errors,
                        start_new_session=True,
                        preexec_fn=_turn_for_a_moment if short else _yield_cpu,
                    )
                finally:
                    os.close(watched)
                with contextlib.closing(_Tree(process.pid, lambda: self._heard(held))) as tree:
                    code, waited_s, memory = self._wait(process, tree, limit_s, starved_s, held_back, free)
                    late = code is None and memory is None
                    if code is None:
                        self._let_go(held)
                        tree.go_on()  # what left the group is ended by what is in it
                        code = _stopped(process)
                words = _end_of(said.fileno())
                ended = (self._over or memory is not None) and code != 0
                return Built(code, words, late, ended, waited_s, memory if ended else None)
        finally:
            self._let_go(held)
            if group is not None:
                group.kill()
                _gone(group)

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        tree: _Tree,
        limit_s: float,
        starved_s: float,
        held_back: Callable[[], bool],
        free: Callable[[], bool],
    ) -> tuple[int | None, float, str | None]:
        """(exit status or None where it has to be ended, seconds of waiting for a CPU that did not count, how short memory is
        where it has to be ended for that and not because it is too late)."""
        spent_s, excused_s, last_s = 0.0, 0.0, monotonic_s()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK_S), excused_s, None
            now_s = monotonic_s()
            memory = self._short_of_memory
            if memory is not None and not free() and not self._over:
                return None, excused_s, memory
            if held_back():
                tree.stop()
            else:
                tree.go_on()
                spent_s += now_s - last_s
                if starved_s > 0.0:
                    excused_s = min(starved_s, excused_s + tree.starved_s(now_s))
            last_s = now_s
            if spent_s - excused_s >= limit_s:
                return None, excused_s, None

    def end(self) -> None:
        """End what runs, and let none begin any more: the agent stops."""
        self._over = True  # what is stopped goes on, so that it can end itself
        for held in list(self._held):
            self._let_go(held)

    def _heard(self, held: _End) -> bytes:
        """What the build's shell said since it was last asked."""
        with self._lock:
            if held not in self._held:
                return b""
            try:
                return os.read(held.fd, 64)
            except OSError:  # nothing yet, or the shell is gone
                return b""

    def _let_go(self, held: _End) -> None:
        """The build ends of it; a second time does nothing."""
        with self._lock:
            if held in self._held:
                self._held.discard(held)
                os.close(held.fd)


@dataclass(frozen=True, slots=True, eq=False)
class _End:
    """The agent's end of one build's socket: itself and no other, though another's may get its number once it is closed."""

    fd: int


@dataclass(slots=True)
class _Tree:
    """The processes below a build's shell. The shell itself and its watcher are left alone: they end the rest with the agent.

    ``heard``: what the shell said since; its first line is the watcher's pid.
    """

    shell: int
    heard: Callable[[], bytes]
    system: proctree.ProcSystem = field(default_factory=proctree.ProcSystem)
    stalls: StallMeter = field(default_factory=StallMeter)
    stopped: bool = False
    looked_s: float = -math.inf
    said: bytes = b""

    def _below(self) -> list[proctree.Proc]:
        if b"\n" not in self.said:
            self.said += self.heard()
        line, ended, _ = self.said.partition(b"\n")
        shell = self.system.stat(self.shell)
        if not ended or shell is None:
            return []  # until it says so, the build has not begun
        watcher = int(line)
        found = proctree.walk(self.system, [(shell.pid, shell.start_ticks)])[1:]
        return [proc for proc in found if watcher not in (proc.pid, proc.ppid)]

    def close(self) -> None:
        self.system.let_all_go()

    def stop(self) -> None:
        """Told again at each look: a child made in the same moment would run on."""
        self.stopped = True
        running = [proc for proc in self._below() if proc.state not in proctree.STOPPED and not proc.dead]
        proctree.signal_tree(self.system, running, signal.SIGSTOP)

    def go_on(self) -> None:
        if self.stopped:
            self.stopped = False
            proctree.signal_tree(self.system, self._below(), signal.SIGCONT)

    def starved_s(self, now_s: float) -> float:
        """Seconds since the last look in which it wanted a CPU and had none; at most those that went by."""
        if now_s - self.looked_s < STARVED_LOOK_S:
            return 0.0
        span_s, self.looked_s = now_s - self.looked_s, now_s
        found = self.stalls.read([(proc.pid, proc.start_ticks) for proc in self._below()], now_s)
        return 0.0 if isinstance(found, Unreadable) else min(found[0], span_s)


def _stopped(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"process {process.pid} does not end") from error


def _gone(group: Group) -> None:
    until_s = time.monotonic() + STOP_WITHIN_S
    while not group.remove() and time.monotonic() < until_s:
        time.sleep(0.05)


def _end_of(fd: int) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, OUTPUT_BYTES, max(0, size - OUTPUT_BYTES)).decode("utf-8", "replace")


def _turn_for_a_moment() -> None:
    os.nice(NICE_SHORT)


def _yield_cpu() -> None:
    os.nice(NICE_LOWEST)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
