"""Everything below a launcher: found, signalled, stopped, sealed by its freezer, killed.

Standard library only, loaded by its path (``launcher.py``).
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodes.jobs import cgroup, proctree
else:
    import proctree

__all__ = ["Below"]

# the freezer closes over a tree that signals have stopped; one that goes on forking is not waited for
SEAL_AFTER_S = 0.1


class Below:
    """The processes below ``me``, a subreaper, so that what one of them orphans stays among them.

    Attributes:
        group: the attempt's own control group, where there is one.
        runner: our child, until it is collected: a look that does not find it has not seen all there is.
    """

    def __init__(self, system: proctree.ProcSystem, me: proctree.Proc) -> None:
        self.system = system
        self.me = me
        self.group: cgroup.Group | None = None
        self.runner: proctree.Proc | None = None

    def processes(self) -> list[proctree.Proc]:
        return proctree.walk(self.system, [(self.me.pid, self.me.start_ticks)])[1:]

    def send(self, sig: int) -> None:
        proctree.signal_tree(self.system, self.processes(), sig)

    def stop(self) -> None:
        """Stop until no process is left that runs; a new child of a process not yet stopped is found by the next walk."""
        for _ in range(5):
            running = [proc for proc in self.processes() if proc.state not in proctree.STOPPED and not proc.dead]
            if not running:
                return
            proctree.signal_tree(self.system, running, signal.SIGSTOP)

    def at_rest(self, since_s: float) -> bool:
        """Every process stopped; with a freezer: sealed by it, and the kernel says that it has reached all of them.

        Args:
            since_s: for how long they have been told to stop.
        """
        found = self.processes()
        if self.runner is not None and self.runner.pid not in [proc.pid for proc in found]:
            return False
        stopped = all(proc.dead or proc.state in proctree.STOPPED for proc in found)
        if self.group is None:
            return stopped
        if stopped or since_s > SEAL_AFTER_S:
            self.group.freeze()
        if not self.group.frozen:
            return stopped and self.group.frozen is None
        inside = set(self.group.pids())
        return all(proc.dead or proc.state in proctree.STOPPED or proc.pid in inside for proc in found)

    def kill(self) -> None:
        """Everything, frozen or not."""
        if self.group is not None:
            self.group.kill()
            self.group.thaw()
        self.send(signal.SIGKILL)
