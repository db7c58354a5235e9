"""How much memory is left: the smaller of the machine's and the control group's (both versions), page cache understood.

A container's limit counts where it is the smaller. Working set = usage − inactive file pages: cached model files are not
"used" (a group that is full of page cache is not short of memory).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryReading", "read_memory"]


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Bytes. None: could not be read, which is not zero."""

    total_bytes: int | None
    available_bytes: int | None
    swap_used_bytes: int | None


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
        return None if text == "max" else int(text)
    except (OSError, ValueError):
        return None


def _stat(path: Path, key: str) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _group_dirs(proc: Path, sys: Path) -> list[tuple[Path, str]]:
    """(directory, version) of this process's memory groups up to the root."""
    found = []
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            root, version = sys / "fs/cgroup/memory", "v1"
        elif not controllers:
            root, version = sys / "fs/cgroup", "v2"
        else:
            continue
        at = root / path.lstrip("/")
        while True:
            found.append((at, version))
            if at == root or root not in at.parents:
                break
            at = at.parent
    return found


def _group_limits(proc: Path, sys: Path) -> list[tuple[int, int]]:
    """(limit, available) in bytes of each group that has a limit."""
    found = []
    for at, version in _group_dirs(proc, sys):
        names = ("memory.max", "memory.current", "inactive_file")
        if version == "v1":
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used = _number(at / names[0]), _number(at / names[1])
        if limit is None or used is None or limit >= 1 << 60:
            continue
        working_set = max(0, used - _stat(at / "memory.stat", names[2]))
        found.append((limit, max(0, limit - working_set)))
    return found


def read_memory(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> MemoryReading:
    """Read now. ``proc`` and ``sys`` may be fake trees."""
    facts: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            facts[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        facts = {}
    total, available = facts.get("MemTotal"), facts.get("MemAvailable")
    for limit, left in _group_limits(proc, sys):
        if total is not None and limit < total:
            total = limit
        if available is not None:
            available = min(available, left)
    swap = facts["SwapTotal"] - facts["SwapFree"] if {"SwapTotal", "SwapFree"} <= facts.keys() else None
    return MemoryReading(total, available, swap)
