"""The duty governor: keeps fleet work under the certified duty on the protected program's own progress.

A pure state machine. ``transitions`` holds the table, ``numbers`` the numbers, ``step`` runs one tick.
"""

from __future__ import annotations

from policies.governor.numbers import TICK_S, baseline_window_s, short_window_s
from policies.governor.states import (
    INITIAL,
    STATES,
    Baseline,
    Entry,
    GovernorState,
    Holding,
    Inputs,
    Outputs,
    StateName,
)
from policies.governor.step import restarted, step

__all__ = [
    "INITIAL",
    "STATES",
    "TICK_S",
    "Baseline",
    "Entry",
    "GovernorState",
    "Holding",
    "Inputs",
    "Outputs",
    "StateName",
    "baseline_window_s",
    "restarted",
    "short_window_s",
    "step",
]
