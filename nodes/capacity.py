"""How many cores this process may use: the smaller of the machine's, its affinity's and each control group's quota."""

from __future__ import annotations

import math
import os
from functools import lru_cache
from pathlib import Path

__all__ = ["cores", "usable_cores"]


@lru_cache(maxsize=1)
def usable_cores() -> int:
    """``cores()`` of this process, read once: affinity and quota of a running service rarely change."""
    return cores()


def cores(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """At least 1. A quota is rounded up. ``proc`` and ``sys`` may be fake trees."""
    found = [float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)]
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            roots = [sys / "fs/cgroup/cpu", sys / "fs/cgroup/cpu,cpuacct"]
            found += [quota for root in roots for at in _up(root, path) if (quota := _quota_v1(at)) is not None]
        elif not controllers:
            found += [quota for at in _up(sys / "fs/cgroup", path) if (quota := _quota_v2(at)) is not None]
    return max(1, math.ceil(min(found)))


def _up(root: Path, path: str) -> list[Path]:
    """The group's directory and those above it, up to the root of its hierarchy."""
    at = root / path.lstrip("/")
    return [at, *(above for above in at.parents if above == root or root in above.parents)]


def _quota_v2(at: Path) -> float | None:
    try:
        quota, period = (at / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(at: Path) -> float | None:
    try:
        quota = int((at / "cpu.cfs_quota_us").read_text())
        return None if quota <= 0 else quota / int((at / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None
