"""What nobody should read into a run, and how many more blocks would decide it.

Source: ``harness-statistics.md``, section 5 (more blocks) and section 6 (what no design covers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policies.harness.rows import BlockRow
from policies.harness.validity import DEATHS, DISTRESS
from policies.harness.verdict import Decision
from policies.report.base import Base
from policies.report.document import Certificate
from policies.report.evidence import Figure, hours, interval, measured, percent, shown, unknown
from policies.report.words import clean, day, plural

__all__ = ["more_figures", "not_covered", "rare_harm", "speaks_against"]


def rare_harm(base: Base) -> Figure:
    """The share of ON windows in which harm may have gone unseen: 1 - .05^(1/N) (statistics, section 6)."""
    source = f"1 - .05^(1/N) at N = {base.result.counted} counted blocks"
    return measured(base.judgement.rare_harm, source, otherwise="no block was counted")


def not_covered(base: Base, worst: Figure, tested: Figure, certified: Certificate) -> tuple[str, ...]:
    """What nobody should read into this run, with figures where there are some."""
    n = base.result.counted
    items = []
    if n:
        rare = shown(rare_harm(base), lambda v: f"{v * 100:.0f} %")
        items.append(
            f"Rare harm: harm in fewer than {rare} of ON windows may be unseen ({plural(n, 'block')}). "
            f"The worst ON window ran at {shown(worst, percent)} of the OFF window beside it. "
            "Where rare harm matters, use --first-look 12 or more."
        )
    span = _span(base.counted)
    on_time = shown(tested, hours)
    items.append(
        f"Other hours: an effect that wanders over hours is not covered. The run speaks for the time it tested{span}, "
        f"{on_time} of it in counted ON windows."
    )
    items.append(
        f"Carry-over: an effect that lasts longer than the {base.spec.washout_s:g} s washout after a switch is spread "
        "over both arms."
    )
    if base.spec.kind != "self":
        items.append(
            "Self-cost: what this product itself costs is in both arms and cannot show in R. "
            + _newest(base, "newest_self", "self-cost run (--self)")
        )
    if base.spec.kind != "null":
        items.append(f"The method itself, on this node: {_newest(base, 'newest_null', 'A/A run (--null)')}")
    program = base.record.get("program")
    unbound = program.get("unbound") if isinstance(program, Mapping) else None
    items += [f"The program's code: {clean(each)}." for each in (unbound if isinstance(unbound, list) else ())]
    if certified.state != "none":
        items.append(
            "Work at a higher duty, other modules, stages or models, and longer units than those seen are not covered."
        )
    return tuple(items)


def _span(counted: Sequence[BlockRow]) -> str:
    windows = [w for row in counted for w in (row.on, row.off) if w is not None]
    if not windows:
        return ""
    first, last = (pick(windows, key=lambda w: w.started_mono_s) for pick in (min, max))
    return f" ({day(clean(first.started_at))} to {day(clean(last.started_at))})"


def _newest(base: Base, key: str, what: str) -> str:
    raw = base.record.get(key)
    if not isinstance(raw, Mapping):
        return f"No {what} was made on this node."
    verdict = raw.get("verdict")
    seen = verdict if isinstance(verdict, Mapping) else {}
    numbers = [measured(seen.get(k), f"run {clean(raw.get('run'))}") for k in ("R", "lo", "hi")]
    R, lo, hi = (f.value for f in numbers)
    found = shown(numbers[0], lambda v: percent(v, 2), why=True)
    if R is not None and lo is not None and hi is not None:
        found += f" (90 % interval {interval(lo, hi, 2)})"
    return f"The newest {what}, {clean(raw.get('run'))}, ended {day(clean(raw.get('ended_at')))}, gave {found}."


def more_figures(decision: Decision) -> tuple[Figure, Figure]:
    """(k50 - n, k80 - n): further blocks that would decide with a chance of about 50 and 80 %."""
    source = "harness statistics, section 5"
    if decision.verdict != "inconclusive" or not decision.looks:
        why = "nothing is left to decide" if decision.looks else "no look yet"
        return unknown(why, source), unknown(why, source)
    low = decision.k50 - decision.n if decision.k50 is not None else None
    high = decision.k80 - decision.n if decision.k80 is not None else None
    return (
        measured(low, source, otherwise="no number of blocks up to 400 would decide"),
        measured(high, source, otherwise="no number of blocks up to 160 would decide"),
    )


def speaks_against(row: BlockRow) -> bool:
    """Is this block's reason one that tells against the work, and did it come while the work ran?"""
    return bool(row.collapse) or (row.reason in DEATHS | DISTRESS and row.reason_arm == "on")
