"""The processes of one attempt: launcher, runner and all below, and the signals they may get."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass, field

from nodes.identity import ProcessId, liveness
from nodes.jobs.proctree import STOPPED, Proc, System, signal_tree, walk
from nodes.jobs.workdir import AttemptDir, read_document

__all__ = ["ProcessTree"]


@dataclass(kw_only=True)
class ProcessTree:
    """Everything that runs for one attempt. ``process`` is the launcher as our own child, None for one that was adopted."""

    attempt_id: str
    folder: AttemptDir
    system: System
    launcher: ProcessId | None = None
    runner: ProcessId | None = None
    process: subprocess.Popen[bytes] | None = None
    launcher_lost: bool = False
    _known: dict[int, int] = field(default_factory=dict)

    def _meet_runner(self) -> None:
        told = read_document(self.folder.root / "runner.json")
        if told is not None and told.get("attempt_id") == self.attempt_id:
            self.runner = ProcessId.from_dict(told)
            # Documents written before it was known came without a nudge, and it may have read an older one already.
            self.system.kill(self.runner.pid, self.runner.start_ticks, signal.SIGUSR1)

    def tree(self) -> list[Proc]:
        """Launcher first, then all below it; after the launcher's death what is left of what was known."""
        roots = [(self.launcher.pid, self.launcher.start_ticks)] if self.launcher is not None else []
        if self.launcher_lost:
            roots += list(self._known.items())
            if self.runner is not None:
                roots.append((self.runner.pid, self.runner.start_ticks))
        return walk(self.system, roots)

    def members(self) -> list[Proc]:
        """The tree without its launcher, which is never stopped or killed: it reports the end."""
        keeper = self.launcher.pid if self.launcher is not None else -1
        return [proc for proc in self.tree() if proc.pid != keeper]

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
            self._known = {proc.pid: proc.start_ticks for proc in tree[1:] if not proc.dead}

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

    def _thaw(self) -> None:
        """Children first, so that a parent that waits for them finds them running."""
        stopped = [proc for proc in self.members() if proc.state in STOPPED]
        signal_tree(self.system, stopped[::-1], signal.SIGCONT)

    def kill_leftovers(self, strangers: list[Proc]) -> bool:
        """After the launcher's death: kill what is left (and ``strangers`` that carry this attempt's id); True when nothing is."""
        left = [proc for proc in (*self.members(), *strangers) if not proc.dead]
        signal_tree(self.system, left, signal.SIGKILL)
        return not left
