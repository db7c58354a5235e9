"""All transitions of the governor, as data. ``policies.governor.table`` writes them as Markdown.

Two rules hold here:

1. A state is left only by a row of this table. The step function walks the rows of the present state from the top and
   takes the first whose cause holds, at most one a tick; where that row leads to the present state, it stays. No other
   code sets a state's name.
2. A harness run, the end of all holding, a lapsed certificate (the rows from *any*) go, in this order, before
   everything that a state would decide by itself.

A *routine* row is asked only after the state's own work of the tick (the clamp and the minute's decision in
``running``), so that a baseline that falls due at the end of a minute does not swallow that minute's verdict.

What the table cannot show: a bar. After a take-back, or the memory guard's hard floor in any state, no budget starts
for 300 s even where other states lie between; ``baseline`` then simply lasts longer. Otherwise a certificate that
lapses and comes back, or a rule that lets go for a tick, would end the five minutes early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from policies.governor.states import STATES, StateName

__all__ = ["BUDGETS", "TRANSITIONS", "Transition", "rows_from"]


@dataclass(frozen=True, slots=True)
class Transition:
    """One row: in ``source``, when ``cause`` (a key of ``CAUSES``) holds, go to ``target`` and journal ``codes``."""

    source: StateName | Literal["any"]
    cause: str
    target: StateName
    codes: tuple[str, ...] = ()
    routine: bool = False


TRANSITIONS: Final = (
    Transition("any", "run_measures", "stood_down"),
    Transition("any", "nothing_holds", "free"),
    Transition("running", "not_certified", "closed", ("GPU_DUTY_CLAMP", "GPU_NOT_CERTIFIED")),
    Transition("any", "not_certified", "closed", ("GPU_NOT_CERTIFIED",)),
    Transition("free", "certified", "baseline", ("GPU_DUTY_BASELINE",)),
    Transition("closed", "certified", "baseline", ("GPU_DUTY_BASELINE",)),
    Transition("baseline", "measured", "running", ("GPU_DUTY_START",)),
    Transition("running", "take_back", "taken_back", ("GPU_DUTY_TAKE_BACK",)),
    Transition("running", "unreadable", "unreadable", ("GPU_DUTY_TAKE_BACK",)),
    Transition("running", "baseline_due", "baseline", ("GPU_DUTY_BASELINE",), routine=True),
    Transition("taken_back", "time_served", "baseline", ("GPU_DUTY_BASELINE",)),
    Transition("unreadable", "reads_again", "baseline", ("GPU_DUTY_BASELINE",)),
    Transition("stood_down", "run_ended", "baseline", ("GPU_DUTY_BASELINE",)),
)

BUDGETS: Final[dict[StateName, str]] = {
    "free": "none: no duty is set",
    "closed": "0: device work is held",
    "baseline": "0: device work is held to measure the program without it; measured again where that failed",
    "running": "at first the ceiling or its last level; each minute halved, kept or grown by 0.05, at most the ceiling",
    "taken_back": "0; afterwards half its last level, at least 0.05, at most the ceiling",
    "unreadable": "0",
    "stood_down": "the harness run's",
}


def _rows(state: StateName, routine: bool) -> tuple[Transition, ...]:
    return tuple(row for row in TRANSITIONS if row.source in ("any", state) and row.routine == routine)


_URGENT: Final = {state: _rows(state, routine=False) for state in STATES}
_ROUTINE: Final = {state: _rows(state, routine=True) for state in STATES}


def rows_from(state: StateName, *, routine: bool = False) -> tuple[Transition, ...]:
    """The rows that are asked in a state, in their order. One that leads to the state itself means: stay."""
    return (_ROUTINE if routine else _URGENT)[state]
