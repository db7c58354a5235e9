"""What every meter answers with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

__all__ = ["DeviceReading", "Memory", "Unreadable", "Use"]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """No figure, and why. Never the same as 0."""

    why: str


@dataclass(frozen=True, slots=True)
class Use:
    """Device time of a group of processes over one reading.

    ``busy_s`` is what certainly was theirs; ``why`` is not None where there may have been more, which nobody can tell.
    ``flags`` say of a readable figure what it rests on (``no_samples``, ``busy_unattributed``).
    """

    busy_s: float
    why: str | None = None
    flags: frozenset[str] = frozenset()

    @property
    def reading(self) -> float | Unreadable:
        """For whoever needs the whole figure or none."""
        return self.busy_s if self.why is None else Unreadable(self.why)


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory in bytes; None is unknown. ``unified``: it has none of its own, these are the machine's figures."""

    total_bytes: int | None
    free_bytes: int | None
    unified: bool = False


class DeviceReading(Protocol):
    """One device at one moment, whatever meter read it."""

    @property
    def device(self) -> str: ...
    @property
    def at_s(self) -> float: ...
    @property
    def span_s(self) -> float: ...
    @property
    def util_pct(self) -> int | None: ...
    @property
    def unattributed(self) -> bool: ...
    @property
    def why(self) -> str | None: ...
    @property
    def memory(self) -> Memory | None: ...
    def use(self, pids: Collection[int]) -> Use: ...
