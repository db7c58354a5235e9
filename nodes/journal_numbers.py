"""Where the numbers of a journal's entries go on, so that none is used twice: pure.

The store and the server know an entry by node and number. Entries that were lost with the power, with the whole file, or by going
back to a backup may be there already, so the next ones must not have their numbers.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

__all__ = ["Why", "go_on_after"]

Why = Literal["boot", "restored", "lost"]
# Far more than what is not on the disk yet at any moment: SQLite puts its log of 4 MB there before it goes on, at most some ten
# thousand entries.
BEYOND_UNSYNCED = 1_000_000


def go_on_after(last: int, why: Why, now: datetime) -> int:
    """The number after which entries go on, where ``last`` is the newest that is known.

    What a backup or a lost file does not know may be any number of entries: then it is the milliseconds since 1970, which no node
    ever reaches by counting, and which is higher each time (where the clock is right).
    """
    after = last + BEYOND_UNSYNCED
    return after if why == "boot" else max(after, int(now.timestamp() * 1000.0))
