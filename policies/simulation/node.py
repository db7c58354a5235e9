"""A node without a machine: a fake clock drives the real governor and the real compliance check beside a modelled program."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from policies import compliance
from policies.governor import (
    INITIAL,
    TICK_S,
    Entry,
    GovernorState,
    Holding,
    Inputs,
    baseline_window_s,
    short_window_s,
    step,
)
from policies.simulation.fleet import Behaviour, Fleet
from policies.simulation.program import Program, Speed

__all__ = ["Setup", "Tick", "simulate"]


@dataclass(frozen=True, slots=True)
class Setup:
    """One simulated node.

    Args:
        program: the protected program.
        ceiling: the certified duty.
        max_slowdown: the rule's target.
        fleet: a behaviour for each unit of device work.
        blind: stretches ``(from_s, to_s)`` in which the source does not read.
        late_share: share of ticks that come two seconds late.
    """

    program: Program
    ceiling: float = 0.35
    max_slowdown: float = 0.05
    fleet: tuple[Behaviour, ...] = ("obeys", "obeys")
    blind: tuple[tuple[float, float], ...] = ()
    late_share: float = 0.0


@dataclass(slots=True)
class Tick:
    """What happened up to ``now_s``: the duty that was used, the true harm of it, and what was then decided."""

    now_s: float
    used: float
    harm: float
    state: GovernorState
    budget: float | None
    entries: tuple[Entry, ...]
    overruns: tuple[Entry, ...] = ()


class _Progress:
    """Cumulative progress at every tick of two seconds, and rates over the windows that the governor asks for."""

    def __init__(self, median_step_s: float) -> None:
        self.short = round(short_window_s(median_step_s) / TICK_S)
        self.minute = round(60.0 / TICK_S)
        self.baseline = round(baseline_window_s(median_step_s) / TICK_S)
        self._keep = max(self.short, self.minute, self.baseline) + 1
        self._made = [0.0]

    def add(self, made: float) -> None:
        self._made.append(self._made[-1] + made)
        if len(self._made) > 64 * self._keep:
            del self._made[: -self._keep]

    def rate(self, ticks: int) -> float | None:
        if len(self._made) <= ticks:
            return None
        return (self._made[-1] - self._made[-1 - ticks]) / (ticks * TICK_S)


def simulate(setup: Setup, hours: float, rng: random.Random) -> Iterator[Tick]:
    """Run the node for so many hours of its own clock, one item a tick. All chance comes from ``rng``."""
    speed = Speed(setup.program, rng, TICK_S)
    fleet = Fleet(setup.fleet, rng)
    judged = any(behaviour != "obeys" for behaviour in setup.fleet)
    progress = _Progress(setup.program.median_step_s)
    state, checked = INITIAL, compliance.CLEAR
    shares: dict[str, float] = {}
    waiting: set[str] = set()
    late = False
    units = tuple(unit.unit for unit in fleet.units)
    for number in range(1, round(hours * 3600.0 / TICK_S) + 1):
        now_s = number * TICK_S
        used = {
            unit.unit: 0.0 if unit.unit in waiting else unit.uses(shares.get(unit.unit, 0.0)) for unit in fleet.units
        }
        total = min(1.0, sum(used.values()))
        made, harm = speed.advance(total, now_s)
        progress.add(made)
        fleet.tick()
        late = not late and bool(setup.late_share) and rng.random() < setup.late_share
        if late:
            yield Tick(now_s, total, harm, state, state.budget, ())
            continue
        if judged:
            units = tuple(
                unit.unit for unit in fleet.units if compliance.gets_duty(checked, unit.unit, unit.module, True, now_s)
            )
        state, out = step(state, Inputs(holding=(_reading(setup, progress, now_s),), units=units), now_s)
        overruns: tuple[Entry, ...] = ()
        if judged:
            samples = [
                compliance.Sample(
                    unit.unit,
                    unit.module,
                    True,
                    shares.get(unit.unit, 0.0),
                    None if unit.behaviour == "unreadable" else used.get(unit.unit, 0.0),
                )
                for unit in fleet.units
            ]
            checked, judgement = compliance.judge(checked, samples, out.budget, now_s)
            waiting = {unit for unit, verdict in judgement.verdicts.items() if verdict.state != "holds"}
            fleet.stop({unit for unit, verdict in judgement.verdicts.items() if verdict.state == "stopped"})
            overruns = judgement.entries
        shares = dict(out.shares)
        yield Tick(now_s, total, harm, state, out.budget, out.entries, overruns)


def _reading(setup: Setup, progress: _Progress, now_s: float) -> Holding:
    readable = not setup.blind or not any(from_s <= now_s < to_s for from_s, to_s in setup.blind)
    return Holding(
        "program",
        setup.ceiling,
        readable,
        progress.rate(progress.short) if readable else None,
        progress.rate(progress.minute) if readable else None,
        progress.rate(progress.baseline) if readable else None,
        setup.program.median_step_s,
        setup.max_slowdown,
        setup.program.rate_per_s,
    )
