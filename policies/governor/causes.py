"""What makes the governor leave a state: a name, the words for it, and whether it holds at a moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from policies.governor import measuring
from policies.governor.moment import Moment

__all__ = ["CAUSES", "Cause"]


@dataclass(frozen=True, slots=True)
class Cause:
    name: str
    words: str
    holds: Callable[[Moment], bool]


_ALL = (
    Cause("run_measures", "a harness run measures device work", lambda m: m.inputs.run_measures),
    Cause("nothing_holds", "no rule holds device work back, or `always`", lambda m: m.nothing_holds),
    Cause(
        "not_certified",
        "a rule holds without a valid certificate",
        lambda m: not m.nothing_holds and m.ceiling is None,
    ),
    Cause("certified", "a rule holds, each with a valid certificate", lambda m: m.ceiling is not None),
    Cause(
        "measured",
        "the hold is over and every baseline is measured, above 0",
        lambda m: measuring.held_long_enough(m) and not measuring.why_not_measured(m),
    ),
    Cause(
        "take_back",
        "over the short window pressure > 2 or rate < half the baseline, or memory at its hard floor",
        lambda m: m.take_back is not None,
    ),
    Cause("unreadable", "a progress source does not read", lambda m: bool(m.unreadable)),
    Cause("baseline_due", "a baseline is 30 min old, or a rule has none yet", measuring.due),
    Cause("time_served", "300 s are over", lambda m: m.now_s >= m.state.barred_until_s),
    Cause("reads_again", "every source reads again", lambda m: not m.unreadable),
    Cause("run_ended", "the run ended", lambda m: not m.inputs.run_measures),
)

CAUSES: Final[dict[str, Cause]] = {cause.name: cause for cause in _ALL}
