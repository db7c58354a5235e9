"""Every number of the duty governor, with its reason. Shares are 0..1, times in seconds.

Source: ``governor.md``. Nothing here is for an operator to set: a certificate was earned under these numbers.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BASELINE_AGE_S",
    "BASELINE_FLOOR",
    "BASELINE_HOLD_S",
    "BASELINE_MIN_STEPS",
    "BASELINE_WINDOW_S",
    "COLLAPSE",
    "GROW",
    "GROW_BELOW_PRESSURE",
    "HALVE_PRESSURE",
    "LOW_BASELINE",
    "MINUTE_S",
    "MIN_BUDGET",
    "MIN_RESUME",
    "MIN_TICKS",
    "SHORT_MIN_STEPS",
    "SHORT_WINDOW_S",
    "TAKEN_BACK_S",
    "TAKE_BACK_PRESSURE",
    "TICK_S",
    "baseline_hold_s",
    "baseline_window_s",
    "short_window_s",
]

TICK_S: Final = 2.0
"""The agent's period."""

MIN_TICKS: Final = 0.8
"""A stretch that had a smaller share of its ticks (suspend, load) decides nothing: nobody was watching."""

MINUTE_S: Final = 60.0
"""The budget is decided once a minute, on that minute's rate."""

HALVE_PRESSURE: Final = 1.0
"""Harm at the rule's target halves the budget."""

GROW_BELOW_PRESSURE: Final = 0.5
"""Harm under half the target lets the budget grow: over the minute, and on every tick of it over the short window.

The ticks' part is what "no growth within a minute of any harm" comes to. Over 60 simulated hours (harm of 10 % at the
ceiling, 1 % noise) it took the minutes above target from 11 to 1.6 %, the false halvings from 124 to 34 a day, and the
duty harvested from 67 to 48 % of the best constant one.
"""

GROW: Final = 0.05
"""One step of growth; about a minute's harvest is risked to learn whether more is harmless."""

MIN_BUDGET: Final = 0.025
"""A smaller budget is 0: shares under this are below what units can hold."""

SHORT_WINDOW_S: Final = 20.0
"""Over this the tick looks for harm that cannot wait for the minute."""

SHORT_MIN_STEPS: Final = 5.0
"""The short window covers at least this many of the program's steps, or one slow step would read as a collapse."""

TAKE_BACK_PRESSURE: Final = 2.0
"""More than twice the target over the short window takes the budget back."""

COLLAPSE: Final = 0.5
"""A rate under this share of the baseline takes the budget back, whatever the rule's target."""

TAKEN_BACK_S: Final = 300.0
"""How long the budget stays 0 after it was taken back."""

MIN_RESUME: Final = 0.05
"""After a take-back the budget starts no lower than one step of growth (unless the ceiling is lower)."""

BASELINE_HOLD_S: Final = 60.0
"""Device work is held this long to measure the program without it; longer for a slow program."""

BASELINE_WINDOW_S: Final = 50.0
"""The baseline is the rate over the end of the hold; the first 10 s let the program recover from the work."""

BASELINE_MIN_STEPS: Final = 5.0
"""The baseline covers at least this many of the program's steps."""

BASELINE_AGE_S: Final = 1800.0
"""A baseline of this age is measured again."""

BASELINE_FLOOR: Final = 0.95
"""A baseline is no lower than this share of the last one: lasting harm is let in at 5 % per half hour at most."""

LOW_BASELINE: Final = 0.9
"""A baseline under this share of the certificate's OFF rate is journaled and stops growth."""


def short_window_s(median_step_s: float | None) -> float:
    """Length of the window behind ``Holding.short_rate``. An unknown step length gives the shortest window."""
    return SHORT_WINDOW_S if median_step_s is None else max(SHORT_WINDOW_S, SHORT_MIN_STEPS * median_step_s)


def baseline_window_s(median_step_s: float | None) -> float:
    """Length of the window behind ``Holding.baseline_rate``."""
    return BASELINE_WINDOW_S if median_step_s is None else max(BASELINE_WINDOW_S, BASELINE_MIN_STEPS * median_step_s)


def baseline_hold_s(median_step_s: float | None) -> float:
    """How long device work is held for a baseline: the window, after seconds in which the program recovers."""
    return baseline_window_s(median_step_s) + (BASELINE_HOLD_S - BASELINE_WINDOW_S)
