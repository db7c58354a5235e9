"""Watching for a collapse of the protected program while the work under test runs: stop the run, wait for no look.

Source: ``harness-statistics.md``, rule 8 and "As a function". The program has collapsed when its rate so far, since the
work began to run or since the window began, stays under half of the OFF rate for the watch's length without recovery,
while no OFF window of the run fell so low (then the program stalls by itself). It is watched in washouts and in the
first ON window too. Stopping early this way can only lower the chance of a false certificate; the thresholds are
judgement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

__all__ = [
    "COLLAPSE_SHARE",
    "CollapseRule",
    "CollapseState",
    "CollapseWatch",
    "collapse_length_s",
    "collapse_rule",
    "watch",
]

COLLAPSE_SHARE = 0.5
LENGTH_S = 60.0
LENGTH_STEPS = 10.0
LEAST_STEPS = 5.0
# The newest part of the length whose rate tells a recovery: short enough to see one, with at least 1.25 steps in it.
RECENT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class CollapseRule:
    """What a stretch with the work on is held to. ``off_rate`` in events per second; None: no rate is known.

    ``stalls_alone``: an OFF window fell as low, so a low rate says nothing about the work.
    """

    off_rate: float | None
    length_s: float
    stalls_alone: bool = False


@dataclass(frozen=True, slots=True)
class CollapseState:
    """One stretch with the work on. Times are monotonic seconds; events are fractional and count from ``started_s``."""

    started_s: float
    window_s: float | None = None  # when the counted window began
    window_events: float = 0.0
    low_since_s: float | None = None
    recent: tuple[tuple[float, float], ...] = ()

    def window_began(self, now_s: float, events: float) -> CollapseState:
        """The washout is over: from here the window's own rate is watched as well."""
        return replace(self, window_s=now_s, window_events=events)


def collapse_length_s(window_s: float, median_step_s: float | None) -> float:
    """How long a rate must stay low: the longer of 60 s and ten median steps, but no more than half the window, and never
    under five steps.

    ``median_step_s`` None: no step is known yet. Ten steps alone would be a blink for a fast program (0.3 s at 30 ms a
    step): a hiccup when the work starts is not the collapse that ends a run.
    """
    steps_s = 0.0 if median_step_s is None else LENGTH_STEPS * median_step_s
    least_s = 0.0 if median_step_s is None else LEAST_STEPS * median_step_s
    return max(min(max(LENGTH_S, steps_s), window_s / 2.0), least_s)


def collapse_rule(
    off_rates: Sequence[float], reference_rate: float | None, window_s: float, median_step_s: float | None
) -> CollapseRule:
    """The rule for the next stretch: held to the median of the run's OFF windows, to the reference until there is one."""
    off_rate = statistics.median(off_rates) if off_rates else reference_rate
    length_s = collapse_length_s(window_s, median_step_s)
    if off_rate is None or not math.isfinite(off_rate) or off_rate <= 0.0:
        return CollapseRule(None, length_s)
    return CollapseRule(off_rate, length_s, min(off_rates, default=off_rate) < COLLAPSE_SHARE * off_rate)


def watch(state: CollapseState, rule: CollapseRule, now_s: float, events: float) -> tuple[CollapseState, str | None]:
    """One tick: ``(new state, why it is a collapse)``; None: it is not one, or not yet.

    Args:
        state: of this stretch; a new one starts when the work begins to run.
        rule: from ``collapse_rule``.
        now_s: monotonic seconds.
        events: fractional events since ``state.started_s``, the open step counted as far as it is known to be.
    """
    if rule.off_rate is None or rule.stalls_alone:
        return state, None
    half = COLLAPSE_SHARE * rule.off_rate
    recent_s = RECENT_SHARE * rule.length_s
    recent = _trimmed((*state.recent, (now_s, events)), now_s - recent_s)
    state = replace(state, recent=recent)
    low = _below(events, now_s - state.started_s, half)
    if state.window_s is not None:
        low = low or _below(events - state.window_events, now_s - state.window_s, half)
    (since, events_then), spans = recent[0], now_s - recent[0][0] >= recent_s
    recovered = spans and not _below(events - events_then, now_s - since, half)
    if not low or recovered:
        return replace(state, low_since_s=None), None
    low_since_s = state.low_since_s
    if low_since_s is None:
        # it fell low after the tick before, or from the start on
        low_since_s = recent[-2][0] if len(recent) > 1 else state.started_s
        state = replace(state, low_since_s=low_since_s)
    lasted_s = now_s - low_since_s
    if lasted_s < rule.length_s:
        return state, None
    rate = (events - events_then) / (now_s - since) if now_s > since else 0.0
    return state, (
        f"{rate:.3g} events/s lately, under half of the OFF rate of {rule.off_rate:.3g}/s "
        f"for {lasted_s:.0f} s while the work ran"
    )


def _below(events: float, span_s: float, rate: float) -> bool:
    return span_s > 0.0 and events < rate * span_s


def _trimmed(samples: tuple[tuple[float, float], ...], oldest_s: float) -> tuple[tuple[float, float], ...]:
    """Keep one sample at or before ``oldest_s`` and what is newer."""
    first = 0
    while first + 1 < len(samples) and samples[first + 1][0] <= oldest_s:
        first += 1
    return samples[first:]


class Track(Protocol):
    """What the watch reads of a progress source (``policies.sources.progress.ProgressTrack``)."""

    @property
    def median_step_s(self) -> float | None: ...

    def count_between(self, start_s: float, end_s: float, now_s: float | None = None) -> SupportsEvents: ...


class SupportsEvents(Protocol):
    """Fractional events of an interval; None: they cannot be known."""

    @property
    def events(self) -> float | None: ...


class CollapseWatch:
    """``watch`` over one stretch with the work on, fed by a progress track.

    The rule is fixed when the stretch begins: its steps must not be measured by the steps of a program that is
    collapsing. A tick whose count is unknown decides nothing (a source that stopped reading leaves the block out).
    """

    def __init__(self, off_rates: Sequence[float], reference_rate: float | None, window_s: float) -> None:
        self._basis = (tuple(off_rates), reference_rate, window_s)
        self._rule: CollapseRule | None = None
        self._state: CollapseState | None = None

    def window_began(self, now_s: float, track: Track) -> None:
        """The washout is over; the window's own rate is watched from here as well."""
        if self._state is None:
            return
        events = track.count_between(self._state.started_s, now_s, now_s).events
        if events is not None:
            self._state = self._state.window_began(now_s, events)

    def step(self, now_s: float, track: Track) -> str | None:
        """One tick; the first begins the stretch. Why it is a collapse; None: it is not one, or not yet."""
        if self._state is None or self._rule is None:
            off_rates, reference_rate, window_s = self._basis
            self._rule = collapse_rule(off_rates, reference_rate, window_s, track.median_step_s)
            self._state = CollapseState(now_s, recent=((now_s, 0.0),))
            return None
        events = track.count_between(self._state.started_s, now_s, now_s).events
        if events is None:
            return None
        self._state, why = watch(self._state, self._rule, now_s, events)
        return why
