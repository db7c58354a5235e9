"""The processes of this machine, read so that a look every two seconds costs next to nothing.

A refresh lists ``/proc``, unless the kernel's own count of forks and of tasks (``/proc/loadavg``: the newest pid, and how many there are)
stands where it stood: then nobody came and nobody went. It reads only what may have changed:

* pids not seen before;
* processes that were first seen less than ``YOUNG_S`` ago: between fork and exec a child still looks like its parent;
* pids that the kernel gave out since the last refresh (between the last pid then and the last pid now, from
  ``/proc/loadavg``), for a known pid may be another process by now;
* children of processes that are gone;
* those that the caller names: the protected programs' own, whose end or exec is to be seen at once;
* the newest shells: a script that has prepared everything ends in ``exec`` of the program;
* and a few of all others in turn, so that a late exec (by name or arguments), or a reuse that the list above missed (a pid set by
  hand when a checkpoint is restored), is seen within ``CYCLE`` refreshes.

A process whose ``stat`` reads as before, byte for byte, took no page fault and no tick of CPU time: it did not exec, and
nothing else of it is read. (One that writes over its own arguments is seen at its turn once it has used a tick.)

What cannot be read is None and says nothing; a process that cannot be read again keeps the facts it had.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType

from nodes.clock import boottime_s
from nodes.procfs import TICKS_PER_S, Forks, Gone, ProcFs, file_at, same_file_system
from policies.rules import ProcInfo

__all__ = ["ProcessTable"]

YOUNG_S = 10.0
CYCLE = 30
# So many refreshes in a row go without a list at most: a pid that was set by hand, in the same two seconds as another's end, leaves
# both counts as they were.
UNLISTED = 4
# What is looked at closely costs a system call each at every refresh; of a program of more processes the others come in turn.
CLOSELY_AT_MOST = 32
SHELLS = frozenset(("sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "mksh", "fish"))
SHELLS_AT_MOST = 8
# A process's first reading of CPU time tells a rate only when all of its life is recent.
MAX_FIRST_AGE_S = 5.0
# Readings closer together than this say little of a rate: the last one stands.
MIN_INTERVAL_S = 0.2

Identity = tuple[int, int | None]


@dataclass(slots=True)
class _Entry:
    info: ProcInfo
    parent: Identity | None = None  # who it descends from, kept when that process is gone
    stat: bytes = b""  # as read last, before its arguments
    exe_file: tuple[int, int] | None = None  # device and inode: a path changes when a folder is renamed
    other: bool = False  # it was seen to run another executable than that


class ProcessTable:
    """Not thread-safe.

    Args:
        proc: where procfs is mounted.
        uptime_s: seconds since boot, to tell a process's age.

    Attributes:
        appeared, vanished, changed: what the last refresh found (``changed``: exec).
    """

    def __init__(self, proc: Path | str = "/proc", *, uptime_s: Callable[[], float] = boottime_s) -> None:
        self._proc = ProcFs(str(proc))
        self._uptime_s = uptime_s
        self._entries: dict[int, _Entry] = {}
        self._dead_parents: dict[Identity, Identity | None] = {}
        self._cpu: dict[Identity, tuple[float, float, float | None]] = {}  # seconds, read at, cores
        self._young_until_s: dict[int, float] = {}
        self._shells: dict[int, None] = {}  # as they came
        self._forks = Forks()
        self._unlisted = 0
        self._counts_apply = same_file_system(str(proc), f"{proc}/loadavg")
        self._now_s = 0.0
        self._turn: list[int] = []
        self._turn_share = 0
        self._snapshot: Mapping[int, ProcInfo] = MappingProxyType({})
        self.appeared: tuple[ProcInfo, ...] = ()
        self.vanished: tuple[ProcInfo, ...] = ()
        self.changed: tuple[ProcInfo, ...] = ()

    def refresh(self, now_s: float, closely: Iterable[int] = ()) -> None:
        """Looks at what may have changed, and of the pids ``closely`` (of ``CLOSELY_AT_MOST``) in any case whether they ended or run
        another executable; ``now_s`` is monotonic. Raises OSError only where ``/proc`` cannot be listed.
        """
        self._now_s = now_s
        appeared: list[ProcInfo] = []
        changed: list[ProcInfo] = []
        gone: list[ProcInfo] = []
        fresh: set[int] = set()
        # read before the list: whoever comes between the two is in the list, and counted by the next refresh
        before, self._forks = self._forks, self._proc.forks()
        if self._counts_apply and before == self._forks != Forks() and self._unlisted < UNLISTED:
            self._unlisted += 1
        else:
            self._unlisted = 0
            pids = self._proc.pids()
            gone = [self._remove(pid) for pid in self._entries.keys() - pids]
            fresh = pids - self._entries.keys()
        for pid in self._suspects(before.last_pid, self._forks.last_pid, islice(closely, CLOSELY_AT_MOST)):
            self._look_again(pid, appeared, changed, gone)
        for pid in fresh:
            self._add(pid, appeared)
        for info in appeared:
            if (entry := self._entries.get(info.pid)) is not None:
                entry.parent = self._parent_of(entry.info)
        if gone:
            self._adopt_orphans({(info.pid, info.start_ticks) for info in gone})
        self.appeared, self.vanished, self.changed = tuple(appeared), tuple(gone), tuple(changed)
        if appeared or gone or changed:
            self._snapshot = MappingProxyType({pid: entry.info for pid, entry in self._entries.items()})

    def snapshot(self) -> Mapping[int, ProcInfo]:
        """The processes as of the last refresh, by pid; it never changes under its reader.

        ``ppid`` is the nearest ancestor that still lives: a process whose parent died stays a descendant of its
        grandparent, where the kernel would make it a child of init.
        """
        return self._snapshot

    def cpu_cores_used(self, pids: Iterable[int], now_s: float) -> float | None:
        """Cores in use by these processes together since they were last asked about; 0.05 is 5 % of one core.

        None while one of them was not read before (unless it is younger than 5 s) or cannot be read: unknown is not 0.
        A process that is gone counts nothing. ``now_s`` is monotonic.
        """
        total: float | None = 0.0
        for pid in pids:
            entry = self._entries.get(pid)
            try:
                stat = self._proc.stat(pid)
            except Gone:
                continue
            except OSError:
                total = None
                continue
            if entry is not None and entry.info.start_ticks not in (None, stat.start_ticks):
                continue  # another process by now
            cores = self._cores((pid, stat.start_ticks), stat.cpu_s, now_s)
            total = None if total is None or cores is None else total + cores
        return total

    def _cores(self, who: Identity, cpu_s: float, now_s: float) -> float | None:
        before = self._cpu.get(who)
        if before is not None:
            if now_s - before[1] < MIN_INTERVAL_S:
                return before[2]
            cores: float | None = max(cpu_s - before[0], 0.0) / (now_s - before[1])
        else:
            age_s = self._uptime_s() - (who[1] or 0) / TICKS_PER_S
            cores = cpu_s / max(age_s, MIN_INTERVAL_S) if age_s <= MAX_FIRST_AGE_S else None
        self._cpu[who] = (cpu_s, now_s, cores)
        return cores

    # -- the table

    def _suspects(self, before: int, now: int, closely: Iterable[int]) -> list[int]:
        """Known pids to read again: young ones, those the kernel may have given out anew since ``before``, ``closely``, and some
        in turn.
        """
        again = [pid for pid, until_s in self._young_until_s.items() if self._now_s < until_s]
        if len(again) < len(self._young_until_s):
            self._young_until_s = {pid: self._young_until_s[pid] for pid in again}
        again += [
            pid for pid in chain(closely, islice(reversed(self._shells), SHELLS_AT_MOST)) if self._may_be_other(pid)
        ]
        if before and now and before != now:
            # pids go up, and start again from the bottom
            again += [
                pid for pid in self._entries if (before < pid <= now if before < now else pid > before or pid <= now)
            ]
        if not self._turn:
            self._turn = [pid for pid, entry in self._entries.items() if not entry.info.kernel_thread]
            self._turn_share = -(-len(self._turn) // CYCLE)
        again += self._turn[-self._turn_share :]
        del self._turn[-self._turn_share :]
        return [pid for pid in dict.fromkeys(again) if pid in self._entries]

    def _add(self, pid: int, appeared: list[ProcInfo]) -> None:
        # before its path: if it executes another file in between, the next look finds it changed
        exe_file = self._proc.exe_file(pid)
        try:
            info = self._proc.info(pid)
        except Gone:
            return
        self._entries[pid] = _Entry(info, exe_file=None if info.kernel_thread else exe_file)
        if not info.kernel_thread:
            self._young_until_s[pid] = self._now_s + YOUNG_S
            self._note_shell(info)
        appeared.append(info)

    def _remove(self, pid: int) -> ProcInfo:
        entry = self._entries.pop(pid)
        self._young_until_s.pop(pid, None)
        self._shells.pop(pid, None)
        who = (pid, entry.info.start_ticks)
        self._dead_parents[who] = entry.parent
        self._cpu.pop(who, None)
        return entry.info

    def _look_again(self, pid: int, appeared: list[ProcInfo], changed: list[ProcInfo], gone: list[ProcInfo]) -> None:
        entry = self._entries[pid]
        known = entry.info
        try:
            raw = self._proc.raw_stat(pid)
            if raw == entry.stat and not entry.other:
                return
            stat = self._proc.parsed(pid, raw)
        except Gone:
            gone.append(self._remove(pid))
            return
        except OSError:
            return  # unknown is not different
        if known.start_ticks is not None and stat.start_ticks != known.start_ticks:
            gone.append(self._remove(pid))
            self._add(pid, appeared)
            return
        same = stat.name == known.name and known.start_ticks is not None and not entry.other
        if same and not known.kernel_thread:
            arguments = self._proc.cmdline(pid)
            same = arguments is None or arguments == _joined(known.argv)
        if same:
            entry.stat = raw
            return
        exe_file = self._proc.exe_file(pid)
        try:
            info = self._proc.info(pid)
        except Gone:
            gone.append(self._remove(pid))
            return
        info = _keeping(known, info)
        if known.exe is not None and exe_file is not None and exe_file == entry.exe_file != file_at(known.exe):
            info = replace(info, exe=known.exe)  # renamed since: it still is that program
        entry.exe_file, entry.other = exe_file, False
        if info != known:
            entry.info = info
            self._young_until_s[pid] = self._now_s + YOUNG_S
            self._note_shell(info)
            changed.append(info)

    def _note_shell(self, info: ProcInfo) -> None:
        self._shells.pop(info.pid, None)
        if info.exe is not None and os.path.basename(info.exe) in SHELLS:
            self._shells[info.pid] = None

    def _may_be_other(self, pid: int) -> bool:
        """Whether it has ended or runs another executable (which is noted), or that cannot be told: one system call, where a look
        is a dozen.
        """
        entry, file = self._entries.get(pid), self._proc.exe_file(pid)
        if entry is not None and file is not None:
            entry.other = file != entry.exe_file
            return entry.other
        return True

    # -- who descends from whom

    def _parent_of(self, info: ProcInfo) -> Identity | None:
        if info.ppid is None or info.ppid == info.pid:
            return None
        parent = self._entries.get(info.ppid)
        if parent is None or not _after(info, parent.info):
            return None
        return (parent.info.pid, parent.info.start_ticks)

    def _grandparent(self, who: Identity) -> Identity | None:
        entry = self._entries.get(who[0])
        if entry is not None and entry.info.start_ticks == who[1]:
            return entry.parent
        return self._dead_parents.get(who)

    def _adopt_orphans(self, gone: set[Identity]) -> None:
        gone_pids = {pid for pid, _ in gone}
        for pid, entry in self._entries.items():
            if entry.info.ppid in gone_pids:
                entry.info = replace(entry.info, ppid=self._living_ancestor(entry.parent) or self._proc.ppid(pid))
        needed: set[Identity] = set()
        for parent in {entry.parent for entry in self._entries.values()}:
            while parent is not None and parent not in needed:
                needed.add(parent)
                parent = self._grandparent(parent)
        self._dead_parents = {who: parent for who, parent in self._dead_parents.items() if who in needed}

    def _living_ancestor(self, who: Identity | None) -> int | None:
        for _ in range(len(self._entries) + len(self._dead_parents) + 1):
            if who is None:
                return None
            entry = self._entries.get(who[0])
            if entry is not None and entry.info.start_ticks == who[1]:
                return who[0]
            who = self._dead_parents.get(who)
        return None


def _joined(argv: tuple[str, ...] | None) -> bytes | None:
    return None if argv is None else b"\0".join(map(os.fsencode, argv))


def _after(child: ProcInfo, parent: ProcInfo) -> bool:
    """A child starts no earlier than its parent; one that did belongs to a process that had the pid before."""
    if child.start_ticks is None or parent.start_ticks is None:
        return True
    return child.start_ticks >= parent.start_ticks


def _keeping(known: ProcInfo, new: ProcInfo) -> ProcInfo:
    """The new facts; the nearest living ancestor and what cannot be read any more stay as known."""
    return replace(
        new,
        start_ticks=new.start_ticks if new.start_ticks is not None else known.start_ticks,
        ppid=known.ppid if known.ppid is not None else new.ppid,
        name=new.name if new.name is not None else known.name,
        uid=new.uid if new.uid is not None else known.uid,
    )
