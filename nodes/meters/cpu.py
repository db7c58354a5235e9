"""The meter for nodes whose accelerator is the CPU: CPU seconds of process trees.

Each process counts its own time and that of children it has collected (``utime + stime`` and ``cutime + cstime``), zombies included until
they are collected. When a child is collected, its seconds move from the child's own count to its parent's collected count, so the
sum over a tree with its launcher (which collects orphans) is kept. The increase between two readings is::

    sum of the own increase of each process  +  max(0, increase of collected time - what collected processes had been counted for)

The second part cannot fall below zero: where a process vanished without being collected inside the tree (its parent ignores
SIGCHLD), what it used since the last reading is lost, but nothing that others used is taken off. Seconds never go backwards.
Where the tree has a control group, the kernel's count of that covers what the sum lost: the larger of the two stands.

Resolution is the kernel's clock tick (10 ms), so a reading over 2 s is good to half a percent of a core per process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nodes.identity import ProcessId
from nodes.jobs.proctree import CLOCK_TICKS, Proc, ProcSystem, System
from nodes.meters.reading import Unreadable

__all__ = ["CpuMeter"]


@dataclass
class _Tree:
    """What is known of one tree. Keys are (pid, start ticks); values own and collected clock ticks."""

    seen: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    total_ticks: int = 0
    used_ticks: float = 0
    told_ticks: float | None = None


class CpuMeter:
    """CPU seconds per tree. A tree is named by its key (an attempt id); one reader.

    Args:
        in_group: by key what the tree's control group counted since it was made, in seconds; None: there is none to read.
    """

    def __init__(
        self, system: System | None = None, in_group: Callable[[str], float | None] = lambda key: None
    ) -> None:
        self._system = system or ProcSystem()
        self._in_group = in_group
        self._trees: dict[str, _Tree] = {}

    def read(self, trees: Mapping[str, Sequence[ProcessId]]) -> Mapping[str, float | Unreadable]:
        """CPU seconds each tree used since it was last read by this method.

        The first reading of a tree has no baseline. Trees that are not asked for any more are forgotten.

        Args:
            trees: the processes of each tree, its launcher among them.
        """
        for gone in self._trees.keys() - trees.keys():
            del self._trees[gone]
        answers: dict[str, float | Unreadable] = {}
        for key, members in trees.items():
            fault = self._advance(key, members)
            if fault is not None:
                answers[key] = fault
                continue
            tree = self._trees[key]
            if tree.told_ticks is None:
                answers[key] = Unreadable("first reading: no baseline yet")
            else:
                answers[key] = (tree.used_ticks - tree.told_ticks) / CLOCK_TICKS
            tree.told_ticks = tree.used_ticks
        return answers

    def total(self, trees: Mapping[str, Sequence[ProcessId]]) -> Mapping[str, float | Unreadable]:
        """CPU seconds of each tree since its processes began; for differences between two moments. Leaves ``read`` alone."""
        answers: dict[str, float | Unreadable] = {}
        for key, members in trees.items():
            fault = self._advance(key, members)
            answers[key] = fault if fault is not None else self._trees[key].used_ticks / CLOCK_TICKS
        return answers

    def cpu_seconds_total(self, key: str, members: Sequence[ProcessId]) -> float | Unreadable:
        """``total`` of one tree."""
        return self.total({key: members})[key]

    def _advance(self, key: str, members: Sequence[ProcessId]) -> Unreadable | None:
        """Bring a tree's total up to now; where a member cannot be read nothing changes and the next reading covers it."""
        if not members:
            return Unreadable("no process of it is known")
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for who in members:
            try:
                proc = self._system.stat(who.pid)
            except OSError as error:
                return Unreadable(f"process {who.pid} cannot be read: {error.strerror}")
            if proc is not None and proc.start_ticks == who.start_ticks:
                found[(proc.pid, proc.start_ticks)] = _ticks(proc)
        if not found:
            return Unreadable("none of its processes is there any more")
        tree = self._trees.setdefault(key, _Tree())
        own = sum(max(0, ticks[0] - tree.seen.get(who, (0, 0))[0]) for who, ticks in found.items())
        collected = sum(max(0, ticks[1] - tree.seen.get(who, (0, 0))[1]) for who, ticks in found.items())
        moved = sum(sum(ticks) for who, ticks in tree.seen.items() if who not in found)
        tree.total_ticks += own + max(0, collected - moved)
        tree.used_ticks = max(tree.used_ticks, tree.total_ticks, CLOCK_TICKS * (self._in_group(key) or 0))
        tree.seen = found
        return None


def _ticks(proc: Proc) -> tuple[int, int]:
    return proc.own_ticks, proc.reaped_ticks
