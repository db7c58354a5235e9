"""What ``/proc`` says of a process: its state, executable, arguments and owner; and of the machine, how many came and went."""

from __future__ import annotations

import os
from typing import NamedTuple

from policies.rules import ProcInfo

__all__ = ["TICKS_PER_S", "Forks", "Gone", "ProcFs", "Stat", "file_at", "same_file_system"]

MAX_CMDLINE_BYTES = 64 * 1024
_KTHREAD = 0x00200000  # PF_KTHREAD of /proc/PID/stat's flags
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    name: str
    state: str
    ppid: int
    flags: int
    threads: int
    start_ticks: int
    cpu_s: float


class Forks(NamedTuple):
    """``tasks``: threads of the whole machine; ``last_pid``: given out last. 0: not told."""

    tasks: int = 0
    last_pid: int = 0


class Gone(Exception):
    """There is no such process (any more)."""


class ProcFs:
    """Where procfs is mounted. Every read is of this moment: nothing is kept."""

    def __init__(self, root: str = "/proc") -> None:
        self.root = root

    def pids(self) -> set[int]:
        """Of all processes. Raises OSError where ``/proc`` cannot be listed."""
        return set(map(int, filter(str.isdigit, os.listdir(self.root))))

    def forks(self) -> Forks:
        try:
            fields = self._bytes("loadavg", 256).split()
            return Forks(int(fields[3].partition(b"/")[2]), int(fields[4]))
        except (Gone, OSError, ValueError, IndexError):
            return Forks()

    def info(self, pid: int) -> ProcInfo:
        """All that a rule may ask for; what cannot be read is None. Raises Gone."""
        try:
            stat = self.stat(pid)
        except OSError:
            return ProcInfo(pid=pid, start_ticks=None, ppid=None, uid=self._uid(pid))
        kernel = bool(stat.flags & _KTHREAD)
        return ProcInfo(
            pid=pid,
            start_ticks=stat.start_ticks,
            ppid=stat.ppid,
            name=stat.name,
            exe=None if kernel else self._exe(pid),
            argv=self._argv(pid, kernel),
            uid=self._uid(pid),
            kernel_thread=kernel,
        )

    def stat(self, pid: int) -> Stat:
        """Raises Gone for what has ended (a zombie too, unless other threads of it run) and OSError for unreadable."""
        return self.parsed(pid, self.raw_stat(pid))

    def raw_stat(self, pid: int) -> bytes:
        return self._bytes(f"{pid}/stat", 4096)

    def parsed(self, pid: int, raw: bytes) -> Stat:
        try:
            low, high = raw.index(b"("), raw.rindex(b")")
            rest = raw[high + 2 :].split(None, 20)
            stat = Stat(
                name=os.fsdecode(raw[low + 1 : high]),
                state=rest[0].decode("ascii"),
                ppid=int(rest[1]),
                flags=int(rest[6]),
                threads=int(rest[17]),
                start_ticks=int(rest[19]),
                cpu_s=(int(rest[11]) + int(rest[12])) / TICKS_PER_S,
            )
        except (ValueError, IndexError) as error:
            if not raw:
                raise Gone from None
            raise OSError(f"{self.root}/{pid}/stat cannot be understood") from error
        if stat.state in "ZX" and stat.threads <= 1:
            raise Gone
        return stat

    def ppid(self, pid: int) -> int | None:
        """Its parent as the kernel has it now; None where that is not known."""
        try:
            return self.stat(pid).ppid
        except (Gone, OSError):
            return None

    def _exe(self, pid: int) -> str | None:
        try:
            exe = os.readlink(f"{self.root}/{pid}/exe")
        except OSError:
            return None
        # the program was replaced while it runs: it still is that program
        return exe.removesuffix(" (deleted)")

    def exe_file(self, pid: int) -> tuple[int, int] | None:
        """(device, inode) of its executable."""
        return file_at(f"{self.root}/{pid}/exe")

    def _argv(self, pid: int, kernel: bool) -> tuple[str, ...] | None:
        if kernel:
            return ()
        raw = self.cmdline(pid)
        if raw is None:
            return None
        return tuple(map(os.fsdecode, raw.split(b"\0"))) if raw else ()

    def cmdline(self, pid: int) -> bytes | None:
        """Arguments as the kernel gives them, less the zeros at the end."""
        try:
            return self._bytes(f"{pid}/cmdline", MAX_CMDLINE_BYTES).rstrip(b"\0")
        except (Gone, OSError):
            return None

    def _uid(self, pid: int) -> int | None:
        """The real uid. A process that may not be dumped looks like root's to ``stat``, so ``status`` is read."""
        try:
            for line in self._bytes(f"{pid}/status", 4096).splitlines():
                if line.startswith(b"Uid:"):
                    return int(line.split()[1])
        except (Gone, OSError, ValueError, IndexError):
            pass
        return None

    def _bytes(self, name: str, limit: int) -> bytes:
        try:
            fd = os.open(f"{self.root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            raise Gone from None
        try:
            return os.read(fd, limit)
        except ProcessLookupError:
            raise Gone from None
        finally:
            os.close(fd)


def file_at(path: str) -> tuple[int, int] | None:
    """(device, inode)."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def same_file_system(one: str, other: str) -> bool:
    """Whether ``other`` is no mount of its own (some containers' is: made by a program, a few seconds old)."""
    try:
        return os.stat(one).st_dev == os.stat(other).st_dev
    except OSError:
        return False
