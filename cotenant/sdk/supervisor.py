"""Run a workload's processes under its control document: stop, pause, and a callback for the duty.

Standard library only, one file; a module may carry a copy of it. POSIX.

A workload (a server, a daemon) is not written against the control document, so its module starts it through this. The supervisor is the
runner process: it is nudged with SIGUSR1, reads ``<workdir>/control.json`` then and only then, and applies it:

* **pause**: every process of the workload is stopped with SIGSTOP, new children too, until a newer document clears it; or, with
  ``on_pause``, the callback is told instead. A workload that is to begin paused is not started before it may run;
* **gpu_duty**: the ``gpu_duty`` callback gets the new duty (None: no limit), before the first process starts and on every change;
* **stop** (or SIGTERM): SIGCONT and SIGTERM to all processes, SIGKILL to what is left after ``stop_grace_s``.

A document that cannot be read, or is gone, counts as a pause until it can be read; where there never was one, and no agent, nothing is
asked.
Where a callback fails the limit that it was told is not held, so everything is stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Supervisor"]

TRANSIENT = 75
LOOK_S = 0.05
KILL_LIMIT_S = 10.0
STILL_LIMIT_S = 1.0


class Supervisor:
    """Make it in the main thread; with a ``Control`` in the same process make that one first.

    Args:
        argv: one process's argument vector, or a list of them for several processes.
        gpu_duty: called with each new duty, 0..1 or None, from the supervisor's thread (the first time from ``start``).
        workdir: where the control document is; default ``OARBANK_WORKDIR``, else the current directory.
        threads: like ``gpu_duty``, for the limit of that name.
        on_pause: called with True and False in place of stopping the processes by signal; for a workload that pauses itself.
        stop_grace_s: seconds between SIGTERM and SIGKILL; choose it below the manifest's.
        cwd, env: for the processes; default: this one's.

    ``run()`` starts, waits and gives the exit code. A workload with work of its own in this process uses ``start()``,
    ``alive`` and ``close()``, or ``with Supervisor(...) as supervisor:``.
    """

    def __init__(
        self,
        argv: Sequence[str] | Sequence[Sequence[str]],
        *,
        gpu_duty: Callable[[float | None], object] | None = None,
        workdir: str | os.PathLike[str] | None = None,
        threads: Callable[[int | None], object] | None = None,
        on_pause: Callable[[bool], object] | None = None,
        stop_grace_s: float = 8.0,
        cwd: str | os.PathLike[str] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self._argvs = _argvs(argv)
        self.workdir = os.fspath(workdir if workdir is not None else os.environ.get("OARBANK_WORKDIR") or os.getcwd())
        self._callbacks: list[tuple[str, Callable[[Any], object], Any]] = []
        if gpu_duty is not None:
            self._callbacks.append(("gpu_duty", gpu_duty, _UNSET))
        if threads is not None:
            self._callbacks.append(("threads", threads, _UNSET))
        self._on_pause = on_pause
        self.stop_grace_s = stop_grace_s
        self._cwd, self._env = cwd, env
        self._seq = -1
        self._document: dict[str, Any] = {"seq": -1}
        self._doubt = False
        # an agent puts the document there before it starts its runner
        self._present = "OARBANK_ATTEMPT_ID" in os.environ
        self._terminated = False
        self._closing = False
        self._paused = False
        self._confirmed: int | None = None
        self._held = False
        self._failure: str | None = None
        self._stop_reason: str | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        self._own_ends: list[int] = []
        self._met: dict[int, str] = {}
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._earlier: dict[int, Any] = {}
        for number in (signal.SIGUSR1, signal.SIGTERM):
            self._earlier[number] = signal.getsignal(number)
        signal.signal(signal.SIGUSR1, self._on_nudge)
        # An interpreter that leaves takes its handlers back, and the default of this signal ends the process.
        atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_term)

    # -- from outside ---------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Start the processes, wait until the workload has ended, and give the code to exit with.

        75 after a stop (``failure.json`` is written), 0 where every process ended with 0, else the first other exit code
        (128 + the signal where one was killed).
        """
        self.start()
        while not self._ended.wait(1.0):
            pass
        return self.exit_code()

    def start(self) -> None:
        """Apply the document in force, start the processes (unless paused), and follow the document from now on."""
        if self._thread is not None:
            raise RuntimeError("this Supervisor was started before; make a new one")
        self._read()
        self._thread = threading.Thread(target=self._follow, name="supervisor", daemon=True)
        self._tell_limits()
        try:
            if not self._over and not self._pause_asked:
                self._spawn()
            self._thread.start()
        except BaseException:
            self._kill()  # nobody follows them
            raise
        # an interrupt, or a program that leaves without close(), would leave them behind
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        """Whether the workload goes on: nothing asked it to stop and no process has ended."""
        return not self._ended.is_set() and not self._over

    @property
    def stopped(self) -> bool:
        """Whether a stop was asked for."""
        return self._stop_reason is not None

    @property
    def paused(self) -> bool:
        """Whether the pause that is asked for is in force: every process seen stopped, or ``on_pause`` told."""
        return self._paused

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the workload has ended; whether it has."""
        return self._ended.wait(timeout_s)

    def close(self) -> int:
        """End the processes, in order, and give the code to exit with."""
        self._closing = True
        self._wake.put(True)
        atexit.unregister(self.close)
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(self.stop_grace_s + 2.0 * KILL_LIMIT_S)
            if self._thread.is_alive():
                self._kill()  # a callback that does not come back
        self._give_back_term()
        return self.exit_code()

    def _give_back_term(self) -> None:
        """A program that goes on without a workload can be ended by SIGTERM again; one that was asked to stop is leaving."""
        mine = (
            threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == self._on_term
        )
        if mine and not self.stopped:
            signal.signal(signal.SIGTERM, self._earlier[signal.SIGTERM] or signal.SIG_DFL)

    def exit_code(self) -> int:
        if self._failure is not None:
            return 1
        if self._stop_reason is not None:
            return TRANSIENT
        bad = [code for code in self._own_ends if code] if not self._closing else []
        return 0 if not bad else bad[0] if bad[0] > 0 else 128 - bad[0]

    def __enter__(self) -> Supervisor:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the document ---------------------------------------------------------------------------------------------------

    def _on_nudge(self, number: int, frame: FrameType | None) -> None:
        self._wake.put(True)
        earlier = self._earlier.get(number)
        if callable(earlier):
            earlier(number, frame)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True
        self._on_nudge(number, frame)

    def _read(self) -> None:
        """Take the document over where its ``seq`` is newer; what one asked that cannot be read is not known."""
        raw: Any = None
        try:
            with open(os.path.join(self.workdir, "control.json"), encoding="utf-8") as file:
                self._present = True
                raw = json.load(file)
        except (OSError, ValueError, RecursionError) as error:
            self._present = self._present or not isinstance(error, FileNotFoundError)
        seq = raw.get("seq") if isinstance(raw, dict) else None
        known = seq if isinstance(seq, int) and not isinstance(seq, bool) else None
        self._doubt = self._present and known is None
        if known is not None and known > self._seq:
            self._seq = known
            for name, (fits, least) in _LIMITS.items():
                value = raw.get(name)
                if value is not None and not fits(value):  # no limit would be more than was asked
                    before = self._document.get(name)
                    raw[name] = least if before is None else before
            self._document = raw
        if self._stop_reason is None and (self._document.get("stop") is True or self._terminated):
            reason = self._document.get("reason")
            self._stop_reason = reason if isinstance(reason, str) else "stop"

    @property
    def _pause_asked(self) -> bool:
        return self._doubt or self._document.get("pause") is True

    @property
    def _over(self) -> bool:
        return self._stop_reason is not None or self._failure is not None or self._closing

    def _tell_limits(self) -> None:
        for at, (name, callback, told) in enumerate(self._callbacks):
            value = self._document.get(name)
            if told is not _UNSET and value == told:
                continue
            if told is _UNSET and value is None:
                continue  # no limit is what a workload begins with
            if self._call(callback, value, name):
                self._callbacks[at] = (name, callback, value)

    def _call(self, callback: Callable[[Any], object], value: Any, name: str) -> bool:
        try:
            callback(value)
        except Exception as error:
            traceback.print_exc()
            self._failure = f"{name} could not be applied: {error!r}"
            return False
        return True

    # -- the processes --------------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        for argv in self._argvs:
            # a group of its own in the same session: it can be signalled whole, and nothing detaches
            try:
                process = subprocess.Popen(argv, cwd=self._cwd, env=self._env, process_group=0)
            except OSError as error:
                self._failure = f"{argv[0]} cannot be started: {error.strerror}"
                return
            self.processes.append(process)

    def _follow(self) -> None:
        try:
            while not self._over:
                # a child's end is seen by looking: SIGCHLD belongs to the program that this runs in
                with contextlib.suppress(queue.Empty):
                    self._wake.get(timeout=LOOK_S if self._pause_asked and not self._paused else 4.0 * LOOK_S)
                self._read()
                if self._over:
                    break  # a stop lifts no limit
                self._obey()
                self._confirm_pause()
                self._tree()  # met now, who loses the parent later is still known
                if self.processes and not self._pause_asked and self._any_ended():
                    break
            self._end()
        except Exception as error:
            traceback.print_exc()
            self._failure = f"the supervisor failed: {error!r}"
            self._kill()
        finally:
            self._ended.set()

    def _obey(self) -> None:
        """Pause or resume, and tell of new limits: of those that came with a pause by signal, or during it, when it is over.

        A callback may ask the workload's own server, which gives no answer while it is stopped.
        """
        by_signal = self._on_pause is None and bool(self.processes)
        if by_signal and (self._held or self._pause_asked):
            self._apply_pause()
            if not self._held:
                self._tell_limits()
        else:
            self._tell_limits()
            self._apply_pause()

    def _any_ended(self) -> bool:
        """Whether one failed, or all are done."""
        codes = [_exit_code(process) for process in self.processes]
        return any(codes) or None not in codes

    def _apply_pause(self) -> None:
        if self._on_pause is not None:
            if self._pause_asked != self._paused and self._call(self._on_pause, self._pause_asked, "pause"):
                self._paused = self._pause_asked
            if not self.processes and not self._pause_asked:
                self._spawn()
        elif self._pause_asked:
            # looked at again each time: a child made in the same moment would run on
            self._held = True
            self._signal(signal.SIGSTOP)
            self._paused = all(_state(pid) in "TtZX" for pid in self._tree())
        elif not self.processes:
            self._paused = False
            self._spawn()
        elif self._held:
            self._held = self._paused = False
            self._signal(signal.SIGCONT)

    def _confirm_pause(self) -> None:
        """Say by the phase ``paused`` that the pause in force holds, and take that back when it is over.

        Nobody can see that work on a GPU rests while the agent is gone: a workload that does not say so is then ended.
        """
        path = os.path.join(self.workdir, "phase")
        with contextlib.suppress(OSError):
            if self._paused and self._pause_asked and self._confirmed != self._seq:
                self._replace(path, "paused\n")
                self._confirmed = self._seq
            elif self._confirmed is not None and not self._pause_asked:
                self._replace(path, "work\n")
                self._confirmed = None

    @staticmethod
    def _replace(path: str, text: str) -> None:
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)

    def _tree(self) -> list[int]:
        """Pids of the processes that have not ended, of all below them, and of those met there before whose parent has ended since."""
        found = [process.pid for process in self.processes if _exit_code(process) is None]
        found += [pid for pid, born in self._met.items() if pid not in found and _born(pid) == born]
        for pid in found:
            found += [child for child in _children(pid) if child not in found]
        self._met = {pid: born for pid in found if (born := _born(pid)) is not None}
        return found

    def _signal(self, number: int) -> None:
        # Looked at first: of who ends at once by the signal nobody could tell the children any more.
        tree = self._tree()
        # Ended ones are collected last of all: until then no stranger can get their number, nor their group's.
        for process in self.processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
        for pid in tree:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _end(self) -> None:
        # What ends from here on was ended by us: that is no exit code of the workload.
        self._own_ends = [code for process in self.processes if (code := _exit_code(process)) is not None]
        if self._failure is None and self._stop_reason is not None:
            self._tell_failure("stopped", self._stop_reason, "transient")
        elif self._failure is not None:
            self._tell_failure("failed", self._failure, "job")
        # Who lost the parent before it was met is known by the group, and gets the grace as well.
        self._met.update(_members({process.pid for process in self.processes if process.returncode is None}))
        self._still()
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a stopped process could not run its handler
        deadline = time.monotonic() + self.stop_grace_s
        while self._tree() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        self._kill()

    def _still(self) -> None:
        """Stop them all, and look until nobody came anew: a child made between the look and the end of its parent is met by nobody."""
        deadline = time.monotonic() + STILL_LIMIT_S
        stopped: set[int] | None = None
        while time.monotonic() < deadline:
            self._signal(signal.SIGSTOP)
            tree = set(self._tree())
            if tree == stopped:
                return
            stopped = tree if all(_state(pid) in "TtZX" for pid in tree) else None
            time.sleep(LOOK_S / 10.0)

    def _kill(self) -> None:
        self._still()
        deadline = time.monotonic() + KILL_LIMIT_S
        self._signal(signal.SIGKILL)
        while self._tree() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            time.sleep(LOOK_S)
        for process in self.processes:
            process.poll()

    def _tell_failure(self, what: str, detail: str, fault: str) -> None:
        short = os.environ.get("OARBANK_MODULE", "module")
        path = os.path.join(self.workdir, "failure.json")
        with contextlib.suppress(OSError):
            self._replace(path, json.dumps({"reason": f"{short}/{what}", "detail": detail, "fault": fault}))


_UNSET = object()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_LIMITS: dict[str, tuple[Callable[[Any], bool], float]] = {
    "gpu_duty": (lambda value: _is_number(value) and 0.0 <= value <= 1.0, 0.0),
    "threads": (lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1, 1),
}


def _argvs(argv: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    if isinstance(argv, (str, bytes)) or not argv:
        raise ValueError("argv is a list of arguments, or a list of such lists; no shell is used")
    if all(isinstance(part, str) for part in argv):
        return [[str(part) for part in argv]]
    found = [[str(part) for part in one] for one in argv if not isinstance(one, str)]
    if len(found) != len(argv) or not all(found):
        raise ValueError("argv is a list of arguments, or a list of such lists; no shell is used")
    return found


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Like ``poll()``, without collecting it."""
    if process.returncode is not None:
        return int(process.returncode)
    try:
        seen = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return process.poll()
    if seen is None:
        return None
    return int(seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status)


def _children(pid: int) -> list[int]:
    """Pids of the children, where /proc lists them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    return found


def _members(groups: set[int]) -> dict[int, str]:
    """Pid and start of who is in one of these process groups and has not ended, where /proc says."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc") if groups else []:
            with contextlib.suppress(OSError):
                if name.isdigit() and os.getpgid(int(name)) in groups and (born := _born(int(name))) is not None:
                    found[int(name)] = born
    return found


def _born(pid: int) -> str | None:
    """When it started, by the kernel's ticks: with the pid the name of one process. None where it has ended."""
    try:
        fields = _fields(f"/proc/{pid}/stat")
    except OSError:
        return None
    return None if fields[0] in "ZX" and int(fields[17]) <= 1 else fields[19]


def _fields(path: str) -> list[str]:
    """Of a stat file, from the state on."""
    with open(path, "rb") as file:
        raw = file.read()
    return raw[raw.rindex(b")") + 2 :].decode("ascii").split()


def _state(pid: int) -> str:
    """Its state letter, or that of a thread that runs where its first one has ended and others go on. X where it is gone, and T
    where there is no /proc to say: what was sent to it stops it.
    """
    try:
        fields = _fields(f"/proc/{pid}/stat")
        if fields[0] not in "ZX" or int(fields[17]) <= 1:
            return fields[0]
        states = [_state_of_thread(f"/proc/{pid}/task/{thread}/stat") for thread in os.listdir(f"/proc/{pid}/task")]
        return next((state for state in states if state not in "TtZX"), "T")
    except FileNotFoundError:
        return "X" if os.path.isdir("/proc/self") else "T"
    except OSError:
        return "X"


def _state_of_thread(path: str) -> str:
    try:
        return _fields(path)[0]
    except OSError:
        return "X"
