"""Readings of a protected program, and a node whose governor is driven with them tick by tick."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from policies.governor import INITIAL, Entry, GovernorState, Holding, Inputs, Outputs, step

TRAINER = Holding(
    rule="trainer",
    certified_duty=0.35,
    readable=True,
    short_rate=10.0,
    minute_rate=10.0,
    baseline_rate=10.0,
    median_step_s=0.1,
    certified_off_rate=10.0,
)
CLEAN = Inputs(holding=(TRAINER,), units=("a", "b"))


def at_rate(rate: float | None, *, minute: float | None = None, base: Holding = TRAINER) -> Inputs:
    """Readings of a program whose short window and minute show ``rate`` (``minute`` where given)."""
    return replace(CLEAN, holding=(replace(base, short_rate=rate, minute_rate=rate if minute is None else minute),))


@dataclass
class Node:
    """Drives the governor with two-second ticks and keeps what it did."""

    state: GovernorState = INITIAL
    now_s: float = 1000.0
    out: Outputs = field(default_factory=lambda: Outputs(None))
    entries: list[Entry] = field(default_factory=list)

    def tick(self, inputs: Inputs = CLEAN, *, after_s: float = 2.0) -> Outputs:
        self.now_s += after_s
        self.state, self.out = step(self.state, inputs, self.now_s)
        self.entries += self.out.entries
        return self.out

    def run(self, inputs: Inputs, for_s: float, *, every_s: float = 2.0) -> list[float | None]:
        return [self.tick(inputs, after_s=every_s).budget for _ in range(round(for_s / every_s))]

    def codes(self) -> list[str]:
        return [entry.code for entry in self.entries]

    def last(self, code: str) -> dict[str, Any]:
        return dict(next(entry.data for entry in reversed(self.entries) if entry.code == code))
