"""Watching for a collapse of the protected program while the work under test runs: stop the run, do not wait for a look.

Source: ``harness-statistics.md``, rule 8 and "As a function". The program has collapsed when its rate so far, since the work
began or since the window began, stays under half of the OFF rate for the watch's length without recovery, and no OFF window
of the run fell so low (then the program stalls by itself). It is watched in washouts and in the first ON window too.
Stopping early this way can only lower the chance of a false certificate; the thresholds are judgement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from policies.harness.rows import BlockRow

__all__ = ["COLLAPSE_SHARE", "CollapseRule", "CollapseState", "collapse_rule", "watch"]

COLLAPSE_SHARE = 0.5
LENGTH_S = 60.0
LENGTH_STEPS = 10.0
LEAST_STEPS = 5.0
# The newest part of the length whose rate tells a recovery: short enough to see one, with at least 1.25 steps in it.
RECENT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class CollapseRule:
    """What a stretch with the work on is held to. ``off_rate`` in events per second; None: nothing is known to hold it to.

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


def collapse_rule(
    window_s: float,
    median_step_s: float | None,
    reference_rate: float | None,
    rows: Sequence[BlockRow] = (),
) -> CollapseRule:
    """The rule for the next stretch, from the run so far.

    The OFF rate is the median over all OFF windows measured, the reference's until there is one. The length is the
    smallest of 60 s, ten median steps and half the window, never under five steps (``median_step_s`` None: unknown).
    """
    length_s = min(LENGTH_S, window_s / 2.0)
    if median_step_s is not None:
        length_s = max(min(length_s, LENGTH_STEPS * median_step_s), LEAST_STEPS * median_step_s)
    off_rates = [row.off.rate for row in rows if row.off is not None and row.off.rate is not None]
    off_rate = statistics.median(off_rates) if off_rates else reference_rate
    known = off_rate is not None and math.isfinite(off_rate) and off_rate > 0.0
    lowest = min(off_rates, default=math.inf)
    return CollapseRule(
        off_rate if known else None, length_s, off_rate is not None and lowest < COLLAPSE_SHARE * off_rate
    )


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
    if state.low_since_s is None:
        state = replace(state, low_since_s=_low_from(state, now_s, recent_s))
    assert state.low_since_s is not None
    lasted_s = now_s - state.low_since_s
    if lasted_s < rule.length_s:
        return state, None
    rate = (events - events_then) / (now_s - since) if now_s > since else 0.0
    return state, (
        f"{rate:.3g} events/s lately, under half of the OFF rate of {rule.off_rate:.3g}/s "
        f"for {lasted_s:.0f} s while the work ran"
    )


def _below(events: float, span_s: float, rate: float) -> bool:
    return span_s > 0.0 and events < rate * span_s


def _low_from(state: CollapseState, now_s: float, recent_s: float) -> float:
    """Since when a stretch that is seen low for the first time has been so: from its start where it is that young."""
    return state.started_s if now_s - state.started_s <= recent_s else now_s


def _trimmed(samples: tuple[tuple[float, float], ...], oldest_s: float) -> tuple[tuple[float, float], ...]:
    """Keep one sample at or before ``oldest_s`` and what is newer."""
    first = 0
    while first + 1 < len(samples) and samples[first + 1][0] <= oldest_s:
        first += 1
    return samples[first:]
