"""The control document, from the runner's side: pause, stop and limits. Runner protocol 1.

Standard library only, one file; a module may carry a copy of it.

The agent replaces ``<workdir>/control.json`` and sends SIGUSR1. The document is read when nudged, and only then; it applies only if
its ``seq`` is newer. Nothing is polled: a pause blocks on the next nudge.

A document that cannot be read, or is gone, may have asked for anything: the work rests (a pause, and a duty of 0) until it can be read,
which is tried at each safe point and ten times a second. Where there never was one, and no agent, a runner is run by hand and free.

The signal handler only counts and wakes a thread that sleeps in a queue. That thread reads the document and wakes
whoever waits, so that any thread (and an event loop) may wait, and the handler takes no lock that the interrupted code could hold.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["Control", "Stopped"]

TRANSIENT = 75
RETRY_S = 0.1


class Stopped(Exception):
    """The agent asked the runner to stop. Answer with ``sys.exit(ctl.acknowledge_stop())``."""


class Control:
    """Make it first thing, in the main thread: the handler is installed, then the document is read.

    Args:
        workdir: the work directory; default ``OARBANK_WORKDIR``, else the current one.
    """

    def __init__(self, workdir: str | os.PathLike[str] | None = None) -> None:
        self.workdir = os.fspath(workdir if workdir is not None else os.environ.get("OARBANK_WORKDIR") or os.getcwd())
        self._path = os.path.join(self.workdir, "control.json")
        self._news = threading.Condition(threading.Lock())
        self._read_lock = threading.Lock()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._listeners: list[Callable[[], None]] = []
        self._nudges = 0
        self._nudges_read = -1
        self._reads = 0
        self._doubt = False
        # an agent puts the document there before it starts its runner
        self._present = "OARBANK_ATTEMPT_ID" in os.environ
        self._seq = -1
        self._stop = False
        self._terminated = False
        self._pause = False
        self._threads: int | None = None
        self._gpu_duty: float | None = None
        self._reason: str | None = None
        self._paused_since: float | None = None
        self._paused_s = 0.0
        self._waiters = 0
        self._phase: str | None = None
        self._confirmed: int | None = None
        if hasattr(signal, "SIGUSR1"):
            signal.signal(signal.SIGUSR1, self._on_nudge)
            # An interpreter that leaves takes its handlers back, and the default of this signal ends the process.
            atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._on_term)
        self._refresh()
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    # -- nudges ---------------------------------------------------------------------------------------------------------

    def _on_nudge(self, _number: int, _frame: FrameType | None) -> None:
        self._nudges += 1
        self._wake.put(None)

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._terminated = True
        self._on_nudge(_number, _frame)

    def _listen(self) -> None:
        told = self._reads
        while True:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=RETRY_S if self._doubt else None)
            self._refresh()
            if told == self._reads:
                continue
            told = self._reads
            with self._news:
                self._news.notify_all()
                listeners = list(self._listeners)
            for listener in listeners:
                try:
                    listener()
                except Exception:  # the next nudge is to be read all the same
                    traceback.print_exc()

    def _refresh(self) -> None:
        """Read the document if there was a nudge since it was last read, or if that failed."""
        if self._nudges_read == self._nudges and not self._doubt:
            return
        with self._read_lock:
            nudges, doubt = self._nudges, self._doubt
            if nudges == self._nudges_read and not doubt:
                return
            try:
                document = self._read()
            except (OSError, ValueError, RecursionError):
                self._doubt = True
            else:
                if document is not None:
                    self._apply(document)
                self._doubt = False
            self._stop = self._stop or self._terminated
            if nudges != self._nudges_read or doubt != self._doubt:
                self._reads += 1
            self._nudges_read = nudges

    def _read(self) -> dict[str, Any] | None:
        """The document; None where there never was one. Raises ``OSError``, ``ValueError`` or ``RecursionError``."""
        try:
            with open(self._path, encoding="utf-8") as file:
                raw = json.load(file)
        except FileNotFoundError:
            if self._present:
                raise
            return None
        self._present = True
        if not isinstance(raw, dict) or not isinstance(raw.get("seq"), int) or isinstance(raw["seq"], bool):
            raise ValueError("it is no object with a seq")
        return raw

    def _apply(self, document: dict[str, Any]) -> None:
        seq = int(document["seq"])
        if seq <= self._seq:
            return
        self._seq = seq
        self._stop = self._stop or document.get("stop") is True
        self._pause = document.get("pause") is True
        whole = isinstance(document.get("threads"), int)
        self._threads = _limit(document, "threads", self._threads, 1, lambda value: whole and value >= 1)
        self._gpu_duty = _limit(document, "gpu_duty", self._gpu_duty, 0.0, lambda value: 0.0 <= value <= 1.0)
        reason = document.get("reason")
        self._reason = reason if isinstance(reason, str) else None

    # -- what is asked --------------------------------------------------------------------------------------------------

    @property
    def seq(self) -> int:
        self._refresh()
        return self._seq

    @property
    def stop(self) -> bool:
        self._refresh()
        return self._stop

    @property
    def pause(self) -> bool:
        self._refresh()
        return self._rests

    @property
    def _rests(self) -> bool:
        return self._pause or self._doubt

    @property
    def threads(self) -> int | None:
        """How many threads the runner may use; None: no limit."""
        self._refresh()
        return self._threads

    @property
    def gpu_duty(self) -> float | None:
        """Share of each second it may keep the device busy, 0..1; None: no limit."""
        self._refresh()
        return 0.0 if self._doubt else self._gpu_duty

    @property
    def reason(self) -> str | None:
        self._refresh()
        return "control.json cannot be read" if self._doubt else self._reason

    @property
    def paused_s(self) -> float:
        """Seconds spent held so far: leave them out of any speed reported."""
        with self._news:
            open_s = time.monotonic() - self._paused_since if self._paused_since is not None else 0.0
            return self._paused_s + open_s

    def check(self) -> bool:
        """Do not wait: raise ``Stopped`` on a stop, else say whether a pause is asked for."""
        self._refresh()
        if self._stop:
            raise Stopped(self._reason or "stop")
        if not self._rests and self._confirmed is not None:
            self._goes_on()
        return self._rests

    def safe_point(self) -> None:
        """Hold here while a pause is asked for; raise ``Stopped`` on a stop."""
        while True:
            seen = self.news
            if not self.check():
                return
            self.wait(seen)

    @property
    def news(self) -> int:
        """How often the document was read: take it, look at what is asked, then ``wait(taken)``."""
        return self._reads

    def wait(self, seen: int, timeout_s: float | None = None) -> bool:
        """Sleep until a nudge was read since ``seen``, at most ``timeout_s``; False where none was.

        While a pause is in force the time counts as ``paused_s``, and the pause is confirmed.
        """
        if self._rests:
            self.confirm_pause()
        with self._news:
            # a nudge between the caller's look and this lock must not be slept through
            if self._reads != seen or self._nudges != self._nudges_read:
                return True
            if not self._rests:
                return self._news.wait(timeout_s)
            self._hold_begins()
            try:
                return self._news.wait(timeout_s)
            finally:
                self._hold_ends()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Count the time within as ``paused_s``: for work that rests under a pause without ``wait``, such as a coroutine's."""
        with self._news:
            self._hold_begins()
        try:
            yield
        finally:
            with self._news:
                self._hold_ends()

    def _hold_begins(self) -> None:
        self._waiters += 1
        if self._paused_since is None:
            self._paused_since = time.monotonic()

    def _hold_ends(self) -> None:
        self._waiters -= 1
        if self._waiters == 0 and self._paused_since is not None:
            self._paused_s += time.monotonic() - self._paused_since
            self._paused_since = None

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have ``callback`` called (in another thread) after each nudge was read; what is returned ends that."""
        with self._news:
            self._listeners.append(callback)

        def end() -> None:
            with self._news, contextlib.suppress(ValueError):
                self._listeners.remove(callback)

        return end

    # -- what is told ---------------------------------------------------------------------------------------------------

    def phase(self, name: str) -> None:
        """Name what the runner does now, in one line."""
        self._phase = " ".join(name.split())
        self._replace("phase", self._phase + "\n")

    def confirm_pause(self) -> None:
        """Say by the phase ``paused`` that the work rests under the pause in force; ``safe_point`` and ``wait`` do it.

        Nobody can see that work on a GPU rests while the agent is gone: a runner that does not say so is then ended.
        """
        if self._confirmed != self._seq:
            self._confirmed = self._seq
            with contextlib.suppress(OSError):
                self._replace("phase", "paused\n")

    def _goes_on(self) -> None:
        """Back to the phase that was named last, where one was."""
        self._confirmed = None
        with contextlib.suppress(OSError):
            if self._phase is not None:
                self._replace("phase", self._phase + "\n")
            else:
                os.unlink(os.path.join(self.workdir, "phase"))

    def acknowledge_stop(self, reason: str | None = None) -> int:
        """Write ``failure.json`` for a stop that was asked for; returns the exit code to leave with (75)."""
        short = os.environ.get("OARBANK_MODULE", "module")
        detail = self._reason or "stopped at a safe point"
        document = {"reason": reason or f"{short}/stopped", "detail": detail, "fault": "transient"}
        self._replace("failure.json", json.dumps(document))
        return TRANSIENT

    def _replace(self, name: str, text: str) -> None:
        path = os.path.join(self.workdir, name)
        temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)


def _limit(document: dict[str, Any], key: str, before: Any, least: Any, fits: Callable[[Any], bool]) -> Any:
    """A limit as asked; one that makes no sense leaves the one in force, or is the least, since no limit would be more than was asked."""
    value = document.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not fits(value):
        return least if before is None else before
    return value
