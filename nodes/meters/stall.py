"""How long a program's threads waited for a CPU that they wanted: the kernel's scheduler delay, from schedstat.

``/proc/PID/task/TID/schedstat`` holds nanoseconds on a CPU, nanoseconds runnable and waiting, and the number of stretches.
The file of the process itself is its first thread's alone, so every thread is read. The kernel books a wait only when it is
over, so a thread whose figures stand still and that is runnable (state R) has waited all along: it is starved, not asleep.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from nodes.meters.reading import Unreadable
from policies.rules import PidStart

__all__ = ["StallMeter"]

# One look into a file of a thread costs about 15 µs; a program with many threads is read so much more rarely.
LOOK_COST_S = 15e-6
COST_SHARE = 0.0005
_NS = 1e9

Thread = tuple[int, int | None, int]


class StallMeter:
    """Of one program. ``proc``: where procfs is mounted."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._seen: dict[Thread, tuple[int, int]] = {}
        self._processes: set[PidStart] = set()
        self._begun = False
        self._read_at_s = 0.0
        self._booked_ahead: dict[Thread, int] = {}  # of a wait that goes on, what was told already
        self._due_s = float("-inf")

    def due(self, now_s: float) -> bool:
        """Whether the next reading is affordable yet: reading takes at most 0.05 % of a core."""
        return now_s >= self._due_s

    def read(self, program: Iterable[PidStart], now_s: float) -> tuple[float, float] | Unreadable:
        """(seconds waited, seconds waited or run) of all threads since the last reading.

        The first reading has no baseline. ``program``: pid and start ticks of its processes; one that is gone counts
        nothing. Raises nothing.
        """
        members = list(program)
        found: dict[Thread, tuple[int, int]] = {}
        try:
            for pid, ticks in members:
                found.update(self._threads(pid, ticks))
        except OSError as error:
            self._begun = False
            return Unreadable(f"scheduler delay cannot be read: {error.strerror or error}")
        since_s, self._read_at_s = now_s - self._read_at_s, now_s
        before, self._seen = self._seen, found
        known, self._processes = self._processes, set(members)
        self._due_s = now_s + len(found) * LOOK_COST_S / COST_SHARE
        if not self._begun:
            self._begun, self._booked_ahead = True, {}
            return Unreadable("first reading: no baseline yet")
        if found and not any(run for run, _ in found.values()):
            return Unreadable("the kernel keeps no scheduler statistics")
        waited = wanted = 0
        ahead: dict[Thread, int] = {}
        for thread, (run, wait) in found.items():
            # a thread that is new in a known process began since; of a process that is new only from here on
            had = before.get(thread, (0, 0) if (thread[0], thread[1]) in known else (run, wait))
            told = self._booked_ahead.get(thread, 0)
            if had == (run, wait) and thread in before and self._is_runnable(thread):
                more = int(since_s * _NS)
                ahead[thread] = told + more
            else:
                more = max(0, wait - had[1] - told)
            waited += more
            wanted += more + max(0, run - had[0])
        still = sum(1 for thread in found if before.get(thread) == found[thread])
        self._due_s = now_s + (len(found) + still) * LOOK_COST_S / COST_SHARE
        self._booked_ahead = ahead
        return waited / _NS, wanted / _NS

    def _is_runnable(self, thread: Thread) -> bool:
        try:
            fd = os.open(f"{self._proc}/{thread[0]}/task/{thread[2]}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            raw = os.read(fd, 512)
        except OSError:
            return False
        finally:
            os.close(fd)
        return raw[raw.rfind(b")") + 2 :][:1] == b"R"

    def _threads(self, pid: int, ticks: int | None) -> dict[Thread, tuple[int, int]]:
        found: dict[Thread, tuple[int, int]] = {}
        try:
            tids = os.listdir(f"{self._proc}/{pid}/task")
        except (FileNotFoundError, ProcessLookupError):
            return found
        for tid in tids:
            try:
                fd = os.open(f"{self._proc}/{pid}/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                if os.path.isdir(f"{self._proc}/{pid}/task/{tid}"):
                    raise
                continue
            except ProcessLookupError:
                continue
            try:
                run, wait = os.read(fd, 128).split()[:2]
                found[(pid, ticks, int(tid))] = (int(run), int(wait))
            except (ProcessLookupError, ValueError):
                continue
            finally:
                os.close(fd)
        return found
