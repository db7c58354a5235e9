"""Busy seconds of one DRM client from its counters. Pure.

Counters may repeat, stand still and step back a little under load; what was counted once is not counted again, so the
sum stays what the counter gained. A counter that fell far began anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodes.meters.fdinfo import DrmFile

__all__ = ["Counters", "advance", "class_clocks"]

# A counter this far (of its height) below what it reached has begun anew; less is a step back.
BEGAN_ANEW = 0.5


@dataclass(frozen=True, slots=True)
class Counters:
    """The highest value of each counter so far, by engine class."""

    busy_ns: Mapping[str, int] = field(default_factory=dict)
    cycles: Mapping[str, int] = field(default_factory=dict)


def class_clocks(files: list[DrmFile]) -> dict[tuple[str, str], int]:
    """The clock of each (device, engine class): the largest total of all its clients, read moments apart."""
    clocks: dict[tuple[str, str], int] = {}
    for file in files:
        for name, (_, total) in file.cycles.items():
            clocks[file.pdev, name] = max(clocks.get((file.pdev, name), 0), total)
    return clocks


def advance(
    before: Counters, file: DrmFile, ticks: Mapping[str, int], elapsed_s: float
) -> tuple[Counters, dict[str, float]]:
    """Busy seconds by engine class since ``before``, each of at most one whole engine class.

    Args:
        ticks: what the class's clock gained since then.
        elapsed_s: the time between the two readings by our clock.
    """
    busy_ns, cycles, used = dict(before.busy_ns), dict(before.cycles), dict[str, float]()
    for name, ns in file.busy_ns.items():
        gained, busy_ns[name] = _gained(busy_ns.get(name, 0), ns)
        used[name] = gained / 1e9 / max(1, file.capacity.get(name, 1))
    for name, (count, _) in file.cycles.items():
        gained, cycles[name] = _gained(cycles.get(name, 0), count)
        if name not in file.busy_ns and ticks.get(name, 0) > 0:
            used[name] = gained / ticks[name] * elapsed_s / max(1, file.capacity.get(name, 1))
    return Counters(busy_ns, cycles), used


def _gained(highest: int, now: int) -> tuple[int, int]:
    """What a counter gained, and its new highest value."""
    if now >= highest:
        return now - highest, now
    return (0, now) if now < highest * BEGAN_ANEW else (0, highest)
