"""What every meter answers with."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Memory", "Unreadable", "Use"]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """No figure, and why. Never the same as 0."""

    why: str


@dataclass(frozen=True, slots=True)
class Use:
    """Device time of a group of processes over one reading.

    ``busy_s`` is what certainly was theirs; ``why`` is not None where there may have been more, which nobody can tell.
    ``flags`` say of a readable figure what it rests on (``no_samples``, ``busy_unattributed``, ``shared``).
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
