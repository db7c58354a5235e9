"""Hold a duty: the share of each second that a runner keeps the device busy.

Standard library only, one file; a module may carry a copy of it beside ``control.py``.

The account is a leaky bucket of device seconds. What a unit used goes in, the duty leaks out with time, and a unit may start
when the bucket is empty. So after a unit that used ``b`` seconds at duty ``d`` the next one starts ``b/d`` after it started, and
short units do not add up to more than ``d``. An overshooting sleep is not paid a second time: the bucket may run dry by
at most ``CREDIT_S`` of leak, so that lateness never becomes a burst.

What counts as used is what the meter counts: on a GPU the wall time in which at least one unit was open, on ``cpu`` the CPU time of
the process and its children, in units or between them, over the cores that the stage declares.

On ``cpu`` going to sleep and waking is work of the device itself: 0.2 ms where a virtual machine's idle core has to be woken and its
caches filled anew, a fifth of a unit of 1 ms. So units shorter than ``BURST_S`` run a few in a row there, as many as keep the price
of waking near ``WAKE_SHARE``, and the idle after them is theirs together. Over any second that adds at most ``BURST_S``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

if sys.platform != "win32":
    import resource
if TYPE_CHECKING:
    from cotenant.sdk.control import Control

__all__ = ["Duty"]

CREDIT_S = 0.050
BURST_S = 0.020
WAKE_SHARE = 0.01
# What a sleep and its waking cost in all, as a multiple of what the sleeping thread is charged: the work after it runs slower
# for a while. Measured on a virtual machine: 60 us charged, 150 us more in the units that follow.
WAKE_WHOLE = 3.0
REPORT_S = 2.0
# an idle this short is slept through: waking for a document would cost more than it saves
PLAIN_SLEEP_S = 0.003
CHILDREN_EVERY_S = 0.050
# Waking up costs CPU time, which is owed as well. Paid before the unit it would want another sleep, and so on; it is
# carried over to the next unit instead, up to this much.
WAKE_S = 0.001
# how often a control that cannot be waited for (another host's) is looked at
LOOK_S = 0.020
RECENT_UNITS = 8
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Duty:
    """The governor of one runner.

    Args:
        ctl: the runner's ``Control``, whose ``gpu_duty`` is followed; None for a workload that calls ``set``. Any object with
            ``gpu_duty`` and ``safe_point()`` will do; one without ``wait`` and ``news`` is looked at every 20 ms.
        events: path of ``events.ndjson``; a ``gpu_duty`` metric is written there every two seconds.
        device: "gpu" or "cpu": what is counted, and what the reports say.
        cores: on ``cpu`` the cores that a duty of 1 stands for; default: ``resources.cpu`` of ``spec.json``, else 1.
    """

    def __init__(
        self,
        ctl: Control | None,
        events: str | os.PathLike[str] | None = None,
        device: Literal["gpu", "cpu"] = "gpu",
        *,
        cores: float | None = None,
    ) -> None:
        if device not in ("gpu", "cpu"):
            raise ValueError(f'device is "gpu" or "cpu", not {device!r}')
        self._ctl = ctl
        self._waits = hasattr(ctl, "wait") and hasattr(ctl, "news")
        self.device = device
        self._cores = cores if cores is not None else _declared_cores(ctl) if device == "cpu" else 1.0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._own: float | None = None
        self._changes = 0
        self._rate: float | None = self._asked()
        self._debt_s = 0.0
        self._open = 0
        self._inside: dict[object, int] = {}
        self._busy_s = 0.0
        self._idle_s = 0.0
        self._idlers = 0
        self._idle_since = 0.0
        self._units: deque[float] = deque(maxlen=RECENT_UNITS)
        # a short unit's own time is known when the account is next brought up to now: what was used before it began
        self._before_unit_s = 0.0
        self._unit_ended = False
        self._wake_s = 0.0
        self._burst_s = 0.0
        self._children_s = 0.0
        self._children_at = -1.0
        self._closed = threading.Event()
        self._mark = time.monotonic()
        self._cpu_mark = self._cpu_s(self._mark) if device == "cpu" else 0.0
        # a change in the middle of a unit parts the unit: what comes after it is owed at the new duty
        self._deaf = ctl.listen(self._apply_change) if ctl is not None and hasattr(ctl, "listen") else lambda: None
        self._reporter: threading.Thread | None = None
        if events is not None:
            self._reporter = threading.Thread(target=self._report, args=(os.fspath(events),), name="duty", daemon=True)
            self._reporter.start()

    # -- the account ----------------------------------------------------------------------------------------------------

    def _asked(self) -> float | None:
        return self._ctl.gpu_duty if self._ctl is not None else self._own

    def _settle(self) -> float:
        """Bring the account up to now; call it with the lock held. Returns now (monotonic seconds)."""
        now = time.monotonic()
        elapsed = now - self._mark
        if self.device == "cpu":
            cpu = self._cpu_s(now)
            used = max(0.0, cpu - self._cpu_mark) / self._cores
            self._cpu_mark = max(cpu, self._cpu_mark)
        else:
            used = elapsed if self._open else 0.0
        self._mark = now
        self._busy_s += used
        if self._unit_ended:
            self._unit_ended = False
            self._units.append(self._busy_s - self._before_unit_s)
        rate = self._rate
        if rate is None:
            self._debt_s = 0.0
        else:
            self._debt_s = max(-CREDIT_S * rate, self._debt_s + used - rate * elapsed)
        # a change of the duty applies from here on: what was owed stays owed, and leaks at the new rate
        self._rate = self._asked()
        return now

    def _apply_change(self) -> None:
        with self._lock:
            self._settle()

    def _wait_s(self, slack_s: float) -> float | None:
        """How long until a unit may start: 0 now, None until the duty changes. A debt of ``slack_s`` may stay."""
        rate = self._rate
        if rate is None:
            return 0.0
        if rate <= 0.0:
            return None
        # a unit of b seconds adds b * (1 - rate) to the debt
        if self._debt_s <= max(slack_s, self._burst_s * (1.0 - rate)):
            return 0.0
        return self._debt_s / rate

    def _cpu_s(self, now: float) -> float:
        """CPU seconds of this process and all its descendants so far."""
        if now - self._children_at >= CHILDREN_EVERY_S:
            self._children_at = now
            alive = _descendants_cpu_s(os.getpid()) if _has_children() else 0.0
            # while a child is collected it may be missing from both for a moment; the sum never falls
            self._children_s = max(self._children_s, _collected_cpu_s() + alive)
        return time.process_time() + self._children_s

    # -- units ----------------------------------------------------------------------------------------------------------

    def unit(self) -> _Unit:
        """One unit of work on the device: ``with duty.unit(): …`` or ``async with duty.unit(): …``.

        Entering waits until a unit may start; a stop raises ``Stopped`` there. End the block when the device has finished.
        """
        return _Unit(self)

    def _enter(self, who: object) -> float:
        slack_s = 0.0
        while True:
            seen = self._look()
            with self._lock:
                changes = self._changes
                now = self._settle()
                wait_s = 0.0 if who in self._inside else self._wait_s(slack_s)
                if wait_s == 0.0:
                    self._begins(who)
                    return now
                self._idle_begins(now)
            before = time.thread_time() if self.device == "cpu" else 0.0
            try:
                slack_s = WAKE_S if self._sleep(seen, changes, wait_s) else 0.0
            finally:
                with self._lock:
                    self._idle_ends()
                    self._learn(before)

    def _look(self) -> int:
        """Pause and stop are obeyed before the account is looked at."""
        if self._ctl is None:
            return 0
        if not self._waits:
            self._ctl.safe_point()
            return 0
        seen = self._ctl.news
        if self._ctl.check():
            self._ctl.safe_point()
            seen = self._ctl.news
        return seen

    def _sleep(self, seen: int, changes: int, wait_s: float | None) -> bool:
        """Sleep; whether it was to the end."""
        if wait_s is not None and wait_s <= PLAIN_SLEEP_S:
            time.sleep(wait_s)
            return True
        if self._ctl is not None and not self._waits:
            time.sleep(LOOK_S if wait_s is None else min(LOOK_S, wait_s))
            return wait_s is not None and wait_s <= LOOK_S
        if self._ctl is not None:
            return not self._ctl.wait(seen, wait_s)
        with self._changed:
            return self._changes == changes and not self._changed.wait(wait_s)

    def _learn(self, before: float) -> None:
        """What one sleep costs this thread in CPU time, and so how much work should stand between two of them."""
        if self.device == "cpu":
            cost_s = min(time.thread_time() - before, WAKE_S)
            self._wake_s += (cost_s - self._wake_s) / (4.0 if self._wake_s > 0.0 else 1.0)
            self._burst_s = min(BURST_S, WAKE_WHOLE * self._wake_s / self._cores / WAKE_SHARE)

    async def _enter_async(self, who: object) -> float:
        import asyncio

        loop = asyncio.get_running_loop()
        news = asyncio.Event()
        end = self._subscribe(lambda: loop.call_soon_threadsafe(news.set))
        slack_s = 0.0
        try:
            while True:
                news.clear()
                paused = self._waits and self._ctl is not None and self._ctl.check()
                if paused and self._ctl is not None and hasattr(self._ctl, "confirm_pause"):
                    self._ctl.confirm_pause()
                if not self._waits and self._ctl is not None:
                    self._ctl.safe_point()
                wait_s: float | None = None
                with self._lock:
                    now = self._settle()
                    if not paused:
                        wait_s = 0.0 if who in self._inside else self._wait_s(slack_s)
                        if wait_s == 0.0:
                            self._begins(who)
                            return now
                        self._idle_begins(now)
                before = time.thread_time() if self.device == "cpu" else 0.0
                look_s = wait_s
                if self._ctl is not None and not self._waits:
                    look_s = LOOK_S if wait_s is None else min(wait_s, LOOK_S)
                try:
                    slack_s = 0.0
                    with self._held() if paused else contextlib.nullcontext():
                        await asyncio.wait_for(news.wait(), look_s)
                except TimeoutError:
                    slack_s = WAKE_S if look_s == wait_s else 0.0
                finally:
                    if not paused:
                        with self._lock:
                            self._idle_ends()
                            self._learn(before)
        finally:
            end()

    def _held(self) -> contextlib.AbstractContextManager[None]:
        """Time held is no idle for the duty: the control counts it, where it can."""
        return self._ctl.held() if self._ctl is not None and hasattr(self._ctl, "held") else contextlib.nullcontext()

    def _subscribe(self, callback: Any) -> Any:
        if self._ctl is not None:
            return self._ctl.listen(callback) if self._waits else lambda: None
        ended = threading.Event()

        def relay() -> None:
            with self._changed:
                seen = self._changes
                while not ended.is_set():
                    if self._changes == seen:
                        self._changed.wait()
                    seen = self._changes
                    if not ended.is_set():
                        callback()

        def end() -> None:
            ended.set()
            with self._changed:
                self._changed.notify_all()

        threading.Thread(target=relay, daemon=True).start()
        return end

    def _begins(self, who: object) -> None:
        self._open += 1
        depth = self._inside.get(who, 0)
        self._inside[who] = depth + 1
        if depth == 0:
            self._before_unit_s = self._busy_s

    def _exit(self, who: object, started: float) -> None:
        with self._lock:
            depth = self._inside.pop(who) - 1
            if depth:
                self._inside[who] = depth
            if self.device == "cpu" and time.monotonic() - started < BURST_S:
                # All CPU time is owed, within a unit or not, and the next entry counts it: to count it here too
                # would double what a short unit pays for its account.
                self._open -= 1
                self._unit_ended = True
                return
            now = self._settle()
            self._open -= 1
            self._units.append(now - started if self.device == "gpu" else self._busy_s - self._before_unit_s)

    def _idle_begins(self, now: float) -> None:
        self._idlers += 1
        if self._idlers == 1:
            self._idle_since = now

    def _idle_ends(self) -> None:
        self._idlers -= 1
        if self._idlers == 0:
            self._idle_s += time.monotonic() - self._idle_since

    # -- what it tells --------------------------------------------------------------------------------------------------

    @property
    def busy_s(self) -> float:
        """Device seconds used so far."""
        with self._lock:
            self._settle()
            return self._busy_s

    @property
    def idle_s(self) -> float:
        """Seconds idled for the duty so far: leave them out of a throughput per busy second."""
        with self._lock:
            open_s = time.monotonic() - self._idle_since if self._idlers else 0.0
            return self._idle_s + open_s

    def scale(self) -> float:
        """By what factor (0..1] the next units should shrink for one to fit the duty's share of a second; 1 when they fit."""
        with self._lock:
            self._settle()
            longest = max(self._units, default=0.0)
            if self._rate is None or longest <= self._rate:
                return 1.0
            return max(self._rate / longest, 0.001)

    def set(self, duty: float | None) -> None:
        """The duty from now on, for a governor without a control document; None: no limit."""
        if duty is not None and not 0.0 <= duty <= 1.0:
            raise ValueError(f"a duty is between 0 and 1, not {duty!r}")
        with self._changed:
            self._own = duty
            self._settle()
            self._changes += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End the reports, with a last one for the time since the one before."""
        self._closed.set()
        self._deaf()
        if self._reporter is not None:
            self._reporter.join()
            self._reporter = None

    def __enter__(self) -> Duty:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report(self, path: str) -> None:
        since, before = time.monotonic(), self.busy_s
        while True:
            last = self._closed.wait(REPORT_S)
            with self._lock:
                now = self._settle()
                busy, asked = self._busy_s, self._rate
            span = now - since
            if span > 0.0 and (not last or span >= REPORT_S / 4.0):
                line = {
                    "type": "metric",
                    "name": "gpu_duty",
                    "value": round((busy - before) / span, 4),
                    "duty": asked,
                    "device": self.device,
                    "t": round(time.time(), 3),
                }
                with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                since, before = now, busy
            if last:
                return


class _Unit:
    """One block. One within a block of the same thread or task begins at once: the device is in use, waiting would only add debt."""

    __slots__ = ("_duty", "_started", "_who")

    def __init__(self, duty: Duty) -> None:
        self._duty = duty
        self._started = 0.0
        self._who: object = None

    def __enter__(self) -> None:
        self._who = _who()
        self._started = self._duty._enter(self._who)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._duty._exit(self._who, self._started)

    async def __aenter__(self) -> None:
        self._who = _who()
        self._started = await self._duty._enter_async(self._who)

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._duty._exit(self._who, self._started)


def _who() -> object:
    """The task where one runs in this thread, else the thread; a child forked within a unit has both and is not within it."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task()
            if task is not None:
                return os.getpid(), task
    return os.getpid(), threading.get_ident()


def _declared_cores(ctl: Control | None) -> float:
    """``resources.cpu`` of the attempt's ``spec.json``; 1 where it says nothing usable."""
    if ctl is None:
        return 1.0
    try:
        with open(os.path.join(ctl.workdir, "spec.json"), encoding="utf-8") as file:
            cores = json.load(file)["resources"]["cpu"]
    except (OSError, ValueError, KeyError, TypeError):
        return 1.0
    return float(cores) if isinstance(cores, (int, float)) and cores > 0 else 1.0


def _collected_cpu_s() -> float:
    """CPU seconds of the children that were collected; 0 on Windows, which keeps no such count."""
    if sys.platform == "win32":
        return 0.0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _has_children() -> bool:
    """One system call, against dozens for looking them up; most runners have none."""
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return True


def _descendants_cpu_s(pid: int) -> float:
    """CPU seconds of the live descendants, with those of children they have collected; 0 where /proc does not say."""
    return sum(_cpu_of(child) for child in _descendants(pid))


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    return found


def _cpu_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            raw = file.read()
    except OSError:
        return 0.0
    fields = raw[raw.rindex(b")") + 2 :].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS
