"""Reading modules' copies again, each in a thread: a bundle may hold gigabytes, and the agent's loop has reflexes to keep."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nodes.bundles import bundle_digest, bundle_seal
from policies.refusal import Refused

__all__ = ["UNREADABLE", "CopyReads", "touched"]

log = logging.getLogger(__name__)

UNREADABLE = "unreadable"

Done = Callable[[str, Path, str | None, str | None, str], None]
"""Takes the module's short name, its copy, the seal that was known, the one that it had as it was read, and the digest then."""


def touched(bundle: Path, seal: str | None) -> bool:
    """Whether a copy has to be read again: it has another seal than when it was read last, or none that can be told."""
    now = bundle_seal(bundle)
    return now is None or now != seal


@dataclass(slots=True)
class _Read:
    first: bool
    done: threading.Event = field(default_factory=threading.Event)


class CopyReads:
    """Which copies are being read, one after the other.

    Args:
        done: told of each in its thread, before it stops being ``running``.
    """

    def __init__(self, done: Done) -> None:
        self._done = done
        self._running: dict[str, _Read] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def begin(self, short: str, bundle: Path, known: str | None, *, first: bool = False) -> None:
        """Read it, unless it is being read. ``known``: its seal so far; ``first``: this agent has not seen it whole yet."""
        with self._lock:
            if short in self._running:
                return
            read = self._running[short] = _Read(first)
        args = (short, bundle, known, read)
        try:
            threading.Thread(target=self._read, args=args, name=f"read {short}", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                del self._running[short]
            read.done.set()
            why = f"its copy has to be read again and cannot be now: {error}"
            raise Refused("MODULE_NOT_READY", f"module {short}", why, f"cotenant module doctor {short}") from None

    def running(self, short: str) -> bool:
        return short in self._running

    def first(self, short: str) -> bool:
        """Whether it is being read, and this agent has not seen it whole before."""
        read = self._running.get(short)
        return read is not None and read.first

    def wait(self, names: Iterable[str], until_s: float) -> None:
        """Until none of these is being read, or that monotonic time."""
        for read in [self._running.get(name) for name in names]:
            if read is not None:
                read.done.wait(max(0.0, until_s - time.monotonic()))

    def _read(self, short: str, bundle: Path, known: str | None, read: _Read) -> None:
        try:
            with self._turn:
                # The seal first: what is written while it is read gives it another one.
                seal = bundle_seal(bundle)
                try:
                    found = bundle_digest(bundle)
                except (
                    Exception
                ) as error:  # a name that is no text, no memory: what cannot be read is not what was added
                    log.warning("the copy of module %s cannot be read: %s", short, error)
                    seal, found = None, UNREADABLE
            self._done(short, bundle, known, seal, found)
        finally:
            with self._lock:
                del self._running[short]
            read.done.set()
