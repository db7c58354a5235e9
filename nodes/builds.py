"""Builds: process trees that take every core for minutes, give way to all other work, and end with their agent.

A class of the scheduler alone does not let a build give way: inside a control group or, with autogroup, inside a session, it counts only
against the group's own processes. So each build has a session of its own with the lowest weight, and a control group where one can be made.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodes.jobs.cgroup import Group, make_group, parents

__all__ = ["Builds", "Built"]

OUTPUT_BYTES = 1 << 16
# The grace inside, and time for a busy machine to get there.
STOP_WITHIN_S = 60.0
_NUMBERS = itertools.count(1)

# $1 is the control group or empty. Descriptor 0 is a pipe whose other end only the agent holds: when that is closed, by the agent or
# with it, reading ends and so does everything of the session. TERM first, as ninja keeps its children in groups that it alone ends.
WATCHED = """
[ -z "$1" ] || echo $$ 2>/dev/null >"$1/cgroup.procs"
echo 19 2>/dev/null >/proc/self/autogroup
shift
exec 3<&0 </dev/null
(trap '' TERM; read -r _; kill -TERM 0; sleep 3; kill -KILL 0) <&3 3<&- &
exec 3<&-
"$@"
"""


@dataclass(frozen=True, slots=True)
class Built:
    """How a build ended: its exit status (negative: a signal) and the end of what it said."""

    code: int
    words: str
    late: bool = False
    ended: bool = False
    """By ``Builds.end``; also one that came after it and was not begun."""


class Builds:
    """The builds of one agent. ``run`` blocks: call it in a thread; ``end`` may be called from any other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[int] = set()
        self._over = False

    @property
    def is_over(self) -> bool:
        """The agent stops: nothing is begun any more."""
        return self._over

    def run(self, argv: Sequence[str], env: Mapping[str, str], limit_s: float) -> Built:
        """Run it at the lowest priority. What it leaves running is ended.

        Raises:
            OSError: it cannot be started, or does not end.
        """
        group = make_group(f"build-{os.getpid()}-{next(_NUMBERS)}", parents())
        if group is not None:
            group.set_idle(True)
        watched, held = os.pipe()
        with self._lock:
            self._held.add(held)
        try:
            with tempfile.TemporaryFile() as out:
                try:
                    if self._over:
                        return Built(-15, "", ended=True)
                    process = subprocess.Popen(
                        ["/bin/sh", "-c", WATCHED, "build", group.path if group else "", *argv],
                        env=env,
                        stdin=watched,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        preexec_fn=_yield_cpu,
                    )
                finally:
                    os.close(watched)
                late = False
                try:
                    code = process.wait(limit_s)
                except subprocess.TimeoutExpired:
                    late = True
                    self._let_go(held)
                    code = _stopped(process)
                return Built(code, _end_of(out.fileno()), late=late, ended=self._over and code != 0)
        finally:
            self._let_go(held)
            if group is not None:
                group.kill()
                _gone(group)

    def end(self) -> None:
        """End what runs, and let none begin any more: the agent stops."""
        self._over = True
        for held in list(self._held):
            self._let_go(held)

    def _let_go(self, held: int) -> None:
        """The build ends of it; a second time does nothing."""
        with self._lock:
            if held in self._held:
                self._held.discard(held)
                os.close(held)


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


def _yield_cpu() -> None:
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
