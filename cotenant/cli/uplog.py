"""What `up` started, on disk, with identities: so that `down` stops that and nothing else.

``COTENANT_HOME/run/up-<node>.json`` holds the supervisor's identity and each piece's. A lock beside it, held as long as
the supervisor lives, keeps a second one away from the same node.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from nodes.identity import ProcessId, liveness

__all__ = ["STOP_ORDER", "NodeLock", "UpLog", "noted", "read_all"]

# The worker first, since it drives the agent; the server last, since the worker reports to it to the end.
STOP_ORDER = ("worker", "agent", "server")

Kind = Literal["up", "node"]


@dataclass(slots=True)
class UpLog:
    """The record of one supervisor. ``ready`` is False until every piece answered once."""

    path: Path
    node: str
    kind: Kind
    supervisor: ProcessId
    pieces: dict[str, ProcessId] = field(default_factory=dict)
    ready: bool = False

    @classmethod
    def at(cls, home: Path, node: str, kind: Kind, supervisor: ProcessId) -> UpLog:
        folder = home / "run"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(folder / f"up-{node}.json", node, kind, supervisor)

    def write(self) -> None:
        """Whole or not at all."""
        body = {
            "node": self.node,
            "kind": self.kind,
            "supervisor": self.supervisor.as_dict(),
            "pieces": {name: who.as_dict() for name, who in self.pieces.items()},
            "ready": self.ready,
        }
        unfinished = self.path.with_suffix(".part")
        unfinished.write_text(json.dumps(body, indent=1))
        unfinished.chmod(0o600)
        unfinished.replace(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    @property
    def alive(self) -> bool:
        return liveness(self.supervisor) != "gone"

    @property
    def living(self) -> dict[str, ProcessId]:
        """Pieces that still live, in the order in which they are to be stopped."""
        ordered = [*STOP_ORDER, *(name for name in self.pieces if name not in STOP_ORDER)]
        return {n: self.pieces[n] for n in ordered if n in self.pieces and liveness(self.pieces[n]) != "gone"}


def read_all(home: Path) -> list[UpLog]:
    """Every record in this home. One that cannot be read is left alone: it names nobody who may be stopped."""
    found = []
    for path in sorted((home / "run").glob("up-*.json")):
        try:
            raw: dict[str, Any] = json.loads(path.read_text())
            found.append(
                UpLog(
                    path,
                    str(raw["node"]),
                    raw["kind"],
                    ProcessId.from_dict(raw["supervisor"]),
                    {str(name): ProcessId.from_dict(who) for name, who in raw["pieces"].items()},
                    bool(raw["ready"]),
                )
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def noted(path: Path) -> ProcessId | None:
    """The identity that a background process's note holds, alive or not."""
    try:
        return ProcessId.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class NodeLock:
    """Held by the one process that looks after a node's agent and worker. It ends with that process, however it ends."""

    def __init__(self, home: Path, node: str) -> None:
        self._path = home / "run" / f"{node}.lock"
        self._file: IO[str] | None = None

    def take(self) -> bool:
        """False when another process has it."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._path.open("a")
        os.set_inheritable(file.fileno(), False)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
