"""What a run does next: the coin of each block, the looks, the ends. Pure, from the journaled rows alone.

Source: ``harness-statistics.md``, rules 1, 4, 7 to 10; ``harness.md``, "A run". Because the answer depends only on the
rows, a run that is retried or resumed goes on exactly where it was.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.harness.rows import BlockRow, Order
from policies.harness.spec import LOOK_STEP, RunSpec
from policies.harness.validity import counted, harm_suspected, left_out
from policies.harness.verdict import INCONCLUSIVE, PASS, SLOWDOWN, Ending, Verdict

__all__ = [
    "NO_DOSE_IN_A_ROW",
    "SWITCH_ALLOWANCE_S",
    "Action",
    "End",
    "Judge",
    "NextBlock",
    "coin",
    "harm_in_blocks",
    "longest_s",
    "most_blocks",
    "next_action",
    "run_looks",
]

NO_DOSE_IN_A_ROW = 3
SWITCH_ALLOWANCE_S = 30.0  # what switching, starting the work and closing the last step may add to a block


@dataclass(frozen=True, slots=True)
class NextBlock:
    """Ask the agent for this block."""

    number: int
    order: Order


@dataclass(frozen=True, slots=True)
class Judge:
    """Judge the first ``n`` counted blocks, once; ``n_max`` and ``first_look`` go to ``decide`` with them."""

    n: int
    n_max: int
    first_look: int


@dataclass(frozen=True, slots=True)
class End:
    """The run ends so, for this reason."""

    ending: Ending
    reason: str


Action = NextBlock | Judge | End


def coin(seed: int, number: int) -> Order:
    """The order of one block: a fair coin from the run's recorded seed and the block's number, of nothing else.

    A hash, so that it is the same on every Python and independent of the blocks before; a repeated block has a new
    number and so a new coin. Never balanced, alternated or redrawn: the verdict rests on the coin's symmetry.
    """
    digest = hashlib.sha256(f"cotenant block order {seed} {number}".encode()).digest()
    return "on_first" if digest[0] & 1 else "off_first"


def run_looks(spec: RunSpec) -> tuple[int, ...]:
    """The looks of this run. An A/A run has one, at its planned number: its interval holds for a fixed number only."""
    if spec.kind != "null":
        return spec.looks
    planned = max(spec.first_look, math.ceil(spec.blocks / LOOK_STEP) * LOOK_STEP)
    return (min(planned, spec.n_max),)


def most_blocks(spec: RunSpec) -> int:
    """How many blocks may be started, left-out and cut ones too: those that fit into max-hours.

    Each block left out costs one of them, so that they cannot carry a run past its cap. A run so short that hardly more
    than its first look fits may still repeat the fifth that may be left out.
    """
    fit = math.floor(spec.max_hours * 3600.0 / spec.block_s + 1e-9)
    return max(fit, spec.first_look + spec.first_look // 4)


def longest_s(spec: RunSpec, switch_s: float = SWITCH_ALLOWANCE_S) -> float:
    """The longest that a run may take, in seconds: its blocks, ``switch_s`` for the switches of each, the reference."""
    return spec.reference_s + most_blocks(spec) * (spec.block_s + switch_s)


def next_action(
    spec: RunSpec,
    rows: Sequence[BlockRow],
    judged: Mapping[int, Verdict],
    elapsed_s: float = 0.0,
    limit_s: float | None = None,
) -> Action:
    """What the run does next.

    Args:
        spec: the run's parameters.
        rows: every block that was started so far.
        judged: verdict of each look that was journaled, by its number of blocks.
        elapsed_s: how long the run has been measuring (time between a crash and the resume is not part of it).
        limit_s: no block starts that would end later; None: ``longest_s``. The end of an owner's hours goes here.

    A verdict comes from ``Judge`` at a look and nowhere else; blocks end a run early only by harm: a collapse,
    ``harm_suspected``, or because the work never ran (``no_dose``).
    """
    for n in sorted(judged):
        if judged[n] != INCONCLUSIVE:
            return End(judged[n], _look_reason(judged[n], n))
    harm = harm_in_blocks(rows, alone=spec.kind == "null")
    if harm is not None:
        return harm
    usable = counted(rows)
    if spec.kind == "ab" and _no_dose(rows):
        return End("no_dose", f"{NO_DOSE_IN_A_ROW} blocks in a row in which the work under test did not run enough")

    stops = run_looks(spec)
    for n in stops:
        if n <= len(usable) and n not in judged:
            return Judge(n, stops[-1], stops[0])
    ahead = [n for n in stops if n not in judged]
    if not ahead:
        return End(INCONCLUSIVE, f"undecided at the last look ({stops[-1]} blocks)")
    room = most_blocks(spec) - len(rows)
    if len(usable) + room < ahead[0]:
        return End(INCONCLUSIVE, _cap_reason(spec, rows, ahead[0]))
    limit = longest_s(spec) if limit_s is None else limit_s
    if elapsed_s + spec.block_s > limit:
        return End(INCONCLUSIVE, f"time is up: {elapsed_s / 3600:.2f} h of at most {limit / 3600:.2f} h are used")
    number = max((row.number for row in rows), default=0) + 1
    return NextBlock(number, coin(spec.seed, number))


def harm_in_blocks(rows: Sequence[BlockRow], *, alone: bool = False) -> End | None:
    """How a run ends whose blocks speak against the work before any look; None: none does. ``alone``: no work ran in it."""
    collapsed = next((row for row in rows if row.collapse), None)
    if collapsed is not None:
        return End(SLOWDOWN, f"collapse in block {collapsed.number}: {collapsed.collapse}")
    stalled = next((row for row in counted(rows) if row.on is not None and row.on.rate == 0.0), None)
    if stalled is not None:
        return End(SLOWDOWN, f"collapse in block {stalled.number}: no progress in the whole ON window, progress in OFF")
    harm = None if alone else harm_suspected(rows)
    return None if harm is None else End("harm_suspected", harm.words)


def _no_dose(rows: Sequence[BlockRow]) -> bool:
    """Were the newest blocks all without a dose? A block that was cut says nothing of the dose and is passed over."""
    told = [row for row in sorted(rows, key=lambda row: row.number) if row.state != "cut"]
    newest = told[-NO_DOSE_IN_A_ROW:]
    return len(newest) == NO_DOSE_IN_A_ROW and all(
        row.state == "left_out" and row.reason == "no_dose" for row in newest
    )


def _look_reason(verdict: Verdict, n: int) -> str:
    if verdict == PASS:
        return f"the look at {n} blocks shows no slowdown beyond the margin"
    if verdict == SLOWDOWN:
        return f"the look at {n} blocks shows the program slower with the work"
    return f"the look at {n} blocks shows that this run cannot reach the margin"


def _cap_reason(spec: RunSpec, rows: Sequence[BlockRow], look: int) -> str:
    lost = len(left_out(rows))
    return (
        f"the blocks left of the {most_blocks(spec)} that fit into --max-hours {spec.max_hours:g} cannot reach "
        f"the next look at {look} ({len(rows)} started, {lost} left out)"
    )
