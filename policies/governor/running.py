"""The work of a running budget: the clamp of each tick and the decision of each minute."""

from __future__ import annotations

from dataclasses import replace

from policies.governor import numbers
from policies.governor.moment import Moment, minute_pressures, worst
from policies.governor.states import Entry, GovernorState

__all__ = ["settled", "work"]


def settled(budget: float) -> float:
    """A budget under 0.025 is 0. Rounded, so that halving and growing does not pile up binary dust."""
    return 0.0 if budget < numbers.MIN_BUDGET else round(budget, 6)


def work(moment: Moment) -> tuple[GovernorState, tuple[Entry, ...]]:
    """The state after this tick's clamp and, where a minute ends, its decision; and the journal entries."""
    state, entries = _clamp(moment)
    if moment.now_s - state.stretch_s < numbers.MINUTE_S:
        return state, entries
    state, decided = _decide(state, moment)
    return state, entries + decided


def _clamp(moment: Moment) -> tuple[GovernorState, tuple[Entry, ...]]:
    state, ceiling, budget = moment.state, moment.ceiling, moment.state.budget
    if ceiling is None or budget is None or budget <= ceiling:
        return state, ()
    clamped = settled(ceiling)
    entry = Entry("GPU_DUTY_CLAMP", {"from": "running", "budget": clamped, "before": budget, "ceiling": ceiling})
    return replace(state, budget=clamped), (entry,)


def _decide(state: GovernorState, moment: Moment) -> tuple[GovernorState, tuple[Entry, ...]]:
    """Judge the minute that just ended on its rates; the next one starts now."""
    elapsed, ticks = moment.now_s - state.stretch_s, state.ticks
    begun = replace(state, stretch_s=moment.now_s, ticks=0)
    if ticks < numbers.MIN_TICKS * elapsed / numbers.TICK_S:
        return begun, ()
    budget, ceiling = state.budget or 0.0, moment.ceiling or 0.0
    pressures = minute_pressures(state, moment.inputs.holding)
    rule, pressure = worst(pressures)
    begun = replace(begun, pressures=pressures)
    facts = {"before": budget, "ceiling": ceiling, "rule": rule, "pressure": pressure}
    # An unknown rate of a source that reads is harm at the target: it can cost a halving but never allow growth.
    if pressure is None or pressure >= numbers.HALVE_PRESSURE:
        halved = settled(budget / 2.0)
        entries = (Entry("GPU_DUTY_HALVE", {"budget": halved, **facts}),) if halved < budget else ()
        return replace(begun, budget=halved, harm_s=moment.now_s), entries
    if pressure < numbers.GROW_BELOW_PRESSURE and _may_grow(state, moment):
        grown = settled(min(ceiling, budget + numbers.GROW))
        if grown > budget:
            return replace(begun, budget=grown), (Entry("GPU_DUTY_GROW", {"budget": grown, **facts}),)
    return begun, ()


def _may_grow(state: GovernorState, moment: Moment) -> bool:
    """No growth within a minute of harm, nor while a baseline lies far under the certificate's OFF rate."""
    if moment.now_s - state.harm_s < numbers.MINUTE_S:
        return False
    for rule in moment.inputs.holding:
        baseline = state.baseline_of(rule.rule)
        if baseline is None or baseline.low:
            return False
    return True
