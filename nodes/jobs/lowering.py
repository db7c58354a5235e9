"""Lowest scheduling class for an attempt's processes, and back.

Nice alone does nothing between sessions where autogroup is on: each session is a scheduling group of its own, and an attempt has one,
so the group's own weight is written too. Source: ``protection.md`` (``lower_fleet``).

What cannot be taken back without privilege (leaving SCHED_IDLE, a lower nice value) is done only where it can be, or where nothing
else works; ``undo`` then says so.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable
from pathlib import Path

from nodes.jobs.cgroup import Group
from nodes.jobs.proctree import Proc

__all__ = ["Lowering"]

NICE_LOWEST = 19
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


def may_raise() -> bool:
    """Whether this process may give a lowered process its normal class back."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    return os.geteuid() == 0 or soft >= 20


class Lowering:
    """The lowered state of one attempt. ``owns`` is the guard's word on each process before it is touched; without one none is."""

    def __init__(self, owns: Callable[[int, int], bool] = lambda pid, ticks: False) -> None:
        self._owns = owns
        self._done: set[tuple[int, int]] = set()
        self.by_group = False
        self.how: set[str] = set()

    def apply(self, members: Iterable[Proc], group: Group | None) -> set[str]:
        """Lower what is not lowered yet; the ways that took effect so far. To be called again for processes that came later."""
        if group is not None and not self.by_group and group.set_idle(True):
            self.by_group = True
            self.how.add("cgroup")
        for proc in members:
            if not proc.dead and self._owns(proc.pid, proc.start_ticks):
                self._lower(proc.pid, proc.start_ticks)
        return self.how

    def recognise(self, members: Iterable[Proc]) -> bool:
        """Whether an earlier agent lowered these, so that they can be raised again."""
        for proc in members:
            if proc.dead:
                continue
            try:
                if os.sched_getscheduler(proc.pid) == os.SCHED_IDLE:
                    self.how.add("SCHED_IDLE")
                if Path(f"/proc/{proc.pid}/autogroup").read_text().split()[-1:] == [str(NICE_LOWEST)]:
                    self.how.add("autogroup")
            except OSError:
                continue
        return bool(self.how)

    def _lower(self, pid: int, ticks: int) -> None:
        grouped = _write_autogroup(pid, NICE_LOWEST)
        if grouped:
            self.how.add("autogroup")
        if (pid, ticks) in self._done or not (may_raise() or not (grouped or self.by_group)):
            return
        reached = [_idle(task) for task in _tasks(pid)]
        if reached and all(reached):
            self.how.add("SCHED_IDLE")
            self._done.add((pid, ticks))

    def undo(self, members: Iterable[Proc], group: Group | None) -> bool:
        """Normal class again for all; False where some of them cannot be raised."""
        whole = True
        if self.by_group and group is not None:
            whole = group.set_idle(False)
        for proc in members:
            if proc.dead or not self._owns(proc.pid, proc.start_ticks):
                continue
            if "autogroup" in self.how:
                whole = _write_autogroup(proc.pid, 0) and whole
            if "SCHED_IDLE" in self.how:
                raised = [_normal(task) for task in _tasks(proc.pid)]
                whole = all(raised) and whole
        self._done.clear()
        self.by_group = False
        if whole:
            self.how.clear()
        return whole


def _tasks(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _idle(task: int) -> bool:
    """SCHED_IDLE, and nice for where only that is looked at; a task that is gone by now counts as lowered."""
    try:
        os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, task, NICE_LOWEST)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return True


def _normal(task: int) -> bool:
    try:
        os.setpriority(os.PRIO_PROCESS, task, 0)
        os.sched_setscheduler(task, os.SCHED_OTHER, os.sched_param(0))
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return True


def _write_autogroup(pid: int, nice: int) -> bool:
    """The weight of the process's session; False where autogroup is off or it cannot be written."""
    try:
        if AUTOGROUP.read_text().strip() != "1":
            return False
        place = Path(f"/proc/{pid}/autogroup")
        if place.read_text().split()[-1:] != [str(nice)]:
            place.write_text(str(nice))
    except OSError:
        return False
    return True
