"""A report as an ordered list of sections in words. Every written form lays out these; none makes its own numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from policies.report.document import Arm, Block, Report
from policies.report.evidence import interval, number, percent, shown
from policies.report.words import day

__all__ = ["Section", "Table", "arm_rate", "margin_words", "result_title", "sections", "unburdened"]

Picture = Literal["interval", "blocks"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. ``align`` has one of "l" and "r" a column; ``muted`` holds the numbers of rows that do not count."""

    columns: tuple[str, ...]
    align: str
    rows: tuple[tuple[str, ...], ...]
    muted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report. ``caption`` says how to read the picture."""

    key: str
    title: str
    paragraphs: tuple[str, ...] = ()
    picture: Picture | None = None
    caption: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    table: Table | None = None
    items: tuple[str, ...] = ()


def sections(report: Report) -> tuple[Section, ...]:
    """All parts after the verdict, in the order of ``harness.md``."""
    parts = [
        _result(report),
        _blocks(report),
        _dose(report) if report.dose.applies else None,
        _left_out(report),
        _checks(report),
        Section("more", "How many more blocks", paragraphs=(report.more_blocks,)) if report.more_blocks else None,
        _not_covered(report),
        Section(
            "facts", "Where and with what", facts=tuple((f.label, f.value or "not recorded") for f in report.facts)
        ),
        _attempts(report),
    ]
    return tuple(part for part in parts if part is not None)


# --- wording that pictures share ----------------------------------------------------------------------------------


def margin_words(report: Report) -> str:
    """The margin as the owner gave it: "2 %"."""
    return f"{report.result.margin * 100:g} %"


def unburdened(report: Report) -> str:
    """What R = 1 means in this run: as fast as … ."""
    return {"null": "the other window", "self": "with the agent at rest"}.get(report.kind, "without fleet work")


def result_title(report: Report) -> str:
    """What the estimate is held against, in words that need no key."""
    return {
        "null": "The two windows of a block against each other",
        "self": "Speed with the agent, against the margin",
    }.get(report.kind, "Speed with fleet work, against the margin")


def arm_rate(arm: Arm | None) -> str:
    return "–" if arm is None else shown(arm.rate, number)


# --- the sections -------------------------------------------------------------------------------------------------


def _result(report: Report) -> Section:
    r = report.result
    on, off = report.arms
    facts = [(f"{on} ÷ {off} (R)", shown(r.R, lambda v: percent(v, r.places), why=True))]
    if r.lo.value is not None and r.hi.value is not None:
        name, _, valid = r.interval_label.partition(", ")
        facts.append((name, f"{interval(r.lo.value, r.hi.value, r.places)}, {valid}"))
    facts.append(("Margin", _margin_fact(report)))
    if r.R.known:
        facts += [
            ("Blocks", f"{r.counted} counted" + (f", the estimate is of the first {r.n}" if r.n < r.counted else "")),
            (
                "Noise of a block",
                shown(r.noise_sd, lambda v: _noise_words(report, v), why=True),
            ),
            (
                "Order effect",
                shown(r.order_effect, _order_words, why=True) + (", taken out of R" if report.kind != "null" else ""),
            ),
        ]
    else:
        facts.append(("Blocks", f"{r.counted} counted"))
    null = report.null_test
    if null is not None and null.half_width.known:
        facts += [
            ("Half-width", f"{shown(null.half_width, lambda v: percent(v, 2))} of the plain 90 % interval"),
            (
                "Sees the margin",
                shown(null.sees_margin, lambda v: _sees_words(report, v), why=True),
            ),
        ]
    caption = (
        f"The dot is R, the bar its {r.interval_label}"
        + ("; a row for each look, the lowest stands. " if sum(look.R.known for look in r.looks) > 1 else ". ")
        + f"Shaded: beyond the {margin_words(report)} margin. Dashed: as fast as {unburdened(report)}."
        if r.R.known
        else None
    )
    return Section(
        "result",
        result_title(report),
        picture="interval" if r.R.known else None,
        caption=caption,
        facts=tuple(facts),
    )


def _blocks(report: Report) -> Section:
    if not report.blocks:
        return Section("blocks", "Each block, OFF and ON", paragraphs=("No block was measured.",))
    on, off = report.arms
    rows = []
    for block in report.blocks:
        order = f"{on} first" if block.order == "on_first" else f"{off} first"
        dose = "–" if block.on is None or not report.dose.applies else shown(block.on.dose, lambda v: f"{v:.2f}")
        state = (
            "counted" if block.counted else f"left out: {block.why}" if block.reason != "collapse" else block.why or ""
        )
        row = [str(block.number), order, arm_rate(block.off), arm_rate(block.on), _ratio(block), dose, state]
        rows.append(tuple(row if report.dose.applies else row[:5] + row[6:]))
    columns = ["Block", "Order", off, on, f"{on} ÷ {off}", "Dose", "State"]
    align = "rlrrrrl"
    if not report.dose.applies:
        del columns[5]
        align = "rlrrrl"
    muted = frozenset(i for i, b in enumerate(report.blocks) if not b.counted)
    caption = (
        f"Rates in {report.rate_unit}. In each block the point on the left ran first. "
        + ("Grey blocks are left out, with the reason. " if muted else "")
        + "The axis does not start at 0."
    )
    return Section(
        "blocks",
        f"Each block, {off} and {on} side by side",
        picture="blocks" if any(_has_rate(b) for b in report.blocks) else None,
        caption=caption,
        table=Table(tuple(columns), align, tuple(rows), muted),
    )


def _order_words(b: float) -> str:
    """b > 0: the window that ran first was the faster one."""
    return f"the second window of a block ran {math.expm1(-b) * 100:+.2f} % against the first"


def _noise_words(report: Report, sd: float) -> str:
    on, off = report.arms
    return f"{percent(sd, 2)}: how {on} ÷ {off} differs from block to block (standard deviation of its logarithm)"


def _sees_words(report: Report, chance: float) -> str:
    return f"a bias of {margin_words(report)} with a chance of {chance * 100:.0f} %"


def _margin_fact(report: Report) -> str:
    if report.kind == "null":
        return margin_words(report)
    return f"{margin_words(report)}: a pass needs the whole interval at {percent(report.result.bound, report.result.places)} or more"


def _has_rate(block: Block) -> bool:
    return any(arm is not None and arm.rate.known for arm in (block.on, block.off))


def _ratio(block: Block) -> str:
    return shown(block.ratio, lambda v: percent(v, 1)) if block.on and block.off else "–"


def _dose(report: Report) -> Section:
    dose = report.dose
    facts = [
        ("Duty asked", "none: what the work took" if dose.asked is None else f"{dose.asked:g}"),
        (
            "Metered in ON",
            shown(dose.metered, lambda v: f"{v:.3f} of the device, mean of the counted windows", why=True),
        ),
        ("Lowest ON window", shown(dose.lowest, lambda v: f"{v:.3f}", why=True)),
        ("Work ran for", shown(dose.ran_share, lambda v: f"{percent(v)} of the counted ON time", why=True)),
        ("Metered in OFF", shown(dose.off_metered, lambda v: f"{v:.3f}", why=True)),
    ]
    rows = tuple(
        (
            unit.name,
            ", ".join(unit.attempts) if len(unit.attempts) <= 6 else f"{len(unit.attempts)} attempts",
            shown(unit.asked, lambda v: f"{v:.3f}"),
            shown(unit.share, lambda v: f"{v:.3f}"),
            str(unit.readings),
        )
        for unit in dose.units
    )
    table = Table(("Unit", "Attempts", "Asked", "Metered", "Readings"), "llrrr", rows) if rows else None
    return Section("dose", "The dose held", facts=tuple(facts), table=table, items=dose.notes)


def _left_out(report: Report) -> Section:
    if not report.left_out:
        return Section("left_out", "Left out", paragraphs=("No block was left out.",))
    share = shown(report.left_out_share, percent)
    lead = (
        f"{len(report.left_out)} of {len(report.blocks)} blocks ({share}) were left out, never counted, and repeated "
        "with a new coin where the run went on. Above 20 % there is no certificate."
    )
    rows = tuple(
        (
            str(o.number),
            day(o.at) if o.at else "–",
            o.arm or "–",
            o.why + (" (speaks against the work)" if o.against else ""),
            o.detail or "",
        )
        for o in report.left_out
    )
    return Section(
        "left_out", "Left out", paragraphs=(lead,), table=Table(("Block", "Began", "In", "Why", "Seen"), "rllll", rows)
    )


def _checks(report: Report) -> Section | None:
    if not report.checks:
        return None
    rows = tuple((c.name, ("! " if c.alarm else "") + c.outcome, c.sees) for c in report.checks)
    lead = "Reported with every run and never part of the verdict. An alarm says: read the result with this in mind."
    return Section(
        "checks", "Honesty checks", paragraphs=(lead,), table=Table(("Check", "Found", "What it can see"), "lll", rows)
    )


def _not_covered(report: Report) -> Section:
    title = "What the certificate does not cover" if report.certificate.state != "none" else "What this run cannot show"
    return Section("not_covered", title, items=report.not_covered)


def _attempts(report: Report) -> Section:
    if not report.attempts:
        return Section("attempts", "Earlier attempts at the same thing", paragraphs=("There was none on this node.",))
    places = report.result.places
    on, off = report.arms
    rows = tuple(
        (
            a.run,
            day(a.ended_at),
            a.ending,
            "none" if a.duty is None else f"{a.duty:g}",
            shown(a.R, lambda v: percent(v, places)),
        )
        for a in report.attempts
    )
    return Section(
        "attempts",
        "Earlier attempts at the same thing",
        table=Table(("Run", "Ended", "Ending", "Duty", f"{on} ÷ {off}"), "lllrr", rows),
    )
