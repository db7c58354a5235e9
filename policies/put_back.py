"""How often a flow run that was lost is put back, and how long that waits. Pure: its states in, the next wait out.

What is bounded are put-backs in a row that came to nothing. One that ran steadily for a while, or whose work came further, has earned
the next ones: an overnight run may meet as many restarts as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

__all__ = ["BATCH_WAITS_S", "WAITS_S", "PutBack", "Was", "next_put_back"]

# Of any flow: at once, three times.
WAITS_S = (0.0, 0.0, 0.0)
# Of a batch, which repeats nothing: then in growing steps through a night, for what somebody or something may mend by itself.
BATCH_WAITS_S = (*WAITS_S, 600.0, 1800.0, 3600.0, 3600.0, 3600.0, 3600.0)
# Running for so long is no failed start.
STEADY_S = 600.0
# Whatever came of them.
ALL_MAX = 100


@dataclass(frozen=True, slots=True)
class Was:
    """A state that a flow run was in, from ``at`` (aware) to the next one."""

    at: datetime
    running: bool = False
    put_back: bool = False


@dataclass(frozen=True, slots=True)
class PutBack:
    """The ``number``-th of ``most`` in a row, after ``wait_s``."""

    number: int
    most: int
    wait_s: float


def next_put_back(
    history: Sequence[Was], waits_s: Sequence[float] = WAITS_S, progress_at: datetime | None = None
) -> PutBack | None:
    """What is due for a run that was lost now; None: it was put back often enough.

    Args:
        history: its states, oldest first, the one that it was lost in last.
        progress_at: when its work last came further; None where that is not known or it never did.
    """
    if sum(was.put_back for was in history) >= ALL_MAX:
        return None
    steady = [end.at for was, end in pairwise(history) if was.running and (end.at - was.at).total_seconds() >= STEADY_S]
    since = max(steady, default=None)
    before = sum(
        was.put_back and (since is None or was.at >= since) and (progress_at is None or was.at > progress_at)
        for was in history
    )
    return PutBack(before + 1, len(waits_s), waits_s[before]) if before < len(waits_s) else None
