"""Which process each flow run of this node has: on disk, so that a worker that starts anew can tell dead from alive."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from uuid import UUID

from nodes.identity import ProcessId, identify, liveness
from policies.json_text import parse_json

__all__ = ["FlowProcesses", "lower_priority"]

AUTOGROUP_NICE = 10


class FlowProcesses:
    """One small file a flow run, named by its id, with pid, start ticks and boot id."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def remember(self, flow_run: UUID, pid: int) -> None:
        """Note the process; one that is over already is not noted."""
        if (who := identify(pid)) is None:
            return
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._file(flow_run).with_suffix(".new")
        draft.write_text(json.dumps(who.as_dict()))
        os.replace(draft, self._file(flow_run))

    def of(self, flow_run: UUID) -> ProcessId | None:
        """The process as noted, alive or not; None where nothing readable is noted."""
        try:
            return ProcessId.from_dict(parse_json(self._file(flow_run).read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def lives(self, flow_run: UUID) -> bool:
        """Whether its process is there; unless it certainly is gone, it counts as there."""
        process = self.of(flow_run)
        return process is not None and liveness(process) != "gone"

    def forget(self, flow_run: UUID) -> None:
        self._file(flow_run).unlink(missing_ok=True)

    def prune(self, keep: set[UUID]) -> None:
        """Forget processes that are gone, but for these runs (their end is still to be told)."""
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
