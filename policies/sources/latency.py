"""How long a phase took from its program's write to the last runner paused: one change, and the quantiles of the newest."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

__all__ = ["KEPT", "Latencies", "latency_s"]

KEPT = 1000


def latency_s(paused_wall_s: float, mtime_s: float | None, line_time_s: float | None) -> float | None:
    """Seconds from the source's write to ``paused_wall_s``, all on the wall clock.

    The write is the file's modification time or the line's own stamp, whichever is later; a stamp from after the pause
    (another clock, another origin) is no time of the write. None where neither is known.
    """
    known = [at for at in (mtime_s, line_time_s) if at is not None and at <= paused_wall_s]
    return paused_wall_s - max(known) if known else None


class Latencies:
    """The newest ``KEPT`` latencies of one phase, in milliseconds."""

    def __init__(self, newest_ms: Iterable[float] = ()) -> None:
        self._kept_ms: deque[float] = deque(newest_ms, maxlen=KEPT)

    def add(self, latency_ms: float) -> None:
        self._kept_ms.append(latency_ms)

    def quantile_ms(self, share: float) -> float | None:
        """The smallest latency that at least ``share`` of the kept ones do not exceed (nearest rank); None without any."""
        ordered = sorted(self._kept_ms)
        if not ordered:
            return None
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
