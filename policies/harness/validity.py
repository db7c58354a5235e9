"""Which blocks count, how much was left out, and when what was left out speaks against the work.

Source: ``harness.md``, "Left out and repeated" and "Harm must not be voided away"; ``harness-statistics.md``, rule 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from policies.harness.rows import Arm, BlockRow, LeftOut, Order
from policies.harness.spec import RunSpec
from policies.harness.verdict import Decision

__all__ = [
    "DEATHS",
    "DISTRESS",
    "LEAST_STEPS",
    "MAX_LEFT_OUT_SHARE",
    "Happening",
    "Harm",
    "Part",
    "certifiable",
    "counted",
    "decide_blocks",
    "foremost",
    "harm_suspected",
    "left_out",
    "left_out_share",
    "no_certificate",
]

MAX_LEFT_OUT_SHARE = 0.20
# Of a window with fewer steps most of what is counted is spread over its edges, into washouts and the other arm.
LEAST_STEPS = 5

Part = Literal["waiting", "washout", "window", "closing"]

# A program that another process replaced has died: the agent says so ("program_died") even where the successor is
# quick. "program_restarted" is a process that came beside those that stayed, which harms nobody.
DEATHS: frozenset[LeftOut] = frozenset({"program_died"})
# A source that reads again after a rotation or a counter's restart is in no distress ("source_gap").
DISTRESS: frozenset[LeftOut] = frozenset({"memory_guard", "source_unreadable"})
# Where several things happen in one block, the one that speaks against the work is the reason.
_WEIGHT: tuple[LeftOut, ...] = (
    "program_died",
    "memory_guard",
    "source_unreadable",
    "suspend",
    "not_held",
    "program_restarted",
    "power_source",
    "phase",
    "owner_pause",
    "source_gap",
    "no_off_progress",
    "no_dose",
    "cut",
)
_WORDS: dict[LeftOut, str] = {
    "program_died": "death of the protected program",
    "memory_guard": "memory guard",
    "source_unreadable": "dead source",
}


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that leaves a block out: what, and in which arm and part of the block it came.

    A washout belongs to the arm switched to, as in ``BlockRow.reason_arm``.
    """

    reason: LeftOut
    arm: Arm | None
    part: Part | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Harm:
    """What came while the work ran, or right after it, that a left-out block must not hide. Counts by arm."""

    deaths_on: int
    deaths_off: int
    distress_on: int
    distress_off: int
    words: str


def counted(rows: Iterable[BlockRow]) -> list[BlockRow]:
    """The blocks that a verdict may use, in the order in which they ran.

    A block that the agent counted but that has no rate in both arms, or no OFF progress, is not one of them.
    """
    usable = [
        row
        for row in rows
        if row.state == "counted"
        and row.on is not None
        and row.on.rate is not None
        and row.off is not None
        and row.off.rate is not None
        and row.off.rate > 0.0
    ]
    return sorted(usable, key=lambda row: row.number)


def left_out(rows: Iterable[BlockRow]) -> list[BlockRow]:
    """Every block that was started and does not count: left out, cut, or without OFF progress."""
    rows = list(rows)
    numbers = {row.number for row in counted(rows)}
    return sorted((row for row in rows if row.number not in numbers), key=lambda row: row.number)


def left_out_share(rows: Sequence[BlockRow]) -> float:
    """Left-out blocks over all that were started; 0 before the first."""
    return len(left_out(rows)) / len(rows) if rows else 0.0


def decide_blocks(rows: Iterable[BlockRow], n: int | None = None) -> list[tuple[Order, float, float]]:
    """The first ``n`` counted blocks (all where None) as ``policies.statistics.decide`` takes them."""
    return [
        (row.order, row.on.rate, row.off.rate)
        for row in counted(rows)[:n]
        if row.on is not None and row.on.rate is not None and row.off is not None and row.off.rate is not None
    ]


def foremost(happenings: Sequence[Happening]) -> Happening | None:
    """The reason that a block with all these is left out for: harm before all else, and the earlier of two alike.

    The others belong into ``BlockRow.extra["also"]`` as ``{"reason", "arm", "part"}``: ``harm_suspected`` reads them.
    """
    return min(happenings, key=lambda happening: _WEIGHT.index(happening.reason), default=None)


def harm_suspected(rows: Sequence[BlockRow]) -> Harm | None:
    """Harm that was left out: one death of the program in ON or in the washout after it, or two of the others there,
    with fewer of the same in OFF. None: nothing of that kind.

    ``BlockRow.extra["part"]`` says in which part of the arm the reason came ("waiting", "washout", "window",
    "closing"); only with it can the washout after ON be told from OFF itself.
    """
    found: set[tuple[int, LeftOut, str]] = set()  # block, what, side: the same thing twice in one block is one
    seen: list[str] = []
    ordered = sorted(rows, key=lambda row: row.number)
    for previous, row in zip([None, *ordered], ordered, strict=False):
        for happening in _happenings(row):
            if happening.arm is None or happening.reason not in DEATHS | DISTRESS:
                continue
            against = happening.arm == "on" or (_settling(happening) and _after_on(row, previous))
            entry = (row.number, happening.reason, "on" if against else "off")
            if against and entry not in found:
                where = "while the work ran" if happening.arm == "on" else "in the washout after the work"
                seen.append(f"{_WORDS[happening.reason]} {where} (block {row.number})")
            found.add(entry)

    def count(kinds: frozenset[LeftOut], side: str) -> int:
        return sum(1 for _, reason, at in found if reason in kinds and at == side)

    deaths_off, distress_off = count(DEATHS, "off"), count(DISTRESS, "off")
    harm = Harm(
        count(DEATHS, "on"),
        deaths_off,
        count(DISTRESS, "on"),
        distress_off,
        f"{'; '.join(seen)}; in OFF: deaths {deaths_off}, memory guard or dead source {distress_off}",
    )
    died = harm.deaths_on >= 1 and harm.deaths_off < harm.deaths_on
    distressed = harm.distress_on >= 2 and harm.distress_off < harm.distress_on
    return harm if died or distressed else None


def certifiable(rows: Sequence[BlockRow]) -> str | None:
    """Why these blocks can carry no certificate whatever their rates say, in words; None: nothing speaks against one."""
    collapsed = next((row for row in rows if row.collapse), None)
    if collapsed is not None:
        return f"the program collapsed in block {collapsed.number}: {collapsed.collapse}"
    share = left_out_share(rows)
    if share > MAX_LEFT_OUT_SHARE + 1e-9:
        return (
            f"{len(left_out(rows))} of {len(rows)} blocks ({100 * share:.0f} %) were left out, "
            f"more than {100 * MAX_LEFT_OUT_SHARE:.0f} %"
        )
    harm = harm_suspected(rows)
    return f"harm suspected: {harm.words}" if harm is not None else _stood_still(rows)


def _stood_still(rows: Sequence[BlockRow]) -> str | None:
    """A program that hardly moves without the work has nothing that the work could slow down. Judged on OFF alone."""
    usable = counted(rows)
    still = [row for row in usable if row.off is not None and row.off.steps is not None and row.off.steps < LEAST_STEPS]
    if len(still) <= MAX_LEFT_OUT_SHARE * len(usable) + 1e-9:
        return None
    return (
        f"in {len(still)} of {len(usable)} blocks the program made fewer than {LEAST_STEPS} steps in the OFF window: one that "
        "stands still, or whose steps are as long as the windows, shows nothing about the work beside it"
    )


def no_certificate(spec: RunSpec, rows: Sequence[BlockRow], decision: Decision | None = None) -> list[str]:
    """Why this run earns no certificate whatever its verdict, in words; empty: nothing stands against one.

    The run goes on all the same: its report still says what was measured.
    """
    reasons: list[str] = []
    if spec.kind == "null":
        reasons.append("an A/A run has no work in either window")
    if spec.kind == "self":
        reasons.append("a self-cost run measures this product, not fleet work")
    lost = certifiable(rows) if spec.kind != "null" else None
    if lost is not None:
        reasons.append(lost)
    if decision is not None and decision.zero_variance:
        reasons.append("the blocks do not vary at all: quantised counts, which are no evidence")
    return reasons


def _happenings(row: BlockRow) -> list[Happening]:
    found: list[Happening] = []
    if row.reason is not None:
        found.append(Happening(row.reason, row.reason_arm, row.extra.get("part"), row.reason_detail))
    also = row.extra.get("also")
    for item in also if isinstance(also, list) else ():
        if (
            isinstance(item, dict) and item.get("reason") in _WEIGHT
        ):  # one that is none of them hides none of the others
            found.append(Happening(item["reason"], item.get("arm"), item.get("part")))
    return found


def _settling(happening: Happening) -> bool:
    return happening.part in ("waiting", "washout")


def _after_on(row: BlockRow, previous: BlockRow | None) -> bool:
    """Does this block's OFF stretch follow a stretch with the work on? The agent says so; a row from before it did is judged by
    its order and the block before it.
    """
    said = row.extra.get("after_on")
    if isinstance(said, bool):
        return said
    if row.order == "on_first":
        return True
    return previous is not None and previous.order == "off_first" and previous.number == row.number - 1
