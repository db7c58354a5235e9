"""Which files a runner changes, seen from the kernel: the kit's end of ``_watched.py``.

Every call that may change the file system is answered "go on" after its path was read from the caller's memory, so nothing
of the runner's behaviour changes but its pace. A program that means to deceive could swap the path in between: this finds
mistakes, it does not confine.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import select
import socket
import struct
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from cotenant.conform import _watched

__all__ = ["Watch"]

WRAPPER = Path(_watched.__file__)
RECEIVE, SEND = 0xC0502100, 0xC0182101
GO_ON = 1
AT_FDCWD = -100
PATH_BYTES = 4096
HANDOVER_S = 120.0
# For each call its (directory descriptor, path) arguments; None: the current directory.
_PATHS: dict[str, tuple[tuple[int | None, int], ...]] = {
    "open": ((None, 0),), "creat": ((None, 0),), "openat": ((0, 1),), "openat2": ((0, 1),), "truncate": ((None, 0),),
    "rename": ((None, 0), (None, 1)), "renameat": ((0, 1), (2, 3)), "renameat2": ((0, 1), (2, 3)),
    "unlink": ((None, 0),), "unlinkat": ((0, 1),), "mkdir": ((None, 0),), "mkdirat": ((0, 1),), "rmdir": ((None, 0),),
    "link": ((None, 1),), "linkat": ((2, 3),), "symlink": ((None, 1),), "symlinkat": ((1, 2),),
    "mknod": ((None, 0),), "mknodat": ((0, 1),), "chmod": ((None, 0),), "fchmodat": ((0, 1),),
}  # fmt: skip


@dataclass
class Watch:
    """Use: ``wrap`` the argv, ``start`` before the program does, read ``outside`` and ``detached`` after ``close``.

    Args:
        allowed: the folders in which the runner may write.
    """

    allowed: list[Path]
    unwatched: str | None = "the runner did not start"
    outside: list[str] = field(default_factory=list)
    detached: list[str] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        self._name = f"cotenant-conform-{os.getpid()}-{secrets.token_hex(8)}"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind("\0" + self._name)
        self._server.listen(1)
        self._roots = [os.path.realpath(path) for path in self.allowed]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="writes", daemon=True)

    def wrap(self, argv: list[str]) -> list[str]:
        return [sys.executable, "-I", "-S", str(WRAPPER), self._name, *argv]

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(30.0)
        self._server.close()

    # -- the listener ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        listener = self._handed_over()
        if listener is None:
            return
        try:
            self._answer(listener)
        finally:
            os.close(listener)

    def _handed_over(self) -> int | None:
        """The filter's listener, once the program's wrapper has connected; None where there is none, and why in ``unwatched``."""
        poll = select.poll()
        poll.register(self._server, select.POLLIN)
        while not poll.poll(100):
            if self._over.is_set():
                return None
        handed: list[int] = []
        try:
            connection, _ = self._server.accept()
            with connection:
                connection.settimeout(HANDOVER_S)
                said, handed, _, _ = socket.recv_fds(connection, 1000, 1)
                self.unwatched = None if handed else said.decode("utf-8", "replace")
                if handed:
                    connection.sendall(b".")
        except OSError as error:
            self.unwatched = f"the runner's start failed: {error}"
        return handed[0] if handed else None

    def _answer(self, listener: int) -> None:
        names = {number: name for name, number in _watched.CALLS[os.uname().machine].items()}
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while not self._over.is_set():
            events = poll.poll(100)
            if any(event & (select.POLLHUP | select.POLLERR) for _, event in events):
                return  # the last process under the filter has ended
            if not events:
                continue
            notice = bytearray(80)
            try:
                fcntl.ioctl(listener, RECEIVE, notice)
            except OSError:
                continue  # the caller was killed in between
            identity, pid, _flags, number = struct.unpack_from("=QIIi", notice)
            arguments = struct.unpack_from("=6Q", notice, 32)
            self.calls += 1
            with contextlib.suppress(OSError):
                self._note(pid, names.get(number, "?"), arguments)
            with contextlib.suppress(OSError):
                fcntl.ioctl(listener, SEND, struct.pack("=QqiI", identity, 0, 0, GO_ON))

    def _note(self, pid: int, name: str, arguments: tuple[int, ...]) -> None:
        if name == "setsid":
            self.detached.append(f"{_command(pid)} began a session of its own")
            return
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            if name == "openat2" and not self._writing_openat2(memory.fileno(), arguments[2]):
                return
            paths = [
                self._path(pid, memory.fileno(), None if at is None else arguments[at], arguments[text])
                for at, text in _PATHS[name]
            ]
        for path in paths:
            if not self._may(name, path):
                self.outside.append(f"{name} {path}")

    def _writing_openat2(self, memory: int, how: int) -> bool:
        return bool(struct.unpack("=Q", os.pread(memory, 8, how))[0] & _watched.WRITING)

    def _path(self, pid: int, memory: int, directory: int | None, text: int) -> str:
        # up to the end of a page at a time: what lies behind it may not be there
        raw = b""
        while b"\0" not in raw and len(raw) < PATH_BYTES:
            at = text + len(raw)
            raw += os.pread(memory, 4096 - at % 4096, at)
        path = os.fsdecode(raw.partition(b"\0")[0])
        if not path.startswith("/"):
            at_fd = None if directory is None else ctypes.c_int(directory & 0xFFFFFFFF).value
            base = f"/proc/{pid}/cwd" if at_fd in (None, AT_FDCWD) else f"/proc/{pid}/fd/{at_fd}"
            path = os.path.join(os.readlink(base), path)
        # the last part may be a link itself: what is made, moved or removed is the link
        return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))

    def _may(self, name: str, path: str) -> bool:
        if any(path == root or path.startswith(root + "/") for root in self._roots):
            real = os.path.realpath(path) if name in ("open", "openat", "openat2", "creat", "truncate") else path
            return any(real == root or real.startswith(root + "/") for root in self._roots) or _harmless(real)
        return _harmless(path) or (name in ("mkdir", "mkdirat") and os.path.isdir(path))


def _harmless(path: str) -> bool:
    """Devices, /proc, semaphores, and the bytecode caches that the interpreter keeps beside what it imports."""
    if path.startswith("/dev/shm/"):
        return path.startswith("/dev/shm/sem.")
    return path.startswith(("/dev/", "/proc/")) or "/__pycache__" in path


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return f"{file.read().strip()} ({pid})"
    except OSError:
        return f"process {pid}"
