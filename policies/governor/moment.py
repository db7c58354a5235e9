"""One tick's readings, looked at once: everything the transitions and the minute's decision ask for.

Nothing here changes the state. Worse, missing or unreadable readings only ever add reasons to hold back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policies.governor import numbers
from policies.governor.states import GovernorState, Holding, Inputs

__all__ = ["Moment", "TakeBack", "ceiling_of", "look", "minute_pressures", "pressure_of", "uncertified", "worst"]


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Why the budget goes to 0 at once. ``pressure``, ``rate`` and ``baseline`` are None where memory is the cause."""

    cause: Literal["harm", "collapse", "memory"]
    rule: str | None = None
    pressure: float | None = None
    rate: float | None = None
    baseline: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """A tick: the state before it, its inputs and what they say.

    ``take_back``, ``unreadable`` and ``harm`` speak about a running budget and are empty in the other states, but for
    ``unreadable``, by which the state of that name is left.
    """

    state: GovernorState
    inputs: Inputs
    now_s: float
    nothing_holds: bool
    ceiling: float | None
    unreadable: tuple[str, ...]
    take_back: TakeBack | None
    harm: bool


def pressure_of(rate: float, baseline_rate: float, max_slowdown: float) -> float:
    """Harm as a multiple of the rule's target: ``max(0, 1 − rate/baseline) / max_slowdown``. A baseline is above 0."""
    # Rounded, so that a program slowed to its target is at the target, not a binary hair under it.
    return round(max(0.0, 1.0 - rate / baseline_rate) / max_slowdown, 9)


def uncertified(inputs: Inputs) -> tuple[str, ...]:
    """The holding rules without a valid certificate."""
    return tuple(rule.rule for rule in inputs.holding if rule.certified_duty is None)


def ceiling_of(inputs: Inputs) -> float | None:
    """The smallest certified duty over the holding rules; None where one has none, or the section certifies nothing."""
    if inputs.gpu_jobs != "certified":
        return None
    lowest: float | None = None
    for rule in inputs.holding:
        duty = rule.certified_duty
        if duty is None:
            return None
        if lowest is None or duty < lowest:
            lowest = duty
    return lowest


def look(state: GovernorState, inputs: Inputs, now_s: float) -> Moment:
    """What this tick's readings say in this state."""
    nothing_holds = inputs.gpu_jobs == "always" or (not inputs.holding and inputs.gpu_jobs != "never")
    ceiling = None if nothing_holds else ceiling_of(inputs)
    unreadable: tuple[str, ...] = ()
    take_back: TakeBack | None = None
    harm = False
    if state.name in ("running", "unreadable"):
        unreadable = tuple([rule.rule for rule in inputs.holding if not rule.readable or rule.short_rate is None])
    if state.name == "running":
        take_back, harm = _short_window(state, inputs)
    return Moment(state, inputs, now_s, nothing_holds, ceiling, unreadable, take_back, harm)


def _short_window(state: GovernorState, inputs: Inputs) -> tuple[TakeBack | None, bool]:
    """The take-back cause with the largest pressure, and whether any rule shows too much harm for growth."""
    found: TakeBack | None = None
    found_pressure, harm = 0.0, False
    for rule in inputs.holding:
        baseline, rate = state.baseline_of(rule.rule), rule.short_rate
        if baseline is None or rate is None or not rule.readable:
            continue
        pressure = pressure_of(rate, baseline.rate, rule.max_slowdown)
        harm = harm or pressure >= numbers.GROW_BELOW_PRESSURE
        # With a target of over 25 % a collapse shows at a pressure under two.
        collapsed = rate < numbers.COLLAPSE * baseline.rate
        if (collapsed or pressure > numbers.TAKE_BACK_PRESSURE) and pressure > found_pressure:
            found_pressure = pressure
            found = TakeBack("collapse" if collapsed else "harm", rule.rule, pressure, rate, baseline.rate)
    if found is None and inputs.memory_hard:
        found = TakeBack("memory")
    return found, harm


def minute_pressures(state: GovernorState, holding: tuple[Holding, ...]) -> tuple[tuple[str, float | None], ...]:
    """Pressure of the last minute by rule; None where the rate or the baseline is unknown."""
    found: list[tuple[str, float | None]] = []
    for rule in holding:
        baseline, rate = state.baseline_of(rule.rule), rule.minute_rate
        if baseline is None or rate is None or not rule.readable:
            found.append((rule.rule, None))
        else:
            found.append((rule.rule, pressure_of(rate, baseline.rate, rule.max_slowdown)))
    return tuple(found)


def worst(pressures: tuple[tuple[str, float | None], ...]) -> tuple[str, float | None]:
    """The rule that decides the minute. An unknown pressure is worse than any number: unknown is never zero."""
    return max(pressures, key=lambda pair: float("inf") if pair[1] is None else pair[1])
