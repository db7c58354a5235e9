"""Ceilings on fleet work and what is set aside for a program: the strictest of all that are in force (protection.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from policies.section import models
from policies.section.models import CapFleet

__all__ = ["NO_CAPS", "NO_RESERVE", "Caps", "Reserve", "caps_of", "reserve_of", "strictest_caps", "sum_of_reserves"]


@dataclass(frozen=True, slots=True)
class Caps:
    """None: no ceiling. ``slots`` and ``gpu_jobs`` are jobs at once, ``threads`` are a job's, ``cpu_cores`` all jobs' together."""

    slots: int | None = None
    cpu_cores: float | None = None
    threads: int | None = None
    gpu_jobs: int | None = None
    by: str = ""
    """The rules that cap, in words."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in _CAPS)


_CAPS = tuple(field.name for field in fields(Caps) if field.name != "by")
NO_CAPS = Caps()


@dataclass(frozen=True, slots=True)
class Reserve:
    """Cores and bytes of memory that admission leaves alone."""

    cores: float = 0.0
    mem_bytes: float = 0.0
    by: str = ""

    def __bool__(self) -> bool:
        return self.cores > 0.0 or self.mem_bytes > 0.0


NO_RESERVE = Reserve()


def strictest_caps(caps: Iterable[Caps]) -> Caps:
    """The lowest of each ceiling."""
    found = [each for each in caps if each]
    lowest: dict[str, Any] = {}
    for name in _CAPS:
        given = [value for each in found if (value := getattr(each, name)) is not None]
        lowest[name] = min(given, default=None)
    return Caps(**lowest, by=", ".join(dict.fromkeys(each.by for each in found if each.by)))


def sum_of_reserves(reserves: Iterable[Reserve]) -> Reserve:
    """Two programs that each need room need both rooms."""
    found = [each for each in reserves if each]
    return Reserve(
        sum(each.cores for each in found),
        sum(each.mem_bytes for each in found),
        ", ".join(dict.fromkeys(each.by for each in found if each.by)),
    )


def caps_of(cap: CapFleet | None, by: str) -> Caps:
    """A section's ``cap_fleet``."""
    return NO_CAPS if cap is None else Caps(cap.slots, cap.cpu_cores, cap.threads, cap.gpu_jobs, by)


def reserve_of(reserve: models.Reserve | None, by: str) -> Reserve:
    """A section's ``reserve``."""
    return NO_RESERVE if reserve is None else Reserve(reserve.cpu or 0.0, 1e9 * (reserve.mem_gb or 0.0), by)
