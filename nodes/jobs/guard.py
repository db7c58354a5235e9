"""The one door for every signal: nothing outside the spawn registry's trees gets through it.

Standard library only, so that the launcher may use it too. A process is ours when it stands in the spawn registry (a launcher that
we started, or what we saw below it and wrote down) or when its parents lead to one that is. Both are told by pid and start ticks
together; where the start time is unknown on either side the answer is no. Source: ``protection.md`` ("What the agent may touch").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodes.jobs.proctree import Proc, System

__all__ = ["Guard", "Refusal"]

Identity = tuple[int, int]
Refusal = Callable[[int, int | None, int, str], None]
"""pid, start ticks, signal, why."""

DEEPEST = 64


class Guard:
    """A ``System`` whose ``kill`` reaches only what is ours. ``refused`` is told of every live process that was asked for and is not."""

    def __init__(self, system: System, refused: Refusal) -> None:
        self._system = system
        self._refused = refused
        self._ours: dict[Identity, str] = {}

    # -- what is ours ---------------------------------------------------------------------------------------------------

    def register(self, attempt_id: str, pid: int, start_ticks: int) -> None:
        """A launcher, or a process below one, as the spawn registry names it; of this boot."""
        self._ours[pid, start_ticks] = attempt_id

    def learn(self, attempt_id: str, members: Iterable[Proc]) -> None:
        """Keep processes that are below a launcher now, for the time when it is gone. Each is checked."""
        for proc in members:
            if (proc.pid, proc.start_ticks) not in self._ours and self.owns(proc.pid, proc.start_ticks):
                self._ours[proc.pid, proc.start_ticks] = attempt_id

    def vouch(self, attempt_id: str, proc: Proc) -> None:
        """A process that lost its parents and still carries what only this attempt was given (its environment, its session)."""
        self._ours[proc.pid, proc.start_ticks] = attempt_id

    def forget(self, attempt_id: str) -> None:
        """The attempt has ended: none of its processes is left."""
        self._ours = {who: name for who, name in self._ours.items() if name != attempt_id}

    def owns(self, pid: int, start_ticks: int | None) -> bool:
        return self._why_not(pid, start_ticks) == ""

    def _why_not(self, pid: int, start_ticks: int | None) -> str | None:
        """Empty: it is ours; None: there is no such process; else why it may not be touched."""
        if start_ticks is None:
            return "its start time is unknown"
        if (pid, start_ticks) in self._ours:
            return ""
        try:
            proc = self._system.stat(pid)
            if proc is None or proc.start_ticks != start_ticks:
                return None
            for _ in range(DEEPEST):
                parent = self._system.stat(proc.ppid) if proc.ppid > 0 else None
                if parent is None or parent.start_ticks > proc.start_ticks:
                    break
                if (parent.pid, parent.start_ticks) in self._ours:
                    return ""
                proc = parent
        except OSError as error:
            return f"its ancestry cannot be read: {error}"
        return "it is in no tree of the spawn registry"

    # -- System ---------------------------------------------------------------------------------------------------------

    def stat(self, pid: int) -> Proc | None:
        return self._system.stat(pid)

    def children(self, pid: int) -> list[int]:
        return self._system.children(pid)

    def kill(self, pid: int, start_ticks: int, sig: int) -> bool:
        """Send ``sig``; False where the process is gone or is not ours."""
        why = self._why_not(pid, start_ticks)
        if why == "":
            return self._system.kill(pid, start_ticks, sig)
        if why is not None:
            self._refused(pid, start_ticks, sig, why)
        return False

    def hold_of(self, pid: int, start_ticks: int) -> int | None:
        """A pidfd of it, the caller's to close, and to signal for as long as it is open: it names nobody else, ever.

        None where the process is gone or is not ours.
        """
        why = self._why_not(pid, start_ticks)
        if why == "":
            return self._system.hold_of(pid, start_ticks)
        if why is not None:
            self._refused(pid, start_ticks, 0, why)
        return None
