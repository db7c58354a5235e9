"""What ``protect`` does to other (non-device) fleet work: lowered on harm, paused on worse, released late (protection.md).

The states of one protected program, as ``step_reaction`` walks them::

    measuring ──(60 s hold gave a baseline)──► free ──(harm at the target)──► lowered ──(over twice it, two samples)──► paused
        ▲                                       ▲                               │  ▲                                       │
        └──(no baseline, or 30 min old)─────────┤◄────(30 s under the target)───┘  └──(exit_after_s under, then cooldown)──┘

Harm of ``progress_rate`` is the share by which the rate lies under the baseline: the rate of the newest stretch without
fleet work. ``cpu_stall`` and ``gpu_share`` are figures of their own and need no baseline. The pressure is harm ÷ target.
What is not known counts as harm over twice the target, and without a baseline nothing runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from policies.codes import Entry
from policies.rules import PidStart, RuleState, step_rule
from policies.section.models import Cooldown, Metric

__all__ = ["HarmSignals", "Level", "Limit", "Reaction", "ReactionState", "paused_before", "pressure", "step_reaction"]

Level = Literal["free", "lowered", "paused"]

BASELINE_OLD_S = 1800.0
BASELINE_HOLD_S = 60.0
LOWERED_UNDER_S = 30.0
SAMPLES = 2
# Looks closer together than this are one sample.
SAMPLE_APART_S = 1.0


@dataclass(frozen=True, slots=True)
class Limit:
    """What a ``protect`` allows, and the timing by which a pause is released. ``target`` is ``max_slowdown`` or ``max``."""

    metric: Metric
    target: float
    exit_after_s: float
    cooldown: Cooldown

    @property
    def needs_baseline(self) -> bool:
        return self.metric == "progress_rate"


@dataclass(frozen=True, slots=True)
class HarmSignals:
    """One sample.

    Attributes:
        active: the rule is active (its program runs); otherwise no harm can be done to it.
        fleet_ran: some fleet work ran since the sample before.
        wanted: other fleet work runs, or waits to.
        program: (pid, start ticks) of the program's processes; all others than before are another program.
        figure: events per second, or a share 0..1, over ``window_s``; None: not known, and ``why``.
        may_measure: fleet work may be held for a new baseline in the place of an old one (not while a run measures).
    """

    active: bool
    figure: float | None
    window_s: float
    fleet_ran: bool = False
    wanted: bool = True
    program: frozenset[PidStart] = frozenset()
    why: str = ""
    may_measure: bool = True


@dataclass(frozen=True, slots=True)
class ReactionState:
    """Times are seconds on one clock that does not go back (monotonic). ``pause`` is timed as a rule is."""

    pause: RuleState = field(default_factory=RuleState)
    lowered: bool = False
    under_since_s: float | None = None
    over_twice: int = 0
    baseline: float | None = None
    baseline_at_s: float = float("-inf")
    quiet_since_s: float | None = None
    measuring_since_s: float | None = None
    program: frozenset[PidStart] = frozenset()
    known: bool = False
    """The program's figure was known at least once; before, other work waits, which is no pause to cool down from."""
    level: Level = "free"
    now_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Reaction:
    """What other fleet work may do. ``measures``: all fleet work is held, to measure the program without it."""

    level: Level
    why: str
    measures: bool = False
    pressure: float | None = None
    code: Literal["PROTECTION_HARM", "PROTECTION_BASELINE"] = "PROTECTION_HARM"


def paused_before(pause: RuleState) -> ReactionState:
    """The state of a new process to which an earlier one left this pause; the program is measured anew."""
    return ReactionState(pause=pause, level="paused" if pause.holds else "free")


def pressure(limit: Limit, figure: float | None, baseline: float | None) -> float | None:
    """Harm ÷ target; None where the figure, or the baseline that it needs, is not known."""
    if figure is None:
        return None
    if not limit.needs_baseline:
        return figure / limit.target
    if baseline is None or baseline <= 0.0:
        return None
    return max(0.0, 1.0 - figure / baseline) / limit.target


def step_reaction(
    state: ReactionState, signals: HarmSignals, now_s: float, limit: Limit
) -> tuple[ReactionState, Reaction, tuple[Entry, ...]]:
    """One sample. A clock that went back stands still; a second look at the same instant changes nothing but the words."""
    now_s = max(now_s, state.now_s)
    if now_s - state.now_s < SAMPLE_APART_S and state.program == signals.program:
        return state, _reaction(state, signals, limit), ()
    before = state
    state = replace(state, now_s=now_s)
    state = (
        _judged(_measured(state, signals, before.now_s, limit), signals, limit)
        if signals.active
        else _gone(state, limit)
    )
    reaction = _reaction(state, signals, limit)
    state = replace(state, level=reaction.level)
    return state, reaction, _events(before, state, reaction)


def _gone(state: ReactionState, limit: Limit) -> ReactionState:
    """The program does not run: what was measured of it says nothing of the next one; a pause is released in its time."""
    pause, _ = step_rule(state.pause, False, state.now_s, 0.0, limit.exit_after_s, limit.cooldown)
    return ReactionState(pause=pause, level=state.level, now_s=state.now_s)


def _measured(state: ReactionState, signals: HarmSignals, before_s: float, limit: Limit) -> ReactionState:
    """The quiet stretch, the baseline, and whether one is being measured."""
    now_s = state.now_s
    if signals.program and not signals.program & state.program:
        # another program, or the first sight of it
        state = replace(state, baseline=None, quiet_since_s=None, measuring_since_s=None, known=False)
        before_s = now_s
    known = state.known or signals.figure is not None
    state = replace(state, program=signals.program or state.program, known=known)
    if not limit.needs_baseline:
        return state
    if signals.fleet_ran:
        state = replace(state, quiet_since_s=None)
    elif state.quiet_since_s is None:
        state = replace(state, quiet_since_s=before_s if before_s > float("-inf") else now_s)
    quiet_s = 0.0 if state.quiet_since_s is None else now_s - state.quiet_since_s
    if quiet_s >= signals.window_s and signals.figure is not None and signals.figure > 0.0:
        state = replace(state, baseline=signals.figure, baseline_at_s=now_s)
    return _measuring(state, signals)


def _measuring(state: ReactionState, signals: HarmSignals) -> ReactionState:
    since_s = state.measuring_since_s
    if since_s is None:
        old = state.now_s - state.baseline_at_s > BASELINE_OLD_S
        if state.baseline is None or (old and signals.wanted and signals.may_measure):
            return replace(state, measuring_since_s=state.now_s)
        return state
    long_enough = state.now_s - since_s >= max(BASELINE_HOLD_S, signals.window_s)
    if state.baseline is not None and state.baseline_at_s >= since_s and long_enough:
        return replace(state, measuring_since_s=None)
    return state


def _judged(state: ReactionState, signals: HarmSignals, limit: Limit) -> ReactionState:
    """Harm of this sample, and what follows for the lowering and the pause."""
    now_s = state.now_s
    harm = pressure(limit, signals.figure, state.baseline)
    if harm is None and (state.measuring_since_s is not None or not state.known):
        # nothing runs; what the figure will say is what is being waited for
        pause, _ = step_rule(state.pause, state.pause.active, now_s, 0.0, limit.exit_after_s, limit.cooldown)
        return replace(state, pause=pause, under_since_s=None)
    harmed = harm is None or harm >= 1.0
    over_twice = state.over_twice + 1 if harm is None or harm > 2.0 else 0
    present = harmed if state.pause.active else over_twice >= SAMPLES
    pause, _ = step_rule(state.pause, present, now_s, 0.0, limit.exit_after_s, limit.cooldown)
    lowered, under_since_s = state.lowered or harmed, state.under_since_s
    if harmed or pause.holds:
        under_since_s = None
    elif under_since_s is None:
        under_since_s = now_s
    elif now_s - under_since_s >= LOWERED_UNDER_S:
        lowered = False
    return replace(
        state, pause=pause, lowered=lowered, under_since_s=under_since_s, over_twice=min(over_twice, SAMPLES)
    )


def _reaction(state: ReactionState, signals: HarmSignals, limit: Limit) -> Reaction:
    harm = pressure(limit, signals.figure, state.baseline)
    if not signals.active:
        level: Level = "paused" if state.pause.holds else "free"
        return Reaction(level, "the program is gone; work goes on after the cooldown" if state.pause.holds else "")
    if limit.needs_baseline and (state.measuring_since_s is not None or state.baseline is None):
        measures = signals.may_measure and signals.wanted
        return Reaction("paused", _why_measuring(signals), measures, harm, "PROTECTION_BASELINE")
    if harm is None and not state.known:
        return Reaction("paused", f"harm to it is not known yet: {signals.why}", code="PROTECTION_BASELINE")
    level = "paused" if state.pause.holds else "lowered" if state.lowered else "free"
    return Reaction(level, _words(state, signals, limit, harm), pressure=harm)


def _why_measuring(signals: HarmSignals) -> str:
    if signals.figure is None:
        return f"its speed without fleet work is not known: {signals.why or 'it cannot be read'}"
    if signals.figure <= 0.0:
        return "its speed without fleet work is being measured, and it makes no progress"
    return "its speed without fleet work is being measured"


def _words(state: ReactionState, signals: HarmSignals, limit: Limit, harm: float | None) -> str:
    if harm is None:
        said = f"harm to it is not known: {signals.why or 'it cannot be read'}"
    elif limit.needs_baseline:
        said = (
            f"it runs at {signals.figure:.4g}/s against {state.baseline:.4g}/s without fleet work "
            f"(a slowdown of {limit.target:g} is allowed)"
        )
    else:
        said = f"its {limit.metric} is {signals.figure:.3g} (at most {limit.target:g} is allowed)"
    if state.pause.holds and not state.pause.active:
        return f"{said}; work goes on after the cooldown"
    return said


def _events(before: ReactionState, after: ReactionState, reaction: Reaction) -> tuple[Entry, ...]:
    found: list[Entry] = []
    facts = {"level": reaction.level, "pressure": reaction.pressure, "why": reaction.why}
    if before.measuring_since_s is not None and after.measuring_since_s is None and after.baseline is not None:
        found.append(Entry("PROTECTION_BASELINE", {"rate": after.baseline}))
    measured = after.measuring_since_s is None and before.measuring_since_s is None and before.known and after.known
    if before.level != after.level and measured:
        codes: dict[Level, str] = {
            "free": "PROTECTION_CALM",
            "lowered": "PROTECTION_LOWER",
            "paused": "PROTECTION_HARM",
        }
        found.append(Entry(codes[after.level], facts))
    return tuple(found)
