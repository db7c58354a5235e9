"""Whether a source's lines come on a timer instead of per unit of work. Such a source makes any measurement pass.

A timer shows as gaps that are all alike and a round number of tenths (or quarters) of a second long, while each brings
the same amount: one event, or the same increase of a counter. A counter that is printed on a timer with increases that
vary is a good source, and so are lines that a program flushes on a timer.

Measured on two cores, each writer alone into a file of its own, read through inotify; spread is 1.4826 times the median
absolute deviation over the median gap, off is the median's distance from the next tenth of a second:

=========================  ============================  ==============================
writer, gap                idle: CV, spread, off         both cores busy: CV, spread, off
=========================  ============================  ==============================
``sleep(0.1)``             0.50 %, 0.12 %, 0.36 ms       2.66 %, 0.24 %, 0.38 ms
``sleep(0.5)``             0.12 %, 0.05 %, 0.32 ms       0.49 %, 0.04 %, 0.35 ms
``sleep(1)``               0.10 %, 0.01 %, 0.37 ms       0.26 %, 0.03 %, 0.36 ms
fixed schedule, 0.1 s      0.42 %, 0.10 %, 0.00 ms       2.44 %, 0.12 %, 0.00 ms
fixed schedule, 1 s        0.04 %, 0.02 %, 0.01 ms       0.12 %, 0.02 %, 0.02 ms
NumPy products, 0.08 s     10.5 %, 7.7 %                 43.8 %, 53.5 %
NumPy products, 0.24 s     6.4 %, 5.0 %                  47.5 %, 19.8 %
plain Python loop, 0.1 s   14.0 %, 6.1 %, 1.2 ms         31.8 %, 37.4 %
=========================  ============================  ==============================

Loops that sleep and do work of their own (plain Python, 3 to 9 ms as asked of a busy machine), six at once on the two cores:

=========================  ==============================
loop                       CV, spread, off
=========================  ==============================
``sleep(1)`` and 3 ms      0.15 %, 0.07 %, 1.5 ms
``sleep(1)`` and 6 ms      0.27 %, 0.28 %, 3.8 ms
``sleep(1)`` and 9 ms      0.53 %, 0.55 %, 6.7 ms
``sleep(0.5)`` and 4 ms    0.28 %, 0.35 %, 2.4 ms
``sleep(2)`` and 9 ms      0.18 %, 0.17 %, 5.2 ms
=========================  ==============================

So the coefficient of variation misses a 0.1 s timer as soon as a few lines come late, and the spread does not: it stands
in for the CV here, at the same 0.5 %. "Within 1 % of a multiple of 0.1 s" holds for every gap from 5 s on; the distance is
therefore bounded as well. A sleep never ends early and its own work only adds to it, so the bound is 10 ms above a
multiple and 2 ms, five times what was measured of bare timers, below it.

A real program as steady as 0.5 % is taken for a timer where its step happens to lie there: of steps over 1 s 14 in 100,
of shorter ones fewer (the page's own bound takes 20 in 100 at 1 s and all from 5 s on). Let through: a timer whose own work
takes over 10 ms or 1 % a round, or varies by more than 0.5 % of it, and one on a period that is no multiple of a tenth or a
quarter of a second.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["TimedCheck", "check_timed"]

MIN_GAPS = 30
MAX_SPREAD = 0.005
MAX_OFF_SHARE = 0.01
MAX_BELOW_S = 0.002
MAX_ABOVE_S = 0.010
GRIDS_S = (0.1, 0.25)
# This share of the amounts must be the same; one late read that takes two lines at once must not hide a timer.
SAME_SHARE = 0.95
# 1 is less than MAX_SPREAD of this: a counter of milliseconds passed (1000, 1001, 999) is a timer too.
LARGE_AMOUNT = 1 / MAX_SPREAD


@dataclass(frozen=True, slots=True)
class TimedCheck:
    """Result of the check.

    Attributes:
        looks_timed: None while there are too few gaps to tell.
        gaps: how many were looked at.
        cv: their coefficient of variation, or None.
        mean_s: their mean, or None.
        spread: their robust spread (see above), or None.
        words: what was seen, for the plan and the report.
    """

    looks_timed: bool | None
    gaps: int
    cv: float | None
    mean_s: float | None
    spread: float | None
    words: str


def check_timed(reads: Sequence[tuple[float, float]]) -> TimedCheck:
    """Checks (time written, amount) of successive reads, as ``ProgressTrack.recent_reads`` gives them."""
    pairs = [(later[0] - earlier[0], later[1]) for earlier, later in pairwise(reads)]
    gaps = [gap for gap, _ in pairs if gap > 0.0]
    if len(gaps) < MIN_GAPS:
        return TimedCheck(None, len(gaps), None, None, None, f"{len(gaps)} of {MIN_GAPS} gaps seen: not known yet")
    mean = statistics.fmean(gaps)
    middle = statistics.median(gaps)
    cv = statistics.pstdev(gaps) / mean
    spread = _spread(gaps, middle)
    period = _round_period(middle)
    seen = f"{len(gaps)} gaps of {middle:.4g} s, spread {spread * 100:.2g} %"
    if spread >= MAX_SPREAD or period is None:
        return TimedCheck(False, len(gaps), cv, mean, spread, f"{seen}: not on a timer")
    if not _same_amounts([amount for _, amount in pairs]):
        return TimedCheck(
            False, len(gaps), cv, mean, spread, f"{seen}: written on a timer, but what each brings varies with the work"
        )
    return TimedCheck(
        True,
        len(gaps),
        cv,
        mean,
        spread,
        f"{seen}, each bringing the same: they come every {period:g} s by a timer, not per unit of work",
    )


def _spread(values: Sequence[float], middle: float) -> float:
    return 1.4826 * statistics.median(abs(value - middle) for value in values) / middle


def _round_period(gap_s: float) -> float | None:
    for grid in GRIDS_S:
        period = round(gap_s / grid) * grid
        share_s = MAX_OFF_SHARE * period
        if period > 0.0 and -min(MAX_BELOW_S, share_s) <= gap_s - period <= min(MAX_ABOVE_S, share_s):
            return period
    return None


def _same_amounts(amounts: Sequence[float]) -> bool:
    amount, count = Counter(amounts).most_common(1)[0]
    if amount > 0.0 and count >= SAME_SHARE * len(amounts):
        return True
    middle = statistics.median(amounts)
    return middle >= LARGE_AMOUNT and _spread(amounts, middle) < MAX_SPREAD
