"""Modelled units of device work: some hold their duty, some do not, some come and go."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["Behaviour", "Fleet", "SimUnit"]

Behaviour = Literal["obeys", "overshoots", "lies", "vanishes", "unreadable"]


@dataclass(slots=True)
class SimUnit:
    """``lies``: it says that it holds its duty and takes the whole device. ``overshoots``: 0.2 over its duty."""

    unit: str
    module: str
    behaviour: Behaviour = "obeys"

    def uses(self, duty: float) -> float:
        if self.behaviour == "lies":
            return 1.0
        if self.behaviour == "overshoots":
            return min(1.0, duty + 0.2) if duty > 0.0 else 0.0
        return duty


class Fleet:
    """The units on the node, one module a behaviour. A stopped unit's job comes back as a new attempt."""

    def __init__(self, behaviours: tuple[Behaviour, ...], rng: random.Random) -> None:
        self._rng = rng
        self._made = 0
        self._behaviours = behaviours
        self.units: list[SimUnit] = [self._new(behaviour) for behaviour in behaviours]

    def _new(self, behaviour: Behaviour) -> SimUnit:
        self._made += 1
        return SimUnit(f"{self._made}", f"module-{behaviour}", behaviour)

    def tick(self) -> None:
        """Units that vanish end and return about every ten minutes."""
        if "vanishes" not in self._behaviours:
            return
        for unit in [unit for unit in self.units if unit.behaviour == "vanishes"]:
            if self._rng.random() < 1.0 / 300.0:
                self.units.remove(unit)
        missing = self._behaviours.count("vanishes") - sum(unit.behaviour == "vanishes" for unit in self.units)
        if missing and self._rng.random() < 1.0 / 300.0:
            self.units.append(self._new("vanishes"))

    def stop(self, stopped: set[str]) -> None:
        """End these attempts; their jobs are queued again and start as new attempts."""
        self.units = [self._new(unit.behaviour) if unit.unit in stopped else unit for unit in self.units]
