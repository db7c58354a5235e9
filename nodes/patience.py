"""Regular expressions that end: a search by the loop takes 20 ms at most, and a pattern that took longer thrice is not tried again.

Python's engine looks for signals while it backtracks, so a timer's signal ends a search that would go on for hours. Signals
come to the main thread alone, where the agent's loop runs; elsewhere a search is not bounded.
"""

from __future__ import annotations

import re
import signal
import threading
from types import FrameType

from policies.patterns import TooLong, search_with

__all__ = ["SEARCH_WITHIN_S", "Patience", "install"]

SEARCH_WITHIN_S = 0.02
STRIKES = 3
MAX_PATTERNS = 1024


class Patience:
    """Searches with a limit, through ``SIGALRM`` and the process's real-time timer, which nothing else may use."""

    def __init__(self, within_s: float = SEARCH_WITHIN_S) -> None:
        self._within_s = within_s
        self._strikes: dict[str, int] = {}
        self._searching = False

    def search(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        """As ``pattern.search``. Raises ``TooLong`` where it took too long, or did so thrice before."""
        strikes = self._strikes.get(pattern.pattern, 0)
        if strikes >= STRIKES:
            raise TooLong
        if threading.current_thread() is not threading.main_thread():
            return pattern.search(text)
        try:
            self._searching = True
            signal.setitimer(signal.ITIMER_REAL, self._within_s)
            found = pattern.search(text)
            self._searching = False
        except TooLong:
            if len(self._strikes) >= MAX_PATTERNS:
                self._strikes.clear()
            self._strikes[pattern.pattern] = strikes + 1
            raise
        finally:
            self._searching = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        return found

    def alarm(self, _number: int, _frame: FrameType | None) -> None:
        # one that comes just after the search has ended is late, and means nothing
        if self._searching:
            self._searching = False
            raise TooLong


def install() -> None:
    """Bound every search of this process. From the main thread, once."""
    patience = Patience()
    signal.signal(signal.SIGALRM, patience.alarm)
    search_with(patience.search)
