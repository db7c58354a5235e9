"""The processes of one attempt: launcher, runner and all below, and the signals they may get."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from nodes.identity import ProcessId, liveness
from nodes.jobs.cgroup import Group
from nodes.jobs.proctree import STOPPED, Proc, System, signal_tree, walk
from nodes.jobs.workdir import AttemptDir, told_process

__all__ = ["ProcessTree"]

UNKILLABLE_AFTER_S = 30.0


@dataclass(kw_only=True)
class ProcessTree:
    """Everything that runs for one attempt.

    ``launcher`` is the process that the agent started (the guardian), ``keeper`` its child that watches the agent (``guardian.py``).
    ``process`` is the first as our own child, None for one that was adopted. ``group`` is the cgroup that the runner was put into.
    """

    attempt_id: str
    folder: AttemptDir
    system: System
    launcher: ProcessId | None = None
    runner: ProcessId | None = None
    keeper: ProcessId | None = None
    group: Group | None = None
    process: subprocess.Popen[bytes] | None = None
    launcher_lost: bool = False
    last_seen: list[Proc] = field(default_factory=list)
    _behind_since: float | None = None
    _known: dict[int, int] = field(default_factory=dict)

    def _meet_runner(self) -> None:
        self._meet_keeper()
        told = told_process(self.folder.root, "runner", self.attempt_id)
        if told is not None:
            self.runner, document = told
            if document.get("cgroup") is None:
                self.group = None  # it could not be moved into it
            # Documents written before it was known came without a nudge, and it may have read an older one already.
            self.system.kill(self.runner.pid, self.runner.start_ticks, signal.SIGUSR1)

    def _meet_keeper(self) -> None:
        """By its own word, which is believed only of a child of the process that we started."""
        told = told_process(self.folder.root, "launcher", self.attempt_id) if self.keeper is None else None
        if told is None or self.launcher is None:
            return
        found, _ = told
        proc = self.system.stat(found.pid)
        if proc is not None and proc.start_ticks == found.start_ticks and self.launcher.pid in (proc.ppid, proc.pid):
            self.keeper = found

    def tree(self) -> list[Proc]:
        """Launcher first, then all below it; after the launcher's death what is left of what was known."""
        roots = [(self.launcher.pid, self.launcher.start_ticks)] if self.launcher is not None else []
        if self.launcher_lost:
            roots += list(self._known.items())
            if self.runner is not None:
                roots.append((self.runner.pid, self.runner.start_ticks))
        return walk(self.system, roots)

    def members(self, tree: list[Proc] | None = None) -> list[Proc]:
        """The tree (as walked just now, or walked here) without its launcher, which is never stopped or killed: it reports the end."""
        if self.keeper is None:
            self._meet_keeper()
        top = self.launcher.pid if self.launcher is not None else -1
        keeper = self.keeper.pid if self.keeper is not None else -1
        found = [proc for proc in (self.tree() if tree is None else tree) if proc.pid not in (top, keeper)]
        if self.keeper is None and self.runner is None:
            found = [proc for proc in found if proc.ppid != top]  # the launcher that has not told its name yet
        return found

    def _nudge(self, sig: int) -> None:
        """To the runner process alone."""
        if self.runner is None:
            self._meet_runner()
        if self.runner is not None:
            self.system.kill(self.runner.pid, self.runner.start_ticks, sig)

    def remember(self) -> None:
        """Keep who is in the tree, for the time when its launcher is gone."""
        tree = self.tree()
        if tree and self.launcher is not None and tree[0].pid == self.launcher.pid and not tree[0].dead:
            # Of a launcher that is dead or a zombie nothing hangs any more: what was known until now is what is left.
            self.last_seen = [proc for proc in self.members(tree) if not proc.dead]
            self._known = {proc.pid: proc.start_ticks for proc in self.last_seen}

    def _left_behind(self, now: float) -> bool:
        """Whether processes have outlived their runner for too long, though whoever cleared them away kept killing them."""
        if self.runner is None or (self.runner.pid in self._known and not self.launcher_lost) or not self._known:
            self._behind_since = None
            return False
        if self._behind_since is None:
            self._behind_since = now
        return now - self._behind_since > UNKILLABLE_AFTER_S

    def recall(self, known: Mapping[int, int]) -> None:
        """Who was in the tree when an earlier agent looked (pid -> start ticks); a pid that is another's by now is left alone."""
        self._known = dict(known)

    @property
    def known(self) -> dict[int, int]:
        return dict(self._known)

    def launcher_gone(self) -> bool:
        if self.process is not None:
            return self.process.poll() is not None
        return self.launcher is None or liveness(self.launcher) == "gone"

    def _signal_known(self, sig: int) -> None:
        """To what was seen in the tree at the last look: no walk, so nothing is waited for."""
        if self.runner is not None:
            self._known.setdefault(self.runner.pid, self.runner.start_ticks)
        for pid, ticks in self._known.items():
            self.system.kill(pid, ticks, sig)

    def _freeze(self, passes: int = 5) -> bool:
        """Stop every process until a walk finds none running; False where some are not stopped yet."""
        for _ in range(passes):
            members = self.members()
            running = [proc for proc in members if proc.state not in STOPPED and not proc.dead]
            if not running:
                return bool(members)
            signal_tree(self.system, running, signal.SIGSTOP)
        return False

    def _seal(self, stopped: bool, late: bool) -> bool:
        """Whether the whole tree is at rest. Where there is a freezer it is closed over a tree that signals have stopped (or, ``late``,
        over one that goes on making processes), and the kernel's own word is what counts.
        """
        if self.group is None:
            return stopped
        if stopped or late:
            self.group.freeze()
        if not self.group.frozen:
            return stopped and self.group.frozen is None  # None: the group is gone, and signals are what there is
        inside = set(self.group.pids())
        return all(proc.dead or proc.state in STOPPED or proc.pid in inside for proc in self.members())

    def _thaw(self) -> None:
        """Children first, so that a parent that waits for them finds them running."""
        members = [proc for proc in self.members() if not proc.dead]
        if self.group is not None:
            self.group.thaw()  # what was frozen before its SIGSTOP took effect would stop now: all are continued
        else:
            members = [proc for proc in members if proc.state in STOPPED]
        signal_tree(self.system, members[::-1], signal.SIGCONT)

    def _kill(self) -> None:
        """Everything, frozen or not: a kill, and then a thaw of the whole subtree, without which a frozen group may keep it."""
        if self.group is not None:
            self.group.kill()
            self.group.thaw()
        signal_tree(self.system, self.members(), signal.SIGKILL)

    def kill_leftovers(self, strangers: list[Proc]) -> bool:
        """After the launcher's death: kill what is left, ``strangers`` (known by another mark) and all below them; True when nothing is.

        Nobody takes in orphans any more: what is killed is stopped first and looked at again, so that none leaves a child behind.
        """
        self._known.update({proc.pid: proc.start_ticks for proc in strangers})
        self._freeze()
        self._known.update({proc.pid: proc.start_ticks for proc in self.members() if not proc.dead})
        self._kill()
        left = [proc for proc in self.members() if not proc.dead]
        signal_tree(self.system, left, signal.SIGKILL)
        return not left and not (self.group is not None and self.group.populated)
