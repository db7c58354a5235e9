"""What the harness says in words: planned hours, how many more blocks, the refusal, the verdict.

Source: ``harness.md`` ("A run", "The report") and ``harness-statistics.md``, section 5. No verdict comes from here, and no
number that a ``Decision`` does not hold: so the agent may use it.
"""

from __future__ import annotations

import math

from policies.harness.schedule import longest_s, most_blocks, run_looks
from policies.harness.spec import LOOK_STEP, RunSpec
from policies.harness.verdict import INCONCLUSIVE, K50_LIMIT, Decision

__all__ = [
    "duration_words",
    "left_words",
    "longest_hours",
    "looks_words",
    "more_words",
    "most_words",
    "plan_words",
    "planned_blocks",
    "planned_hours",
    "refusal_words",
]


def planned_blocks(spec: RunSpec) -> int:
    """``--blocks``, as a look: at least the first, at most the last."""
    if spec.kind == "null":
        return run_looks(spec)[0]
    whole = math.ceil(spec.blocks / LOOK_STEP) * LOOK_STEP
    return max(spec.first_look, min(whole, spec.n_max))


def planned_hours(spec: RunSpec) -> float:
    """Hours of the planned blocks and the reference, without what starting the work takes."""
    return (spec.reference_s + planned_blocks(spec) * spec.block_s) / 3600.0


def longest_hours(spec: RunSpec) -> float:
    """No block begins that would end later: --max-hours of windows and washouts, the reference, and what switching takes."""
    return longest_s(spec) / 3600.0


def duration_words(seconds: float) -> str:
    """ "45 s", "12 min", "2.4 h"."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    if seconds < 90.0 * 60.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"


def looks_words(spec: RunSpec) -> str:
    """ "8, 12, 16, … 40": the numbers of counted blocks at which the run may be judged."""
    stops = run_looks(spec)
    return ", ".join(str(n) for n in stops[:3]) + (f", … {stops[-1]}" if len(stops) > 3 else "")


def plan_words(spec: RunSpec) -> str:
    """The plan's length in words, for the review."""
    blocks, stops = planned_blocks(spec), run_looks(spec)
    text = (
        f"{blocks} blocks of two {spec.window_s:g} s windows and two {spec.washout_s:g} s washouts, "
        f"about {duration_words(3600.0 * planned_hours(spec))}"
    )
    if spec.kind == "null":
        return f"{text}; judged once, after {stops[0]} blocks"
    return (
        f"{text}; judged at {looks_words(spec)} counted blocks, and done at the first look that decides. "
        f"While undecided it goes on: {most_words(spec)}"
    )


def most_words(spec: RunSpec) -> str:
    """The longest that an undecided run goes on. Its hours are windows and washouts; what switching takes comes on top."""
    blocks, counted = most_blocks(spec), run_looks(spec)[-1]
    said = f"at most {counted} counted blocks"
    if blocks > counted:
        said += f", and {blocks - counted} more only in the place of blocks left out"
    return (
        f"{said}, together {duration_words(blocks * spec.block_s)} of windows and washouts. "
        f"What switching takes comes on top, and no block begins that would end after {duration_words(longest_s(spec))}"
    )


def left_words(spec: RunSpec, counted: int, left_out: int) -> str:
    """ "at most 36 more blocks, about 7.2 h": what an undecided run has left, the block under way among it.

    "about": the hours are windows and washouts; what switching takes, and what repeating a block left out takes, comes on
    top. "" where nothing is left to measure.
    """
    blocks = min(run_looks(spec)[-1] - counted, most_blocks(spec) - counted - left_out)
    if blocks <= 0:
        return ""
    noun = "block" if blocks == 1 else "blocks"
    return f"at most {blocks} more {noun}, about {duration_words(blocks * spec.block_s)}"


def more_words(decision: Decision) -> str:
    """How many more blocks would decide an inconclusive run; "" where nothing is left to decide."""
    if decision.verdict != INCONCLUSIVE:
        return ""
    if not decision.looks:
        return f"no look yet: the first comes at {decision.first_look} counted blocks, {decision.n} are counted"
    if decision.s is None:
        return "every block had the same order: no effect can be told from drift yet"
    n, k50, k80 = decision.n, decision.k50, decision.k80
    near = "so near the margin nothing predicts it"
    if k50 is None:
        return f"more than {K50_LIMIT - n} more blocks, and more than this run may use; {near}"
    over = ", more than this run may use"
    if k80 is None:
        return f"at least {k50 - n} more blocks{over if k50 > decision.n_max else ''}; may not decide, {near}"
    count = f"about {k50 - n} more blocks" if k50 == k80 else f"about {k50 - n} to {k80 - n} more blocks"
    if k50 > decision.n_max:
        return count + over
    return count + (f" ({k80 - n} is{over.replace(',', '')})" if k80 > decision.n_max else "")


def refusal_words(decision: Decision, spec: RunSpec) -> str:
    """Why a run was refused at its first look, and what it would take."""
    refusal = decision.refusal
    if refusal is None:
        raise ValueError("the run was not refused")
    # rounded up: a margin rounded down could not be reached
    margin = math.ceil(refusal.margin_needed * 1000.0) / 10.0
    ways = [f"a margin of {margin:g} % or more"]
    if refusal.n_max_needed is not None:
        needed_h = math.ceil(refusal.n_max_needed * spec.block_s / 360.0 - 1e-9) / 10.0
        ways.append(f"--max-hours {needed_h:g} ({refusal.n_max_needed} blocks)")
    return (
        f"Refused at the first look: blocks differ by {100 * refusal.s:.1f} %, and within {decision.n_max} blocks the "
        f"{100 * decision.margin:g} % margin can be reached only at {100 * refusal.s_limit:.1f} % or less. "
        f"It would take {' or '.join(ways)}, or a program that runs more evenly."
    )
