"""From a fork of the launcher to the runner's first instruction. Standard library only, loaded by its path (``launcher.py``)."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import stat
from typing import Any

__all__ = ["PAUSED", "Output", "become_runner", "fresh", "phase_of", "read_json", "write_json"]

PR_SET_PDEATHSIG = 1
PAUSED = "paused"
"""The phase by which a runner says that a pause is in force."""


def write_json(path: str, document: dict[str, Any]) -> None:
    """Whole or not at all, and there after a power cut."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def fresh(path: str) -> int:
    """A new file to write; what stood there (the runner may have put a FIFO or a link) is never written through."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o600)


def read_json(path: str) -> dict[str, Any]:
    """A JSON object; {} for anything else. A FIFO that a runner put there is not waited for, a link not followed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return {}
        with os.fdopen(fd, encoding="utf-8") as file:
            raw = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def phase_of(path: str) -> tuple[str, int] | None:
    """What stands in a ``phase`` file, and when it was written (ns, by the file system's clock); None: there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)  # a folder would be an error of fdopen's, with the descriptor left open
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(200).decode("utf-8", "replace").strip(), info.st_mtime_ns


class Output:
    """One of the runner's output streams: the first ``limit`` bytes go to a file, the rest is read and dropped."""

    def __init__(self, path: str, limit: int) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._left = limit

    def pump(self) -> bool:
        """Move what is there; False when every writer has closed."""
        while True:
            try:
                data = os.read(self.read_fd, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            keep = data[: self._left]
            self._left -= len(keep)
            try:
                if keep:
                    os.write(self._file, keep)
            except OSError:
                # a full disk costs the log, not the attempt
                self._left = 0


def become_runner(told: dict[str, Any], outputs: list[int], parent: int, go: int) -> None:
    """In the child, after the fork: everything of the launcher is put off, then the runner's program takes over.

    Args:
        told: ``launch.json``.
        outputs: write ends for standard output and error.
        parent: the launcher's pid; the runner dies with it.
        go: read end of a pipe: a byte comes once this process is in its group and stands in ``runner.json``.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)  # the launcher died between fork and prctl: the signal will never come
    if os.read(go, 1) != b"g":
        os._exit(127)
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError, RuntimeError):
                pass
    # an early nudge must be lost, not fatal: the runner installs its handler and then reads
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()  # and so a scheduling group of its own: what lowers the runner must not slow the launcher down
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(outputs[0], 1)
    os.dup2(outputs[1], 2)
    os.closerange(3, max(256, min(os.sysconf("SC_OPEN_MAX"), 1 << 20)))
    try:
        # the kernel's own choice under memory pressure must fall on fleet work
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(int(told.get("oom_score_adj", 1000))))
    except OSError:
        pass
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # the agent may be allowed it for its own thread; fleet work that took it would run before the owner's program
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    os.umask(0o077)
    os.chdir(told["cwd"])
    if told.get("start_stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
    os.execve(told["argv"][0], told["argv"], told["env"])
