"""The duty governor: one pure step a tick.

``step(state, inputs, now_s) -> (state, outputs)``. The agent calls it every two seconds (and may call it in between: a
ceiling that fell or a source that broke then acts at once; early calls count as no tick), carries the outputs out and
journals the entries. Source: ``governor.md``.
"""

from __future__ import annotations

from dataclasses import replace

from policies.governor import measuring, numbers
from policies.governor.causes import CAUSES
from policies.governor.entering import enter
from policies.governor.moment import Moment, look
from policies.governor.running import work
from policies.governor.states import Entry, GovernorState, Inputs, Outputs
from policies.governor.transitions import Transition, rows_from

__all__ = ["restarted", "step"]


def step(state: GovernorState, inputs: Inputs, now_s: float) -> tuple[GovernorState, Outputs]:
    """One tick.

    Args:
        state: what the last tick left; ``INITIAL`` at first.
        inputs: this tick's readings.
        now_s: a clock that runs through suspend. A time before the last tick's counts as that tick's: no time passed.

    Returns:
        The new state, and what to carry out.
    """
    now_s = max(now_s, state.last_tick_s)
    noted = _note(state, inputs, now_s)
    moment = look(noted, inputs, now_s)
    row = _taken(moment, routine=False)
    if row is not None:
        after, entries = (noted, ()) if row.target == noted.name else enter(moment, row)
        return after, _outputs(after, moment, entries)
    after, entries = _own_work(moment)
    if after is not noted:
        moment = replace(moment, state=after)
    row = _taken(moment, routine=True)
    if row is not None:
        after, more = enter(moment, row)
        entries += more
    return after, _outputs(after, moment, entries)


def restarted(state: GovernorState) -> GovernorState:
    """What a new agent starts from, given what the last one left on this boot.

    Levels, baselines and a bar are kept, so that a crash neither ends the five minutes of a take-back nor lets lasting
    harm become normal. Nothing is in force until a baseline is measured. After a reboot start from ``INITIAL``.
    It starts in ``free``, so that work counts as let run until then: nobody saw it end.
    """
    resume = state.budget if state.name == "running" else state.resume
    return GovernorState(
        resume=resume,
        barred_until_s=state.barred_until_s,
        last_tick_s=state.last_tick_s,
        harm_s=state.harm_s,
        baselines=state.baselines,
    )


def _note(state: GovernorState, inputs: Inputs, now_s: float) -> GovernorState:
    """Count the tick, and set the bar that the memory guard's hard floor asks for in any state."""
    in_time = now_s - state.last_tick_s >= numbers.TICK_S / 2.0
    barred_until_s = state.barred_until_s
    if inputs.memory_hard:
        barred_until_s = max(barred_until_s, now_s + numbers.TAKEN_BACK_S)
    if not in_time and barred_until_s == state.barred_until_s:
        return state
    last_tick_s, ticks = (now_s, state.ticks + 1) if in_time else (state.last_tick_s, state.ticks)
    return state.at_tick(last_tick_s, ticks, barred_until_s)


def _taken(moment: Moment, *, routine: bool) -> Transition | None:
    for row in rows_from(moment.state.name, routine=routine):
        if CAUSES[row.cause].holds(moment):
            return row
    return None


def _own_work(moment: Moment) -> tuple[GovernorState, tuple[Entry, ...]]:
    """What a state does on a tick on which nothing urgent takes it elsewhere."""
    state = moment.state
    if state.name == "running":
        if moment.harm:
            moment = replace(moment, state=replace(state, harm_s=moment.now_s))
        return work(moment)
    if state.name == "baseline" and measuring.held_long_enough(moment):
        return _again(moment)
    return state, ()


def _again(moment: Moment) -> tuple[GovernorState, tuple[Entry, ...]]:
    """A hold that gave no baseline is held again. Journaled when the reason changes, not every minute."""
    why = measuring.why_not_measured(moment)
    state = replace(moment.state, stretch_s=moment.now_s, ticks=0, again=why)
    if why == moment.state.again:
        return state, ()
    return state, (Entry("GPU_DUTY_BASELINE", {"from": "baseline", "cause": f"measured again: {why}"}),)


def _outputs(state: GovernorState, moment: Moment, entries: tuple[Entry, ...]) -> Outputs:
    if state.name == "free":
        return Outputs(None, {}, entries, None, "nobody")
    if state.name == "stood_down":
        return Outputs(moment.inputs.run_duty, {}, entries, moment.ceiling, "run")
    budget, units = state.budget or 0.0, moment.inputs.units
    shares = dict.fromkeys(units, budget / len(units)) if units else {}
    return Outputs(budget, shares, entries, moment.ceiling, "governor")
