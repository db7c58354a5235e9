"""The memory guard in the agent: what is free and what each attempt holds, read once a tick; what the guard says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodes.agent.program_use import footprint_bytes
from nodes.identity import ProcessId
from nodes.journal import Journal
from nodes.memory import MemoryReading, read_memory
from policies.memory_guard import GuardState, MemorySignals, step_guard
from policies.section.models import Memory

__all__ = ["MemoryWatch"]


class MemoryWatch:
    """Attributes:
    footprints: bytes that each attempt's processes hold; None: cannot be told.
    shortage: how short memory is; None: it is not, or it cannot be told.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.reading = MemoryReading((), None)
        self.level: str = "unknown"
        self.why = "memory was not read yet"
        self.admits = False
        self.shortage: str | None = None
        self.footprints: dict[str, int | None] = {}
        self._guard = GuardState()
        self._victim: str | None = None

    def read(self, now_s: float, trees: Mapping[str, Sequence[ProcessId]], limits: Memory) -> None:
        """``trees``: the processes of each attempt. A change of level is journaled."""
        self.reading = read_memory()
        self.footprints = {attempt: footprint_bytes(p.pid for p in tree) for attempt, tree in trees.items()}
        signals = MemorySignals(self.reading.pools, self.reading.swap_used_bytes, self.footprints)
        self._guard, decided = step_guard(self._guard, signals, now_s, limits)
        self.level, self.why, self.admits = decided.level, decided.why, decided.admit
        self.shortage = decided.why if decided.short else None
        self._victim = decided.evict or self._victim
        if decided.code is not None:
            self._journal.write(decided.code, self.describe())

    def take_victim(self) -> str | None:
        """The attempt that the guard wants gone, told once."""
        victim, self._victim = self._victim, None
        return victim

    def machine(self) -> tuple[int | None, int | None]:
        """(total, available) bytes of the whole machine, as last read."""
        machine = next((pool for pool in self.reading.pools if pool.name == "machine"), None)
        return (None, None) if machine is None else (machine.total_bytes, machine.available_bytes)

    def describe(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "why": self.why,
            "pools": [
                {"name": pool.name, "total_bytes": pool.total_bytes, "available_bytes": pool.available_bytes}
                for pool in self.reading.pools
            ],
            "swap_used_bytes": self.reading.swap_used_bytes,
        }
