"""Who a process is: pid, start ticks and boot id. A pid alone is nobody (it is used again)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from policies.json_text import parse_json

__all__ = ["Liveness", "ProcessId", "boot_id", "identify", "liveness", "note", "noted", "own_id", "stat_fields"]

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """``start_ticks`` is field 22 of /proc/PID/stat: clock ticks after boot, untouched by clock changes."""

    pid: int
    start_ticks: int
    boot_id: str

    def as_dict(self) -> dict[str, Any]:
        return {"pid": self.pid, "start_ticks": self.start_ticks, "boot_id": self.boot_id}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ProcessId:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError`` on anything else."""
        pid, ticks = raw["pid"], raw["start_ticks"]
        if type(pid) is not int or type(ticks) is not int:
            raise ValueError(f"no process: pid {pid!r}, start ticks {ticks!r}")
        return cls(pid, ticks, str(raw["boot_id"]))


Liveness = Literal["alive", "gone", "unknown"]


@lru_cache(maxsize=1)
def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def stat_fields(pid: int, proc: Path = PROC) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (index 0 is field 3), or None when there is no such process.

    The command name may hold spaces and brackets, so the line is split behind its last bracket.
    """
    try:
        raw = (proc / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return raw[raw.rindex(b")") + 2 :].decode("ascii", "replace").split()


def _has_ended(fields: list[str]) -> bool:
    """A zombie; but one whose other threads outlive its first one runs on."""
    return fields[0] in "ZX" and int(fields[17]) <= 1


def identify(pid: int) -> ProcessId | None:
    """Identity of a live process; None when there is none or it is a zombie."""
    fields = stat_fields(pid)
    if fields is None or _has_ended(fields):
        return None
    return ProcessId(pid, int(fields[19]), boot_id())


def liveness(who: ProcessId) -> Liveness:
    """ "gone" only where that is certain; what cannot be read is "unknown", and unknown is not gone."""
    if who.boot_id != boot_id():
        return "gone"
    try:
        fields = stat_fields(who.pid)
    except OSError:
        return "unknown"
    if fields is None or _has_ended(fields) or int(fields[19]) != who.start_ticks:
        return "gone"
    return "alive"


def note(path: Path, who: ProcessId) -> None:
    """Keep who it is, whole or not at all, for whoever is to find that very process later (``noted``)."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(who.as_dict()))
    os.replace(draft, path)


def noted(path: Path) -> ProcessId | None:
    """Who is noted there, alive or not; None where nothing readable is."""
    try:
        return ProcessId.from_dict(parse_json(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def own_id() -> ProcessId:
    me = identify(os.getpid())
    if me is None:
        raise RuntimeError("cannot read this process's own identity under /proc")
    return me
