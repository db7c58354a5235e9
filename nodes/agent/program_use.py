"""What the processes of a rule use, read only for the rules whose conditions or reserves ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from nodes.meters.reading import Unreadable
from nodes.meters.stall import StallMeter
from policies.devices import DEVICE_USE_KEPT_S
from policies.rules import PidStart, ProcInfo

__all__ = ["CpuUse", "WantedCores", "footprint_bytes", "held_bytes"]

# A program uses the CPU as a device above this many cores (``protection.md``).
DEVICE_USE_CORES = 0.05
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class WantedCores:
    """Cores that a program had or waited for: what it would use if nobody else were there. At most one look at an instant."""

    def __init__(self) -> None:
        self._waits = StallMeter()
        self._read_at_s: float | None = None
        self._wanted: float | None = None

    def read(self, program: Iterable[PidStart], now_s: float) -> float | None:
        """``program``: (pid, start ticks) of its processes. None: it cannot be told (yet)."""
        if self._waits.due(now_s) and now_s != self._read_at_s:
            reading, before_s, self._read_at_s = self._waits.read(program, now_s), self._read_at_s, now_s
            if isinstance(reading, Unreadable) or before_s is None or now_s <= before_s:
                self._wanted = None
            else:
                self._wanted = reading[1] / (now_s - before_s)
        return self._wanted


class CpuUse:
    """Whether a rule's program uses the CPU, the duty device of its node.

    A program that fleet work starves uses little and is the last that may be taken for idle: where it used no more than a
    twentieth of a core, what it waited for counts as well.
    """

    def __init__(self, wanted: WantedCores | None = None) -> None:
        self._used_at_s: float | None = None
        self._known = False
        self._wanted = WantedCores() if wanted is None else wanted

    def read(self, cores: float | None, program: Iterable[PidStart], now_s: float) -> None:
        """``cores``: used by its processes since the last reading, None unknown. ``program``: (pid, start ticks) of them."""
        if cores is not None and cores <= DEVICE_USE_CORES:
            cores = self._wanted.read(program, now_s)
        self._known = cores is not None
        if cores is not None and cores > DEVICE_USE_CORES:
            self._used_at_s = now_s

    def since(self, since_s: float) -> bool:
        """Whether it certainly used the CPU at some time since then."""
        return self._used_at_s is not None and self._used_at_s >= since_s

    def now(self, now_s: float) -> bool | None:
        """None: it cannot be told, which counts as use.

        What was seen lately stays true: between two steps, and while the reading is renewed (a child that came or went).
        """
        if self._used_at_s is not None and now_s - self._used_at_s <= DEVICE_USE_KEPT_S:
            return True
        return False if self._known else None


def _statm(pid: int, proc: str) -> tuple[int, int] | None:
    """(resident, shared) pages; None: there is no such process. Raises OSError where it cannot be read."""
    try:
        fd = os.open(f"{proc}/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        fields = os.read(fd, 256).split()
        return int(fields[1]), int(fields[2])
    except ProcessLookupError:
        return None
    except (ValueError, IndexError) as error:
        raise OSError(f"{proc}/{pid}/statm cannot be understood") from error
    finally:
        os.close(fd)


def footprint_bytes(pids: Iterable[int], proc: str = "/proc") -> int | None:
    """Resident memory of these processes together, pages that they share counted each time; None: one cannot be read.

    Never too small, so that a condition on it holds early rather than late.
    """
    total = 0
    for pid in pids:
        try:
            pages = _statm(pid, proc)
        except OSError:
            return None
        total += 0 if pages is None else pages[0]
    return total * PAGE_BYTES


def held_bytes(procs: Iterable[ProcInfo], proc: str = "/proc") -> int:
    """Memory of their own that these processes hold: never too large, so that what a rule reserves is not given away.

    What cannot be read counts nothing.
    """
    total = 0
    for info in procs:
        try:
            pages = _statm(info.pid, proc)
        except OSError:
            continue
        total += 0 if pages is None else max(0, pages[0] - pages[1])
    return total * PAGE_BYTES
