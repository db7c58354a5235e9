"""Whose numbers the driver's pids are.

A driver that does not translate reports pids of the machine's first pid namespace. In a namespace of its own (a
container) the agent sees other numbers, and one of the driver's may be an unrelated process here. So: in the first
namespace both are the same; where this ``/proc`` shows an outer namespace's processes with their ``NSpid`` they are
mapped through it; otherwise no process's time can be told, and that is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from nodes.meters.reading import Unreadable

__all__ = ["INITIAL_PID_NAMESPACE", "PidSpace"]

# PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h: the same on every Linux machine.
INITIAL_PID_NAMESPACE = "pid:[4026531836]"


class PidSpace:
    """``usable`` is True or why not. ``proc`` may be a fake tree."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._depth = 0
        self.usable: bool | Unreadable = self._judge()

    def _judge(self) -> bool | Unreadable:
        try:
            namespace = os.readlink(self._proc / "self/ns/pid")
        except OSError as error:
            return Unreadable(
                f"this agent's pid namespace cannot be read ({error.strerror}), so the driver's pids say nothing"
            )
        if namespace == INITIAL_PID_NAMESPACE:
            return True
        own = self._chain("self")
        if own is None or len(own) < 2:
            return Unreadable(
                "this agent runs in a pid namespace of its own (a container), where the driver's pids are other numbers; "
                "start it with the machine's pid namespace (docker run --pid=host, hostPID: true)"
            )
        self._depth = len(own)
        return True

    def _chain(self, name: str) -> list[int] | None:
        """NSpid of a process: its pid in each namespace from this ``/proc``'s down to its own."""
        try:
            for line in (self._proc / name / "status").read_text().splitlines():
                if line.startswith("NSpid:"):
                    return [int(part) for part in line.split()[1:]]
        except (OSError, ValueError):
            pass
        return None

    def local(self, pids: Iterable[int]) -> dict[int, int]:
        """Driver pid → pid as this agent knows it, of those that are processes here; the others are left out."""
        if self.usable is not True:
            return {}
        found = {}
        for pid in pids:
            if self._depth == 0:
                if (self._proc / str(pid)).exists():
                    found[pid] = pid
                continue
            chain = self._chain(str(pid))
            if chain is not None and len(chain) >= self._depth:
                found[pid] = chain[self._depth - 1]
        return found
