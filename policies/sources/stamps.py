"""Where a line's own stamp lies on our monotonic clock."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StampClock"]

# Stamps nearer to our wall clock than this are wall times; others (seconds since a start) have their own origin.
WALL_LIKE_S = 2 * 86400.0
# The smallest delay of this long, and of as long before it, is the delay of a line that did not wait in a buffer.
BUCKET_S = 60.0


class StampClock:
    """Maps stamps of any origin to monotonic time.

    The delay of a line is our clock at its arrival less its stamp: our wall clock for stamps that look like wall time
    (a step of the wall clock moves both and cancels), else our monotonic clock. The least delay of the last one to two
    minutes is taken as none. So a constant offset (a local time without its zone, seconds since start) does no harm,
    lines that waited in a buffer are put back to when they were stamped, and a clock that was set is followed within
    two minutes. No event is put behind its own arrival.
    """

    def __init__(self) -> None:
        self._least: float | None = None
        self._least_before: float | None = None
        self._bucket_began_s = 0.0
        self._wall_like: bool | None = None

    def place(self, arrival_s: float, wall_s: float, stamps_s: Sequence[float]) -> list[float]:
        """Monotonic times of stamps that arrived in one read, in their order."""
        if not stamps_s:
            return []
        wall_like = abs(wall_s - stamps_s[-1]) < WALL_LIKE_S
        if wall_like != self._wall_like:
            self._wall_like = wall_like
            self._least = self._least_before = None
        clock = wall_s if wall_like else arrival_s
        delays = [clock - stamp for stamp in stamps_s]
        if self._least is None or arrival_s - self._bucket_began_s >= BUCKET_S:
            self._least_before = self._least
            self._least = None
            self._bucket_began_s = arrival_s
        least = min(delays)
        self._least = least if self._least is None else min(self._least, least)
        base = self._least if self._least_before is None else min(self._least, self._least_before)
        return [arrival_s - (delay - base) for delay in delays]
