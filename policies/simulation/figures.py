"""What a simulated node shows about the governor, in four figures and what explains them."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from policies.simulation.node import Setup, simulate
from policies.simulation.program import best_constant_duty

__all__ = ["Figures", "measure", "time_to_zero_s"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one simulated node.

    Args:
        hours: how long it ran.
        harm_above_target_pct: share of all minutes whose true harm was above the rule's target.
        mean_harm_pct: true harm over all time.
        mean_duty: device share used.
        best_constant_duty: the largest constant duty within the ceiling that keeps the target at any time.
        harvest_pct: ``mean_duty`` over ``best_constant_duty``; None where no constant duty keeps the target.
        false_halvings_day: halvings a day after a minute whose true harm was under the target.
        true_halvings_day: the others.
        false_take_backs_day: take-backs a day while true harm was at most twice the target over the short window.
        true_take_backs_day: the others.
    """

    hours: float
    harm_above_target_pct: float
    mean_harm_pct: float
    mean_duty: float
    best_constant_duty: float
    harvest_pct: float | None
    false_halvings_day: float
    true_halvings_day: float
    false_take_backs_day: float
    true_take_backs_day: float


def measure(setup: Setup, hours: float, rng: random.Random) -> Figures:
    """Simulate and count. Harm is the model's own, without its noise."""
    target = setup.max_slowdown
    minute: deque[float] = deque(maxlen=30)
    short: deque[float] = deque(maxlen=10)
    ticks = minutes = above = 0
    duty = harm = 0.0
    halvings, take_backs = [0, 0], [0, 0]
    for tick in simulate(setup, hours, rng):
        ticks += 1
        duty += tick.used
        harm += tick.harm
        minute.append(tick.harm)
        short.append(tick.harm)
        if ticks % 30 == 0:
            minutes += 1
            above += sum(minute) / 30.0 > target + 1e-9
        for entry in tick.entries:
            if entry.code == "GPU_DUTY_HALVE":
                halvings[sum(minute) / len(minute) >= target - 1e-9] += 1
            elif entry.code == "GPU_DUTY_TAKE_BACK" and entry.data["cause"] in ("harm", "collapse"):
                take_backs[sum(short) / len(short) > 2.0 * target - 1e-9] += 1
    best = best_constant_duty(setup.program, target, setup.ceiling, hours * 3600.0)
    days = hours / 24.0
    return Figures(
        hours=hours,
        harm_above_target_pct=100.0 * above / minutes,
        mean_harm_pct=100.0 * harm / ticks,
        mean_duty=duty / ticks,
        best_constant_duty=best,
        harvest_pct=100.0 * duty / ticks / best if best > 0.0 else None,
        false_halvings_day=halvings[0] / days,
        true_halvings_day=halvings[1] / days,
        false_take_backs_day=take_backs[0] / days,
        true_take_backs_day=take_backs[1] / days,
    )


def time_to_zero_s(setup: Setup, step_at_s: float, rng: random.Random, limit_s: float = 1800.0) -> float | None:
    """Seconds from ``step_at_s`` (the program's ``sensitivity_step``, or the source going blind) to a budget of 0.

    None: it did not come to 0 within ``limit_s``, or no budget ran when the step came.
    """
    running = False
    for tick in simulate(setup, (step_at_s + limit_s) / 3600.0, rng):
        if tick.now_s < step_at_s:
            running = bool(tick.budget)
        elif tick.budget == 0.0:
            return tick.now_s - step_at_s if running else None
    return None
