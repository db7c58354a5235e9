"""What the processes of a rule use, read only for the rules whose conditions or reserves ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from policies.rules import ProcInfo

__all__ = ["footprint_bytes", "held_bytes"]

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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
