"""Process trees under /proc, and signals that cannot hit a stranger.

Standard library only and free of project imports: the launcher (``python -I -S``) loads this file by its path.

A signal goes through a pidfd: opened first, then the start ticks are compared, then sent. A pid that was used again between the
walk and the signal has other ticks, and one that is used again after the pidfd was opened is not what the pidfd names.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

__all__ = ["CLOCK_TICKS", "STOPPED", "Proc", "ProcSystem", "System", "name_of", "signal_tree", "walk"]

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
STOPPED = "Tt"
DEAD = "ZX"
# Process descriptors kept open, the longest unused closed first.
GRIPS_MAX = 128


class Proc(NamedTuple):
    """One process as read: identity, parent, state letter, session and CPU clock ticks (own; of reaped children).

    The letter of a process whose main thread has ended is that of the threads that run on (``_state_of_threads``).
    """

    pid: int
    start_ticks: int
    ppid: int
    state: str
    session: int
    own_ticks: int
    reaped_ticks: int

    @property
    def dead(self) -> bool:
        return self.state in DEAD


class System(Protocol):
    """What the job ladder needs of the operating system; tests put their own in its place."""

    def stat(self, pid: int) -> Proc | None: ...

    def children(self, pid: int) -> list[int]: ...

    def kill(self, pid: int, start_ticks: int, sig: int) -> bool: ...

    def hold_of(self, pid: int, start_ticks: int) -> int | None: ...


class ProcSystem:
    """The running machine."""

    def __init__(self) -> None:
        self._grips: dict[tuple[int, int], int] = {}

    def stat(self, pid: int) -> Proc | None:
        """The process, zombies included; None where there is none.

        Raises:
            OSError: it is there and cannot be read.
        """
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                raw = file.read()
        except (FileNotFoundError, ProcessLookupError):
            return None
        f = raw[raw.rindex(b")") + 2 :].split()
        state = f[0].decode("ascii")
        if state in DEAD and int(f[17]) > 1:
            state = _state_of_threads(pid)
        return Proc(
            pid=pid,
            start_ticks=int(f[19]),
            ppid=int(f[1]),
            state=state,
            session=int(f[3]),
            own_ticks=int(f[11]) + int(f[12]),
            reaped_ticks=int(f[13]) + int(f[14]),
        )

    def children(self, pid: int) -> list[int]:
        """Pids whose parent is any thread of ``pid``. Empty where it is gone."""
        found: list[int] = []
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return found
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    found.extend(int(child) for child in file.read().split())
            except (FileNotFoundError, ProcessLookupError):
                if not _kernel_lists_children():
                    return self._children_by_scan(pid)
        return found

    def _children_by_scan(self, parent: int) -> list[int]:
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    proc = self.stat(int(name))
                except OSError:
                    continue
                if proc is not None and proc.ppid == parent:
                    found.append(proc.pid)
        return found

    def kill(self, pid: int, start_ticks: int, sig: int) -> bool:
        """Send ``sig`` to exactly that process; False where it is gone (or the pid is another's by now) or may not be signalled.

        A nudge that would end it is not sent: an interpreter that leaves takes its handlers back, and its last work with it.

        The process's descriptor is kept: who is signalled again (stopped, let go) is so by one system call, and still
        cannot be another process.
        """
        fd = self._grip(pid, start_ticks)
        if fd is None:
            return False
        if sig == signal.SIGUSR1 and not _takes(pid, sig):
            return True
        try:
            signal.pidfd_send_signal(fd, sig)
        except ProcessLookupError:
            self._let_go((pid, start_ticks))
            return False
        except OSError:
            return False  # it changed its account: whoever counts on the signal sees it go on, the others get theirs
        return True

    def hold_of(self, pid: int, start_ticks: int) -> int | None:
        """A pidfd of exactly that process, the caller's to close; None where it is gone (or the pid is another's by now)."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return None
        try:
            now = self.stat(pid)
        except OSError:
            now = None
        if now is None or now.start_ticks != start_ticks:
            os.close(fd)
            return None
        return fd

    def let_all_go(self) -> None:
        """Close the descriptors kept; it can be used on."""
        for who in list(self._grips):
            self._let_go(who)

    def _grip(self, pid: int, start_ticks: int) -> int | None:
        who = (pid, start_ticks)
        fd = self._grips.pop(who, None)
        if fd is None:
            fd = self.hold_of(pid, start_ticks)
            if fd is None:
                return None
        self._grips[who] = fd  # newest last
        if len(self._grips) > GRIPS_MAX:
            self._let_go(next(iter(self._grips)))
        return fd

    def _let_go(self, who: tuple[int, int]) -> None:
        fd = self._grips.pop(who, None)
        if fd is not None:
            os.close(fd)


def _state_of_threads(pid: int) -> str:
    """Of a process whose main thread has ended and is a zombie while others run: stopped where all of these are, else what one of
    them does. Where that cannot be read it counts as running.
    """
    letters = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                    raw = file.read()
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended since the listing
            letters.append(raw[raw.rindex(b")") + 2 :][:1].decode("ascii"))
    except OSError:
        return "R"
    alive = [letter for letter in letters if letter not in DEAD]
    # none: they ended, or one of them began another after the listing
    return next((letter for letter in alive if letter not in STOPPED), alive[0] if alive else "R")


def _takes(pid: int, sig: int) -> bool:
    """Whether it catches or ignores the signal; True where that cannot be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            masks = [int(line.split()[1], 16) for line in file if line.startswith((b"SigIgn:", b"SigCgt:"))]
    except (OSError, ValueError, IndexError):
        return True
    return not masks or any(mask >> (sig - 1) & 1 for mask in masks)


def name_of(pid: int) -> str:
    """The kernel's name of it (15 characters); ? where it is gone."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def _kernel_lists_children() -> bool:
    return os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def walk(system: System, roots: Iterable[tuple[int, int]]) -> list[Proc]:
    """The processes ``roots`` (pid, start ticks) and everything below them, parents first, zombies included.

    A root whose ticks differ is a stranger with a used pid and is left out with all below it. A child counts only where its
    own parent field says so and it did not start before its parent.
    """
    found: dict[int, Proc] = {}
    queue: list[Proc] = []
    for pid, ticks in roots:
        proc = _stat(system, pid)
        if proc is not None and proc.start_ticks == ticks and pid not in found:
            found[pid] = proc
            queue.append(proc)
    while queue:
        parent = queue.pop(0)
        for pid in system.children(parent.pid):
            if pid in found:
                continue
            child = _stat(system, pid)
            if child is None or child.ppid != parent.pid or child.start_ticks < parent.start_ticks:
                continue
            found[pid] = child
            queue.append(child)
    return list(found.values())


def _stat(system: System, pid: int) -> Proc | None:
    try:
        return system.stat(pid)
    except OSError:
        return None


def signal_tree(system: System, members: Sequence[Proc], sig: int) -> list[Proc]:
    """Send ``sig`` to each live member; those that it reached."""
    return [proc for proc in members if not proc.dead and system.kill(proc.pid, proc.start_ticks, sig)]
