"""How much memory is left: on the machine and in this process's control groups (both versions), page cache understood.

Working set = usage − inactive file pages: cached model files are not "used" (a group that is full of page cache is not
short of memory). A group's limit is the smaller of ``memory.max``, beyond which the kernel kills, and ``memory.high``,
beyond which it takes pages back.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from policies.memory_guard import Pool

__all__ = ["MemoryReading", "read_memory"]

# Version 1 writes "no limit" as a number near 2**63.
NO_LIMIT_BYTES = 1 << 60
READ_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The machine and each control group with a limit, as pools that each bind. None: could not be read, which is not zero."""

    pools: tuple[Pool, ...]
    swap_used_bytes: int | None


def _content(path: str) -> bytes:
    """Of a small file, without the system calls that a file object adds: several are read at each tick. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = piece = os.read(fd, READ_BYTES)
        while len(piece) == READ_BYTES:
            piece = os.read(fd, READ_BYTES)
            found += piece
        return found
    finally:
        os.close(fd)


def _number(path: str) -> int | None:
    """The number in the file; None where it says "max", or where there is no such file.

    Raises:
        OSError: it is there and cannot be read, or holds something else.
    """
    try:
        text = _content(path).decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if text == "max":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise OSError(f"{path} holds no number") from error


def _stat(path: str, key: str) -> int:
    try:
        for line in _content(path).splitlines():
            name, _, value = line.partition(b" ")
            if name == key.encode():
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _group_dirs(proc: Path, sys: Path) -> list[tuple[str, str]]:
    """(directory, version) of this process's memory groups up to the root."""
    try:
        return _dirs_of(os.fsdecode(_content(f"{proc}/self/cgroup")), sys)
    except OSError:
        return []


@lru_cache(maxsize=4)
def _dirs_of(membership: str, sys: Path) -> list[tuple[str, str]]:
    found = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            root, version = sys / "fs/cgroup/memory", "v1"
        elif not controllers:
            root, version = sys / "fs/cgroup", "v2"
        else:
            continue
        at = root / path.lstrip("/")
        while True:
            found.append((str(at), version))
            if at == root or root not in at.parents:
                break
            at = at.parent
    return found


_FILES = {
    "v2": (("memory.max", "memory.high"), "memory.current", "inactive_file"),
    "v1": (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
}


def _group_pools(proc: Path, sys: Path) -> list[Pool]:
    """Each group that has a limit, or whose limit cannot be read."""
    found = []
    for at, version in _group_dirs(proc, sys):
        limits, usage, inactive = _FILES[version]
        name = f"control group {at}"
        try:
            given = [value for file in limits if (value := _number(f"{at}/{file}")) is not None]
            limit = min(given, default=NO_LIMIT_BYTES)
            if limit >= NO_LIMIT_BYTES:
                continue
            used = _number(f"{at}/{usage}")
        except OSError:
            found.append(Pool(None, None, name))
            continue
        available = None if used is None else max(0, limit - max(0, used - _stat(f"{at}/memory.stat", inactive)))
        found.append(Pool(limit, available, name))
    return found


_MACHINE = {b"MemTotal", b"MemAvailable", b"SwapTotal", b"SwapFree"}


def read_memory(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> MemoryReading:
    """Read now. ``proc`` and ``sys`` may be fake trees."""
    facts: dict[str, int] = {}
    try:
        for line in _content(f"{proc}/meminfo").splitlines():
            name, _, rest = line.partition(b":")
            if name in _MACHINE:
                facts[name.decode()] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        facts = {}
    machine = Pool(facts.get("MemTotal"), facts.get("MemAvailable"), "machine")
    swap = facts["SwapTotal"] - facts["SwapFree"] if {"SwapTotal", "SwapFree"} <= facts.keys() else None
    return MemoryReading((machine, *_group_pools(proc, sys)), swap)
