"""Reads the inotify instance in a thread of its own, so that what cannot wait is done while the loop is at something else.

The thread blocks in ``read``. At each return it first calls ``seen`` (what stops fleet work when a phase begins: ``reflex.py``),
and only then hands the events to the loop, whose descriptor becomes readable. So between a program's write and the
signals stand one wake-up and a few system calls, whatever the loop does: a tick, a meter's driver, a slow disk. Where something was
done the loop hears of it a moment later: what is left to do is accounting, and the cores are wanted by the program whose phase begins.

A source that floods makes it rest, as the hub does: reads that led to nothing cost a share of an allowance, and without any left
each is followed by a pause in which the kernel collects events. None is lost by that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import inotify_simple

from nodes.clock import monotonic_s

__all__ = ["Lookout"]

log = logging.getLogger(__name__)

# Reads that led to nothing, a second in the long run and at once; the pause after one beyond them.
IDLE_READS_PER_S = 25.0
IDLE_READS_AT_ONCE = 50.0
REST_S = 0.03
# From an act to the loop's hearing of it.
AFTERWARDS_S = 0.003
READ_BYTES = 16 * 1024
STACK_BYTES = 256 * 1024
IN_DELETE_SELF = 0x400


class Lookout:
    """The reading side of an inotify instance that a loop adds its watches to.

    Args:
        inotify: the instance; nobody else may read it from now on.
        seen: called in the thread after each read, with the raw events; whether it did something.
        begin: called once in the thread before its first read.

    Raises:
        OSError, RuntimeError: no descriptor, or no thread, is to be had.
    """

    def __init__(self, inotify: Any, seen: Callable[[bytes], bool], begin: Callable[[], object] = lambda: None) -> None:
        self._inotify = inotify
        self._seen = seen
        self._begin = begin
        self._read: deque[bytes] = deque()
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ending = False
        self._left = IDLE_READS_AT_ONCE
        self._earned_at_s = monotonic_s()
        os.set_blocking(inotify.fileno(), True)
        before = threading.stack_size(STACK_BYTES)
        try:
            self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)
            self._thread.start()
        except RuntimeError:
            os.close(self._ready)
            raise
        finally:
            threading.stack_size(before)

    def fileno(self) -> int:
        """Readable when there are events to take."""
        return self._ready

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def take(self) -> list[Any]:
        """The events that were read since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._ready)
        events = []
        while self._read:
            events += inotify_simple.parse_events(self._read.popleft())
        return events

    def close(self) -> None:
        """Ends the thread; the inotify instance stays open."""
        self._ending = True
        with contextlib.suppress(OSError):
            # a watch that goes is an event, and wakes the read
            self._inotify.rm_watch(self._inotify.add_watch("/", IN_DELETE_SELF))
        self._thread.join(5.0)
        if not self._thread.is_alive():
            os.close(self._ready)

    # -- in the thread

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._begin()
        fd = self._inotify.fileno()
        failed = False
        while True:
            try:
                events = os.read(fd, READ_BYTES)
            except OSError:
                if not self._ending:
                    log.exception("the lookout has ended: sources are looked at every 250 ms and at each tick")
                return
            if self._ending:
                return
            useful = False
            try:
                useful = self._seen(events)
            except Exception:
                if not failed:
                    log.exception("what cannot wait was left to the loop")
                failed = True
            if useful:
                time.sleep(AFTERWARDS_S)
            self._read.append(events)
            os.eventfd_write(self._ready, 1)
            if not useful:
                self._rest()

    def _rest(self) -> None:
        now_s = monotonic_s()
        self._left = min(IDLE_READS_AT_ONCE, self._left + IDLE_READS_PER_S * (now_s - self._earned_at_s)) - 1.0
        self._earned_at_s = now_s
        if self._left < 0.0:
            self._left = 0.0
            time.sleep(REST_S)
