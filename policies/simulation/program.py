"""A modelled protected program: how fast it runs beside a given device duty.

Harm is the share of its speed that fleet work takes, 0..1. Everything that happens to the program by itself (noise, drift, phases,
stalls) is kept apart from harm, so that a simulation knows what the governor can only infer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Harm", "Phase", "Program", "Speed", "best_constant_duty", "linear", "threshold"]

Harm = Callable[[float], float]


def linear(gain: float) -> Harm:
    """Harm in proportion to the duty."""
    return lambda duty: min(1.0, gain * duty)


def threshold(free_duty: float, gain: float) -> Harm:
    """No harm up to ``free_duty``, beyond it ``gain`` times the rest: a program that leaves slack."""
    return lambda duty: min(1.0, max(0.0, gain * (duty - free_duty)))


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the program's own life: how fast it is by itself, and how much more fleet work hurts it."""

    length_s: float
    speed: float = 1.0
    sensitivity: float = 1.0


@dataclass(frozen=True, slots=True)
class Program:
    """The model.

    Args:
        harm: harm by duty.
        rate_per_s: speed when left alone.
        noise_pct: standard deviation of a minute's rate, in percent; shorter stretches are noisier (white noise).
        delay_s: how long a duty takes to be felt.
        drift_pct_h: its own slow change of speed, percent an hour, up and down in turn over ``drift_turn_h``.
        phases: repeated in order; empty: one phase for ever.
        stall_every_s, stall_s: it stands still by itself (a checkpoint) for so long, so often; 0: never.
        sensitivity_step: from ``at_s`` on harm is multiplied: something changed that no certificate knows.
        median_step_s: its median step.
    """

    harm: Harm
    rate_per_s: float = 10.0
    noise_pct: float = 1.0
    delay_s: float = 0.0
    drift_pct_h: float = 0.0
    drift_turn_h: float = 6.0
    phases: tuple[Phase, ...] = ()
    stall_every_s: float = 0.0
    stall_s: float = 0.0
    sensitivity_step: tuple[float, float] | None = None
    median_step_s: float = 0.1

    def phase_at(self, now_s: float) -> Phase | None:
        if not self.phases:
            return None
        left_s = now_s % math.fsum(phase.length_s for phase in self.phases)
        for phase in self.phases:
            if left_s < phase.length_s:
                return phase
            left_s -= phase.length_s
        return self.phases[-1]

    def harm_at(self, duty: float, now_s: float) -> float:
        """Share of its speed that is lost to this duty, as felt at ``now_s``."""
        phase = self.phase_at(now_s)
        factor = phase.sensitivity if phase else 1.0
        if self.sensitivity_step is not None and now_s >= self.sensitivity_step[0]:
            factor *= self.sensitivity_step[1]
        return min(1.0, factor * self.harm(duty))

    def own_speed(self, now_s: float) -> float:
        """Its speed relative to ``rate_per_s`` when left alone, without noise."""
        speed = 1.0
        if self.drift_pct_h:
            turn_s = self.drift_turn_h * 3600.0
            speed += self.drift_pct_h / 100.0 * (turn_s / 2.0 - abs(now_s % (2.0 * turn_s) - turn_s)) / 3600.0
        phase = self.phase_at(now_s)
        if phase is not None:
            speed *= phase.speed
        if self.stall_every_s and now_s % self.stall_every_s < self.stall_s:
            speed = 0.0
        return max(0.0, speed)


class Speed:
    """Progress tick by tick, with noise from the generator passed in and harm felt after the program's delay."""

    def __init__(self, program: Program, rng: random.Random, tick_s: float) -> None:
        self._program = program
        self._rng = rng
        self._tick_s = tick_s
        self._tick_sd = program.noise_pct / 100.0 * math.sqrt(60.0 / tick_s)
        self._felt_later = [0.0] * round(program.delay_s / tick_s)
        self._plain = not (program.phases or program.drift_pct_h or program.stall_every_s or program.sensitivity_step)

    def advance(self, duty: float, now_s: float) -> tuple[float, float]:
        """``(progress made in this tick, true harm felt in it)``."""
        if self._felt_later:
            self._felt_later.append(duty)
            duty = self._felt_later.pop(0)
        program = self._program
        harm = program.harm(duty) if self._plain else program.harm_at(duty, now_s)
        own = 1.0 if self._plain else program.own_speed(now_s)
        noise = self._rng.gauss(0.0, self._tick_sd) if self._tick_sd else 0.0
        return max(0.0, program.rate_per_s * own * (1.0 - harm) * (1.0 + noise)) * self._tick_s, harm


def best_constant_duty(program: Program, target: float, ceiling: float, until_s: float) -> float:
    """The largest constant duty up to the ceiling that harms no more than the target at any time until ``until_s``."""
    times = [0.0]
    if program.phases:
        ends = [math.fsum(phase.length_s for phase in program.phases[:count]) for count in range(len(program.phases))]
        times = ends
    if program.sensitivity_step is not None:
        times = [*times, *(program.sensitivity_step[0] + at for at in times if program.sensitivity_step[0] < until_s)]
    low, high = 0.0, ceiling
    for _ in range(40):
        middle = (low + high) / 2.0
        if max(program.harm_at(middle, at_s) for at_s in times) <= target:
            low = middle
        else:
            high = middle
    return high if max(program.harm_at(ceiling, at_s) for at_s in times) <= target else low
