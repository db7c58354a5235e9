"""The keeper of one attempt: starts the runner, watches the agent, ends the attempt when nobody watches any more.

Run as ``python -I -S launcher.py ATTEMPT_DIR`` in a session of its own; standard library only. What it is told stands in
``ATTEMPT_DIR/launch.json``, what it tells stands beside it: ``launcher.json`` and ``runner.json`` (who they are),
``lost.json`` (it had to act because the agent was gone), ``exit.json`` (how the attempt ended, written when the last process is gone).

The agent writes a byte to the FIFO ``alive`` at each tick. End of file, or 10 s without a byte, means that nobody protects
the owner's program any more. Then, within a second (``protection.md``, "The agent dying must not unleash fleet work"):
``freeze_ok``: the tree is stopped; ``cooperative_pause``: pause document and nudge, ended if it goes on using CPU, or if it
works on a GPU (what it does there cannot be read here) and does not confirm by the phase ``paused``; neither: TERM, grace, KILL.
Bytes that come back mean that an agent took the attempt over: it decides what happens next.

A runner never detaches: what is left of the tree when the runner ends is killed. The launcher is a child subreaper, so whatever the
runner orphans stays below it.

Two processes share the work. The guardian (``guardian.py``) only waits: when the launcher dies, it inherits and kills what was below.
When the guardian dies, the launcher ends the attempt in order.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nodes.jobs import below, cgroup, guardian, output, proctree, runnerfiles, runnerstart, unwatched
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import below
    import cgroup
    import guardian
    import output
    import proctree
    import runnerfiles
    import runnerstart
    import unwatched

    del sys.path[0]

PR_SET_CHILD_SUBREAPER = 36
SA_NOCLDSTOP = 1
GO_TIMEOUT_S = 30.0
OUTPUT_BYTES = 1 << 20
LAUNCH_BYTES_MAX = 64 << 20


class _SigAction(ctypes.Structure):
    """As the C library has it on 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def _hear_only_of_ends() -> None:
    """No SIGCHLD for a child that is stopped or goes on: in that moment every launcher of a node would run, on the cores that its
    runner needs to come to its stop.
    """
    libc, action = ctypes.CDLL(None, use_errno=True), _SigAction()
    if libc.sigaction(int(signal.SIGCHLD), None, ctypes.byref(action)) == 0:
        action.flags |= SA_NOCLDSTOP
        libc.sigaction(int(signal.SIGCHLD), ctypes.byref(action), None)


class Launcher:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.told = runnerfiles.read_document(os.path.join(folder, "launch.json"), LAUNCH_BYTES_MAX) or {}
        self.system = proctree.ProcSystem()
        self.grace_s = float(self.told["stop_grace_s"])
        self.silence_s = float(self.told["silence_s"])
        self.adopt_s = float(self.told["adopt_s"])
        me = self.system.stat(os.getpid())
        assert me is not None
        self.me = me
        self.below = below.Below(self.system, me)
        self.unwatched = unwatched.Unwatched(
            self.below,
            self.told["capabilities"],
            gpu=bool(self.told.get("gpu", True)),  # of a launch that does not say it, it cannot be told
            adopt_s=self.adopt_s,
            phase=os.path.join(self.told["workdir"], "phase"),
            ask_to_pause=lambda why: self._document(pause=True, reason=why),
        )
        self.runner: proctree.Proc | None = None
        self.status: int | None = None
        self.ended_by: str | None = None
        self.started_mono = 0.0
        self.last_byte = time.monotonic()
        self.told_to_end: int | None = None
        self.left: list[str] = []
        self.group_cpu_s = 0.0
        self.kill_at: float | None = None
        self.fifo = -1
        self.outputs: list[output.Output] = []

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    # -- start ----------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.fifo = os.open(self.path("alive"), os.O_RDONLY | os.O_NONBLOCK)
        self._tell("launcher.json", self.me)
        if not self._wait_for_go():
            return 1
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for sig in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(sig, self._on_signal)
        _hear_only_of_ends()
        # Before the fork: a nudge must not meet the default action in a child that has not come to its own yet.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.outputs = [
            output.Output(self.path("stdout.log"), OUTPUT_BYTES),
            output.Output(self.path("stderr.log"), OUTPUT_BYTES),
        ]
        self._spawn()
        self._watch(wake_read)
        self._clear_away()
        self._report()
        return 0

    def _wait_for_go(self) -> bool:
        """The first byte says that this launcher stands in the spawn registry. Without it nothing is started."""
        poll = select.poll()
        poll.register(self.fifo, select.POLLIN)
        deadline = time.monotonic() + GO_TIMEOUT_S
        while time.monotonic() < deadline:
            poll.poll(1000)
            try:
                if os.read(self.fifo, 4096):
                    self.last_byte = time.monotonic()
                    return True
                return False  # no writer: the agent is gone
            except BlockingIOError:
                continue
        return False

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self.told_to_end = number

    def _tell(self, name: str, proc: proctree.Proc, **more: Any) -> None:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot_id = file.read().strip()
        document = {
            "attempt_id": self.told["attempt_id"],
            "pid": proc.pid,
            "start_ticks": proc.start_ticks,
            "boot_id": boot_id,
            "mono_s": time.monotonic(),
            **more,
        }
        runnerfiles.write_document(self.path(name), document, durable=True)

    def _spawn(self) -> None:
        parent = os.getpid()
        self.started_mono = time.monotonic()
        go_read, go_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(go_write)
                outputs = [stream.write_fd for stream in self.outputs]
                runnerstart.become_runner(self.told, outputs, parent, go_read)
            except BaseException as error:
                os.write(2, f"cannot start {self.told['argv'][0]!r}: {error}\n".encode())
            finally:
                os._exit(127)
        os.close(go_read)
        for stream in self.outputs:
            os.close(stream.write_fd)
        self.runner = self.below.runner = self.system.stat(pid)
        assert self.runner is not None  # our own child, not reaped yet
        path = self.told.get("cgroup")
        if path is not None:
            group = cgroup.Group(path, self.told["attempt_id"])
            self.below.group = group if group.add(pid) else None
        self._tell("runner.json", self.runner, cgroup=self.below.group.path if self.below.group is not None else None)
        os.write(go_write, b"g")
        os.close(go_write)

    # -- watch ----------------------------------------------------------------------------------------------------------

    def _watch(self, wake: int) -> None:
        """Until the runner has ended."""
        while self.status is None:
            poll = select.poll()
            poll.register(wake, select.POLLIN)
            if self.unwatched.since_s is None:
                poll.register(self.fifo, select.POLLIN)
            for stream in self.outputs:
                if stream.read_fd >= 0:
                    poll.register(stream.read_fd, select.POLLIN)
            poll.poll(max(0.0, self._timeout_s()) * 1000.0)
            try:
                os.read(wake, 4096)
            except BlockingIOError:
                pass
            self._reap()
            self._pump()
            self._listen()
            self._step(time.monotonic())

    def _timeout_s(self) -> float:
        now = time.monotonic()
        due = [self.unwatched.poll_s if self.unwatched.since_s is not None else self.last_byte + self.silence_s - now]
        if self.kill_at is not None:
            due.append(max(self.kill_at - now, 0.05))
        return min(due) + 0.001

    def _pump(self) -> None:
        for stream in self.outputs:
            stream.pump()

    def _listen(self) -> None:
        heard = False
        while True:
            try:
                data = os.read(self.fifo, 4096)
            except BlockingIOError:
                break
            if not data:
                if not heard:
                    self._lost("the agent is gone")
                return
            heard = True
        now = time.monotonic()
        if heard:
            self.last_byte = now
            self.unwatched.over()
        elif now - self.last_byte > self.silence_s:
            self._lost(f"no byte from the agent in {self.silence_s:g} s")

    def _lost(self, why: str) -> None:
        if self.unwatched.since_s is not None:
            return
        now = self.unwatched.begin()
        if self.kill_at is not None:
            return
        # act first: a slow disk must not hold the brake back
        how = self.unwatched.brake(why, now)
        if how == "ended":
            self.end(why)
        try:
            document = {"count": self.unwatched.count, "why": why, "how": how, "mono_s": now}
            runnerfiles.write_document(self.path("lost.json"), document, durable=True)
        except OSError:
            pass

    def _step(self, now: float) -> None:
        if self.kill_at is not None:
            if now >= self.kill_at:
                self.below.kill()
            return
        if self.told_to_end is not None:
            self.end(f"the launcher was told to end by signal {self.told_to_end}")
        elif (why := self.unwatched.step(now)) is not None:
            self.end(why)

    def end(self, why: str) -> None:
        """TERM now, KILL after the grace. A stopped runner is continued first, or it could not run its handler."""
        if self.kill_at is not None:
            return
        self.ended_by = why
        self.kill_at = time.monotonic() + self.grace_s
        self.unwatched.let_be()
        self._document(stop=True, pause=False, reason=why)
        if self.below.group is not None:
            self.below.group.thaw()
        self.below.send(signal.SIGCONT)
        if self.runner is not None and self.status is None:
            self.system.kill(self.runner.pid, self.runner.start_ticks, signal.SIGTERM)

    # -- acts -----------------------------------------------------------------------------------------------------------

    def _document(self, **change: Any) -> int:
        """Newer control document than the last one, then the nudge, to the runner alone.

        When it was written, by the file system's clock in ns; 0: it could not be.
        """
        path = os.path.join(self.told["workdir"], "control.json")
        last = runnerfiles.read_document(path) or {}
        seq = last.get("seq")
        document = {**last, **change, "seq": (seq if isinstance(seq, int) else 0) + 1}
        try:
            written_ns = runnerfiles.write_document(path, document)
        except OSError:
            return 0
        if self.runner is not None and self.status is None:
            self.system.kill(self.runner.pid, self.runner.start_ticks, signal.SIGUSR1)
        return written_ns

    def _reap(self) -> bool:
        """Collect ended children; False when there are none left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self.runner is not None and pid == self.runner.pid:
                self.status = status
                self.below.runner = None

    # -- end ------------------------------------------------------------------------------------------------------------

    def _clear_away(self) -> None:
        """Kill what the runner left behind. The attempt has ended when this launcher has no child left, not before."""
        self.left = self._left_behind(float(self.told.get("linger_s", 0.0)))
        pause_s = 0.002
        while self._reap():
            self.below.kill()
            self._pump()
            time.sleep(pause_s)
            pause_s = min(pause_s * 2.0, 0.25)
        self._pump()
        if self.below.group is not None:
            self.below.group.kill()
            self.group_cpu_s = self.below.group.cpu_s() or 0.0
            self.below.group.remove()

    def _left_behind(self, linger_s: float) -> list[str]:
        """Names of the processes that outlive the runner by more than ``linger_s``."""
        deadline = time.monotonic() + linger_s
        while True:
            left = [proc for proc in self.below.processes() if not proc.dead]
            if not left or time.monotonic() >= deadline:
                return [f"{proctree.name_of(proc.pid)} ({proc.pid})" for proc in left]
            self._reap()
            self._pump()
            time.sleep(0.02)

    def _report(self) -> None:
        assert self.status is not None
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        signalled = os.WIFSIGNALED(self.status)
        document = {
            "attempt_id": self.told["attempt_id"],
            "exit_code": None if signalled else os.WEXITSTATUS(self.status),
            "signal": os.WTERMSIG(self.status) if signalled else None,
            "ended_by": self.ended_by,
            "started_mono_s": self.started_mono,
            "ended_mono_s": time.monotonic(),
            "wall_s": time.monotonic() - self.started_mono,
            # a process that nobody collected is in the group's count alone
            "cpu_s": max(children.ru_utime + children.ru_stime, self.group_cpu_s),
            "max_rss_bytes": children.ru_maxrss * 1024,
            "left": self.left,
        }
        deadline = time.monotonic() + self.adopt_s
        while time.monotonic() < deadline:
            try:
                runnerfiles.write_document(self.path("exit.json"), document, durable=True)
                return
            except FileNotFoundError:
                return  # the attempt's folder is gone: nobody wants to know
            except OSError:
                time.sleep(1.0)  # disk full: the end must not be lost


if __name__ == "__main__":
    sys.exit(guardian.watch_over(lambda: Launcher(sys.argv[1]).run()))
