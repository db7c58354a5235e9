"""The kit's meter: CPU seconds of a runner's tree over time, from /proc, whatever the runner says of itself."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from nodes.identity import ProcessId, boot_id
from nodes.jobs.proctree import CLOCK_TICKS, Proc, ProcSystem
from nodes.meters.cpu import CpuMeter

__all__ = ["TreeMeter", "process_cpu_s"]

_KEY = "runner"


def process_cpu_s(pid: int) -> float:
    """User and kernel seconds of one live process since it began.

    Raises:
        OSError: it is gone.
    """
    proc = ProcSystem().stat(pid)
    if proc is None:
        raise OSError(f"process {pid} is gone")
    return proc.own_ticks / CLOCK_TICKS


@dataclass
class TreeMeter:
    """Readings of one tree: moments (monotonic and wall-clock seconds) and CPU seconds since its processes began."""

    at_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._meter = CpuMeter()
        self._boot = boot_id()

    def read(self, tree: Sequence[Proc]) -> None:
        """Add a reading; a moment at which a process could not be read is left out."""
        members = [ProcessId(proc.pid, proc.start_ticks, self._boot) for proc in tree]
        found = self._meter.cpu_seconds_total(_KEY, members)
        if isinstance(found, float):
            self.at_s.append(time.monotonic())
            self.wall_s.append(time.time())
            self.cpu_s.append(found)

    @property
    def total_s(self) -> float:
        return self.cpu_s[-1] if self.cpu_s else 0.0

    def used_s(self, a_s: float, b_s: float) -> float:
        """CPU seconds between two monotonic moments within the readings."""
        return _between(self.at_s, self.cpu_s, a_s, b_s)

    def used_wall_s(self, a_s: float, b_s: float) -> float:
        """The same between two wall-clock moments."""
        return _between(self.wall_s, self.cpu_s, a_s, b_s)


def _between(moments: list[float], series: list[float], a: float, b: float) -> float:
    return _upto(moments, series, b) - _upto(moments, series, a)


def _upto(moments: list[float], series: list[float], moment: float) -> float:
    if len(moments) < 2:
        return series[0] if series else 0.0
    right = min(max(bisect_right(moments, moment), 1), len(moments) - 1)
    a, b = moments[right - 1], moments[right]
    part = min(max((moment - a) / (b - a), 0.0), 1.0) if b > a else 1.0
    return series[right - 1] + part * (series[right] - series[right - 1])
