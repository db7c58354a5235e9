"""Being asked to end (SIGINT, SIGTERM, SIGHUP) while something long is going on: it unwinds, once, and is never lost.

An exception that a signal handler raises can be swallowed by whatever runs at that moment: a callback during an import, an
``except`` that takes everything. So it is raised again until the unwinding has arrived. And it must not come between the
start of a child process and the note of who it is: such places are ``undisturbed``.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

__all__ = ["Stopping", "undisturbed"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Long enough for what unwinds in order to close what it has open.
AGAIN_AFTER_S = 0.5

T = TypeVar("T")


class _Asked(BaseException):
    """Not an ``Exception``: nothing on the way may take it for a failed step."""


class _Moment:
    """The main thread alone handles signals, so a plain counter does: above 0 nothing is raised, only remembered."""

    shields = 0
    owed = False


@contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing is raised in here by a signal; what came meanwhile is raised at the end. For moments, not for waits."""
    _Moment.shields += 1
    try:
        yield
    finally:
        _Moment.shields -= 1
    if _Moment.owed and not _Moment.shields:
        _Moment.owed = False
        raise _Asked


class Stopping:
    """``with stopping.on_signals(): stopping.run(work)``, then the stopping itself, which no signal cuts short."""

    def __init__(self) -> None:
        self.asked = False
        self._unwinds = False

    def run(self, work: Callable[[], T]) -> T | None:
        """What ``work`` answers; None where it was asked to end first."""
        try:
            self._unwinds = True
            try:
                if self.asked:  # before there was anything to unwind
                    raise _Asked
                return work()
            finally:
                self.not_again()
        except _Asked:
            self.not_again()
            return None

    def not_again(self) -> None:
        """From here on the stopping runs to its end."""
        self._unwinds = False
        _Moment.owed = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_alarm)
        try:
            yield
        finally:
            self.not_again()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        if self.asked:
            return
        self.asked = True
        if self._unwinds:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_AFTER_S, AGAIN_AFTER_S)
            self._raise()

    def _on_alarm(self, _signal: int, _frame: FrameType | None) -> None:
        if self._unwinds:
            self._raise()

    @staticmethod
    def _raise() -> None:
        if _Moment.shields:
            _Moment.owed = True
            return
        raise _Asked
