"""The baseline: what the program does without device work."""

from __future__ import annotations

from policies.governor import numbers
from policies.governor.moment import Moment, pressure_of
from policies.governor.states import Baseline, Holding

__all__ = ["due", "held_long_enough", "hold_s", "low_baselines", "measured_baselines", "why_not_measured"]


def held_long_enough(moment: Moment) -> bool:
    """Whether this measurement's hold is over: 60 s, longer for the slowest program, and no sooner than the bar."""
    state = moment.state
    if moment.now_s < state.barred_until_s:
        return False
    elapsed = moment.now_s - state.stretch_s
    return elapsed >= numbers.BASELINE_HOLD_S and elapsed >= hold_s(moment)


def hold_s(moment: Moment) -> float:
    """How long this measurement holds device work: as long as the slowest holding program needs."""
    return max(numbers.baseline_hold_s(rule.median_step_s) for rule in moment.inputs.holding)


def why_not_measured(moment: Moment) -> str:
    """Why the hold that is over gave no baseline; "" where it gave one."""
    state = moment.state
    expected = (moment.now_s - state.stretch_s) / numbers.TICK_S
    if state.ticks < numbers.MIN_TICKS * expected:
        return "ticks came late"
    for rule in moment.inputs.holding:
        if not rule.readable or rule.baseline_rate is None:
            return f"the source of {rule.rule} does not read"
        if rule.median_step_s is None:
            return f"{rule.rule} made too few steps"
        if rule.baseline_rate <= 0.0:
            return f"{rule.rule} made no progress"
        if _may_still_feel_it(moment, rule, rule.baseline_rate):
            return f"{rule.rule} is slower than at its last baseline and may still feel the work"
    return ""


def _may_still_feel_it(moment: Moment, rule: Holding, measured: float) -> bool:
    """Whether a fallen baseline may be harm that outlasts the hold, such as heat.

    A program that feels the work for a minute after it stopped would be measured as it is with the work, and half an
    hour of harm would count as none. So a baseline under the last by half the target is waited for, five minutes
    after the work at most: by then what is left is the program's own.
    """
    last = moment.state.baseline_of(rule.rule)
    if last is None or moment.now_s - moment.state.ended_s >= numbers.TAKEN_BACK_S:
        return False
    return pressure_of(measured, last.rate, rule.max_slowdown) >= numbers.GROW_BELOW_PRESSURE


def measured_baselines(moment: Moment) -> tuple[Baseline, ...]:
    """New baselines of the holding rules, and the newest of those that hold nothing now."""
    held = {rule.rule for rule in moment.inputs.holding}
    kept = tuple(baseline for baseline in moment.state.baselines if baseline.rule not in held)
    return kept + tuple(_baseline(moment, rule) for rule in moment.inputs.holding)


def _baseline(moment: Moment, rule: Holding) -> Baseline:
    measured = rule.baseline_rate
    if measured is None:
        raise ValueError(f"rule {rule.rule!r} has no rate to make a baseline of")
    last = moment.state.baseline_of(rule.rule)
    rate = measured if last is None else max(measured, numbers.BASELINE_FLOOR * last.rate)
    # Judged on what was read, not on the floor: the floor would hide the fall that is looked for.
    off = rule.certified_off_rate
    low = off is None or measured < numbers.LOW_BASELINE * off
    return Baseline(rule.rule, rate, measured, moment.now_s, low)


def low_baselines(moment: Moment, baselines: tuple[Baseline, ...]) -> tuple[str, ...]:
    """The holding rules whose baseline stops growth."""
    held = {rule.rule for rule in moment.inputs.holding}
    return tuple(baseline.rule for baseline in baselines if baseline.low and baseline.rule in held)


def due(moment: Moment) -> bool:
    """Whether a holding rule has no baseline yet, or one that is 30 minutes old."""
    for rule in moment.inputs.holding:
        baseline = moment.state.baseline_of(rule.rule)
        if baseline is None or moment.now_s - baseline.at_s >= numbers.BASELINE_AGE_S:
            return True
    return False
