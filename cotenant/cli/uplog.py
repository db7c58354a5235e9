"""What `up` started, on disk, with identities: so that `down` stops that and nothing else.

``COTENANT_HOME/run/up-<node>.json`` holds the supervisor's identity and what it started. A lock beside it, held as long as
the supervisor lives, keeps a second one away from the same node.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from nodes.client import node_dir
from nodes.identity import ProcessId, liveness, noted
from policies.json_text import parse_json

__all__ = ["STOP_ORDER", "NodeLock", "UpLog", "note_of", "read_all"]

# The worker first, since it drives the agent; the server last, since the worker reports to it to the end.
STOP_ORDER = ("worker", "agent", "server")

Kind = Literal["up", "node"]


@dataclass(slots=True)
class UpLog:
    """The record of one supervisor.

    ``pieces`` names what it started, before it is started, so that nothing is forgotten by a supervisor that is killed in
    the middle; who they are stands in the notes that each background process has. ``ready``: every piece answered once.
    """

    path: Path
    node: str
    kind: Kind
    supervisor: ProcessId
    pieces: list[str] = field(default_factory=list)
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
            "pieces": self.pieces,
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
        home = self.path.parents[1]
        found = {name: noted(note_of(home, self.node, name)) for name in STOP_ORDER if name in self.pieces}
        return {name: who for name, who in found.items() if who is not None and liveness(who) != "gone"}


def read_all(home: Path) -> list[UpLog]:
    """Every record in this home. One that cannot be read is left alone: it names nobody who may be stopped."""
    found = []
    for path in sorted((home / "run").glob("up-*.json")):
        try:
            raw: dict[str, Any] = parse_json(path.read_text())
            found.append(
                UpLog(
                    path,
                    str(raw["node"]),
                    raw["kind"],
                    ProcessId.from_dict(raw["supervisor"]),
                    [name for name in STOP_ORDER if name in raw["pieces"]],
                    bool(raw["ready"]),
                )
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def note_of(home: Path, node: str, piece: str) -> Path:
    """Where a piece's identity is kept, whoever started it."""
    return home / "prefect" / "server.pid.json" if piece == "server" else node_dir(home, node) / f"{piece}.pid.json"


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
