"""What a transition does to the state, and what is journaled about it. One function a target state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from policies.governor import measuring, numbers
from policies.governor.moment import Moment, uncertified
from policies.governor.running import settled
from policies.governor.states import Entry, GovernorState, StateName
from policies.governor.transitions import Transition

__all__ = ["enter"]


def enter(moment: Moment, row: Transition) -> tuple[GovernorState, tuple[Entry, ...]]:
    """The state after ``row`` is taken, and its journal entries."""
    state = moment.state
    # The level is remembered whenever a running budget ends, whatever ends it.
    resume = state.budget if state.name == "running" else state.resume
    ended_s = moment.now_s if state.name in ("running", "free", "stood_down") else state.ended_s
    entered = replace(
        state,
        name=row.target,
        since_s=moment.now_s,
        budget=0.0,
        resume=resume,
        stretch_s=moment.now_s,
        ticks=0,
        ended_s=ended_s,
        again="",
    )
    entered, data = _ENTER[row.target](entered, moment)
    entries = [Entry(code, {"from": state.name, **data}) for code in row.codes if _is_true(code, moment)]
    return entered, (*entries, *_low(entered, moment))


def _is_true(code: str, moment: Moment) -> bool:
    """Whether a row's code says something true: nothing fell from 0, and only ``certified`` misses a certificate."""
    if code == "GPU_DUTY_CLAMP":
        return bool(moment.state.budget)
    if code == "GPU_NOT_CERTIFIED":
        return moment.inputs.gpu_jobs == "certified"
    return True


def _low(entered: GovernorState, moment: Moment) -> tuple[Entry, ...]:
    """A baseline that was just measured far under the certificate's OFF rate is journaled by itself."""
    if entered.name != "running":
        return ()
    low = set(measuring.low_baselines(moment, entered.baselines))
    off = {rule.rule: rule.certified_off_rate for rule in moment.inputs.holding}
    return tuple(
        Entry(
            "GPU_DUTY_BASELINE",
            {
                "cause": "under the certificate's OFF rate: no growth",
                "rule": baseline.rule,
                "measured": baseline.measured,
                "off_rate": off[baseline.rule],
            },
        )
        for baseline in entered.baselines
        if baseline.rule in low
    )


Entered = tuple[GovernorState, dict[str, Any]]


def _free(state: GovernorState, moment: Moment) -> Entered:
    return replace(state, budget=None), {}


def _stood_down(state: GovernorState, moment: Moment) -> Entered:
    # The run's own budget comes from the inputs, tick by tick; none of it is remembered.
    return replace(state, budget=None), {}


def _closed(state: GovernorState, moment: Moment) -> Entered:
    before = moment.state.budget
    return state, {"budget": 0.0, "before": before, "ceiling": None, "rules": list(uncertified(moment.inputs))}


def _baseline(state: GovernorState, moment: Moment) -> Entered:
    hold_s = max(measuring.hold_s(moment), state.barred_until_s - moment.now_s)
    return state, {"rules": [rule.rule for rule in moment.inputs.holding], "hold_s": hold_s}


def _running(state: GovernorState, moment: Moment) -> Entered:
    ceiling = moment.ceiling
    if ceiling is None:
        raise ValueError("a budget cannot start without a ceiling")
    level = ceiling if state.resume is None else min(ceiling, state.resume)
    baselines = measuring.measured_baselines(moment)
    started = replace(state, budget=settled(level), baselines=baselines, pressures=())
    rates = {rule.rule: entry.rate for rule in moment.inputs.holding if (entry := started.baseline_of(rule.rule))}
    return started, {"budget": started.budget, "ceiling": ceiling, "baselines": rates}


def _taken_back(state: GovernorState, moment: Moment) -> Entered:
    cause, before = moment.take_back, moment.state.budget or 0.0
    if cause is None:
        raise ValueError("nothing takes the budget back")
    until_s = moment.now_s + numbers.TAKEN_BACK_S
    taken = replace(state, resume=max(numbers.MIN_RESUME, before / 2.0), barred_until_s=until_s, harm_s=moment.now_s)
    facts = {"rule": cause.rule, "pressure": cause.pressure, "rate": cause.rate, "baseline": cause.baseline}
    return taken, {"cause": cause.cause, "before": before, "for_s": numbers.TAKEN_BACK_S, **facts}


def _unreadable(state: GovernorState, moment: Moment) -> Entered:
    facts = {"cause": "source", "rules": list(moment.unreadable), "before": moment.state.budget}
    return replace(state, harm_s=moment.now_s), facts


_ENTER: Final[dict[StateName, Callable[[GovernorState, Moment], Entered]]] = {
    "free": _free,
    "closed": _closed,
    "baseline": _baseline,
    "running": _running,
    "taken_back": _taken_back,
    "unreadable": _unreadable,
    "stood_down": _stood_down,
}
