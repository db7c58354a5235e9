"""Which process each flow run of this node has: on disk, so that a worker that starts anew can tell dead from alive."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from uuid import UUID

from nodes.identity import ProcessId, identify, liveness, note, noted

__all__ = ["FlowProcesses", "lower_priority"]

log = logging.getLogger(__name__)

AUTOGROUP_NICE = 10


class FlowProcesses:
    """One small file a flow run, named by its id, with pid, start ticks and boot id.

    What a full disk does not take is known to this worker all the same, and written as soon as it can be (``prune``); the next
    worker finds such a process by what its environment says (``found``).
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._unkept: dict[UUID, ProcessId] = {}

    def remember(self, flow_run: UUID, pid: int) -> None:
        """Note the process; one that is over already is not noted. A disk that takes no note costs the run nothing."""
        if (who := identify(pid)) is None:
            return
        self._unkept[flow_run] = who
        self._keep(flow_run)

    def _keep(self, flow_run: UUID) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            note(self._file(flow_run), self._unkept[flow_run])
        except OSError as error:
            log.warning("which process flow run %s has cannot be noted yet: %s", flow_run, error)
            return
        del self._unkept[flow_run]

    def of(self, flow_run: UUID) -> ProcessId | None:
        """The process as noted, alive or not; None where nothing readable is noted."""
        return self._unkept.get(flow_run) or noted(self._file(flow_run))

    def lives(self, flow_run: UUID) -> bool:
        """Whether its process is there; unless it certainly is gone, it counts as there."""
        process = self.of(flow_run)
        return process is not None and liveness(process) != "gone"

    def forget(self, flow_run: UUID) -> None:
        self._unkept.pop(flow_run, None)
        self._file(flow_run).unlink(missing_ok=True)

    @staticmethod
    def found(flow_run: UUID, pid: str | None) -> ProcessId | None:
        """The process that the server has for this run, where it still is that: of one that nobody could note."""
        if pid is None or not pid.isdigit() or (who := identify(int(pid))) is None:
            return None
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return None
        same = f"PREFECT__FLOW_RUN_ID={flow_run}".encode() in environment
        return who if same and identify(int(pid)) == who else None

    def prune(self, keep: set[UUID]) -> None:
        """Forget processes that are gone, but for these runs (their end is still to be told); note what could not be before."""
        for flow_run in tuple(self._unkept):
            self._keep(flow_run)
        for file in self.directory.glob("*.json"):
            try:
                flow_run = UUID(file.stem)
            except ValueError:
                continue
            process = self.of(flow_run)
            if flow_run not in keep and (process is None or liveness(process) == "gone"):
                self.forget(flow_run)

    def _file(self, flow_run: UUID) -> Path:
        return self.directory / f"{flow_run}.json"


def lower_priority(pid: int, level: str = "idle") -> None:
    """Let the process, and what it starts, give way to all other work. What the system lacks is left out.

    Args:
        level: "idle", or "normal" to leave it as it is (``COTENANT_FLOW_PRIORITY``).
    """
    if level == "normal":
        return
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    # With autogroup each session is scheduled as one, and inside it all of the above counts for nothing against other
    # sessions: only the session's own nice value does. A flow's start costs some seconds of CPU, hence not the lowest.
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(AUTOGROUP_NICE))
