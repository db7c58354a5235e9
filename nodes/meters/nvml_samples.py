"""Utilisation samples of one device made into busy seconds, each sample counted exactly once. Pure.

The driver is asked for what came after a stamp, and answers with the mean since then, one record a process, or with each
sample; both integrate alike: a sample holds from the one before it to its own stamp. So the cursor is the largest stamp
that was *returned*: a wall clock read beside the query would skip what arrives between the two, and a cursor that lies
before the last reading would spread a burst over time that was counted already. A stamp at or before the cursor is an old
value shown once more, not the present.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Cursor", "Sample", "integrate"]

# Where there was nothing to hand out the cursor follows the queries this far behind, or a short burst would be spread over
# the whole of a long silence. More than the driver takes to hand a sample out.
BEHIND_US = 1_500_000
# A cursor this far ahead of the clock that stamps are made from: that clock was set back.
AHEAD_US = 2_000_000
# The driver hands a sample out within a second.
LATE_S = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """``busy_pct``: of the engine that was busiest (multiprocessors, encoder, decoder)."""

    pid: int
    stamp_us: int
    busy_pct: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """``stamp_us`` None: never read. ``read_s``: monotonic seconds of the reading."""

    stamp_us: int | None = None
    read_s: float = 0.0


def integrate(
    cursor: Cursor, samples: Iterable[Sample], now_s: float, asked_us: int
) -> tuple[Cursor, dict[int, float] | None]:
    """Busy seconds by pid since the last reading; None: no baseline yet (the first reading, or the clock was set back).

    Args:
        now_s: monotonic seconds of the query.
        asked_us: the wall clock (which the stamps come from) when the query was made.
    """
    newest: dict[tuple[int, int], int] = {}
    for sample in samples:
        key = (sample.pid, sample.stamp_us)
        newest[key] = max(newest.get(key, 0), min(max(sample.busy_pct, 0), 100))
    last_us = max((stamp for _, stamp in newest), default=None)
    begin_us = cursor.stamp_us
    if begin_us is None or begin_us > asked_us + AHEAD_US:
        # from here on: what lies before the first query was in nobody's stretch
        ahead_us = 0 if last_us is None or last_us > asked_us + AHEAD_US else last_us
        return Cursor(max(asked_us, ahead_us), now_s), None
    busy: dict[int, float] = {}
    before: dict[int, int] = {}
    for (pid, stamp), pct in sorted(newest.items(), key=lambda item: item[0][1]):
        if stamp <= begin_us:
            continue
        busy[pid] = busy.get(pid, 0.0) + pct / 100.0 * (stamp - before.get(pid, begin_us)) / 1e6
        before[pid] = stamp
    # Nobody can have been busy for longer than the time that passed, whatever stretch a sample was taken to cover.
    elapsed_s = max(0.0, now_s - cursor.read_s)
    busy = {pid: elapsed_s if used_s > elapsed_s + LATE_S else used_s for pid, used_s in busy.items()}
    end_us = max(begin_us, last_us or 0)
    if not busy:
        end_us = max(end_us, asked_us - BEHIND_US)
    return Cursor(end_us, now_s), busy
