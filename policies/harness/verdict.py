"""What a judgement of blocks says: one look, a whole run, a refusal, the plain analysis. Plain values, no arithmetic.

Source: ``harness-statistics.md``, section 1. ``policies.statistics`` makes these, the report reads them.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "INCONCLUSIVE",
    "K50_LIMIT",
    "PASS",
    "REFUSED",
    "SLOWDOWN",
    "ZERO_SD",
    "Analysis",
    "Decision",
    "Ending",
    "Look",
    "Refusal",
    "Verdict",
]

Verdict = Literal["no slowdown shown", "slowdown", "inconclusive", "refused"]
# How a run may end: with a verdict, or for a reason that lets none be reached.
Ending = Literal[
    "no slowdown shown",
    "slowdown",
    "inconclusive",
    "refused",
    "no_dose",
    "harm_suspected",
    "aborted",
    "interrupted",
]

PASS: Verdict = "no slowdown shown"
SLOWDOWN: Verdict = "slowdown"
INCONCLUSIVE: Verdict = "inconclusive"
REFUSED: Verdict = "refused"

K50_LIMIT = 400  # "how many more" looks no further than this many blocks
# No real program repeats its rate to a billionth: an sd of d this small comes from quantised counts.
ZERO_SD = 1e-9


@dataclass(frozen=True, slots=True)
class Look:
    """What one look saw. R and its bounds are ratios; b, s and se are in units of ln(on / off).

    All but ``n``, ``verdict`` and ``c`` are None where the blocks so far have one order only, which no fit can judge.
    """

    n: int
    verdict: Verdict
    R: float | None
    lo: float | None
    hi: float | None
    b: float | None
    se_b: float | None
    s: float | None
    se: float | None
    c: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a run was refused at its first look, and what it would take.

    ``s``: residual sd seen; ``s_limit``: the largest that is not refused; ``margin_needed``: the margin this run
    could reach at a favourable sd; ``n_max_needed``: the blocks that could reach the margin asked (None: over 200).
    """

    s: float
    s_limit: float
    margin_needed: float
    n_max_needed: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict of ``decide``. ``n`` is the look it comes from, or the number of usable blocks before any look.

    ``more_blocks`` = k50 - n, only where inconclusive. ``k50`` and ``k80`` are total numbers of blocks at which a
    run whose mean and sd stay would be decided with a chance of about 50 and 80 % (None: none within 400 and 160).
    ``usable`` and ``void`` count the blocks given; ``collapse`` says that a window with the work on saw no progress.
    """

    verdict: Verdict
    R: float | None
    lo: float | None
    hi: float | None
    n: int
    more_blocks: int | None
    margin: float
    n_max: int
    first_look: int
    p: float
    b: float | None = None
    se_b: float | None = None
    s: float | None = None
    se: float | None = None
    c: float | None = None
    k50: int | None = None
    k80: int | None = None
    looks: tuple[Look, ...] = ()
    refusal: Refusal | None = None
    zero_variance: bool = False
    collapse: bool = False
    usable: int = 0
    void: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON shape. A bound beyond what a float holds is None."""
        return _finite(dataclasses.asdict(self))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Analysis:
    """Plain 90 % t over all blocks, for A/A runs and comparison. Valid only where n was fixed before the run."""

    verdict: Verdict
    R: float | None
    lo: float | None
    hi: float | None
    n: int
    more_blocks: int | None
    s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return _finite(dataclasses.asdict(self))  # type: ignore[no-any-return]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
