"""A report for the terminal: 80 columns, good without colour, the pictures drawn with characters."""

from __future__ import annotations

import textwrap

from policies.report.document import Look, Report
from policies.report.evidence import interval, percent
from policies.report.sections import Section, Table, sections, unburdened
from policies.report.terms import terms

__all__ = ["render"]

WIDTH = 80
INDENT = "  "
NARROWEST = 9
CHART = 24
LOOK_ROWS = 6


def render(report: Report, width: int = WIDTH) -> str:
    """The whole report as text that ends in a line break; no line is longer than ``width``."""
    lines = ["═" * width]
    if not report.sentence.startswith(report.title):
        lines += [*_wrap(report.title, width), ""]
    lines += _wrap(report.sentence, width)
    for text in (report.reason, *(f"! {warning}" for warning in report.warnings)):
        if text:
            lines += ["", *_wrap(text, width)]
    lines += ["", *_wrap(report.certificate.says, width)]
    if report.certificate.remedy:
        lines += _wrap(report.certificate.remedy, width, INDENT * 2)
    lines += ["═" * width, ""]
    label = max(len(word) for word, _ in terms(report))
    for word, meaning in terms(report):
        lines += _hanging(word, meaning, label, width)
    for section in sections(report):
        lines += ["", section.title, "─" * len(section.title)]
        lines += _section(section, report, width)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _section(section: Section, report: Report, width: int) -> list[str]:
    lines: list[str] = []
    for paragraph in section.paragraphs:
        lines += _wrap(paragraph, width)
    if section.picture == "interval":
        lines += [*_interval_picture(report, width), ""]
    if section.facts:
        label = min(22, max(len(name) for name, _ in section.facts))
        for name, value in section.facts:
            lines += _hanging(name, value, label, width)
    if section.table is not None:
        table = _with_chart(section.table, report) if section.picture == "blocks" else section.table
        lines += [*([""] if lines else []), *_table(table, width)]
    if section.picture == "blocks":
        on, off = report.arms
        lines += [
            "",
            *_wrap(
                f"Dots: ○ {off}, ● {on}, on one scale of rates in {report.rate_unit} that does not start at 0.", width
            ),
        ]
    for item in section.items:
        lines += _wrap(item, width, INDENT + "• ", INDENT * 2)
    return lines


def _wrap(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Lines of at most ``width``; a number is not parted from its percent sign."""
    lines = textwrap.wrap(
        text.replace(" %", "\u00a0%"),
        width,
        initial_indent=indent,
        break_on_hyphens=False,
        subsequent_indent=indent if hanging is None else hanging,
    )
    return [line.replace("\u00a0%", " %") for line in lines] or [indent]


def _hanging(name: str, value: str, label: int, width: int) -> list[str]:
    pad = INDENT + " " * (label + 2)
    head = INDENT + (name.ljust(label) if len(name) <= label else name) + "  "
    if len(head) > len(pad):
        return [*_wrap(name, width, INDENT), *_wrap(value, width, pad)]
    return _wrap(value, width, head, pad)


# --- tables -------------------------------------------------------------------------------------------------------


def _table(table: Table, width: int) -> list[str]:
    columns = [[table.columns[i], *(row[i] for row in table.rows)] for i in range(len(table.columns))]
    widths = [max(len(cell) for cell in column) for column in columns]
    room = width - len(INDENT) - 2 * (len(widths) - 1)
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda i: (table.align[i] == "l", widths[i]))
        if widths[widest] <= NARROWEST:
            widest = max(range(len(widths)), key=lambda i: widths[i])
        widths[widest] -= 1
    lines = _row(table.columns, widths, table.align)
    for row in table.rows:
        lines += _row(row, widths, table.align)
    return lines


def _row(cells: tuple[str, ...], widths: list[int], align: str) -> list[str]:
    wrapped = [_wrap(cell, w) for cell, w in zip(cells, widths, strict=True)]
    lines = []
    for i in range(max(len(part) for part in wrapped)):
        texts = [part[i] if i < len(part) else "" for part in wrapped]
        padded = [t.rjust(w) if a == "r" else t.ljust(w) for t, w, a in zip(texts, widths, align, strict=True)]
        lines.append(INDENT + "  ".join(padded))
    return lines


def _with_chart(table: Table, report: Report) -> Table:
    """The table of blocks with a dot chart in place of the word "counted"."""
    rates = [arm.rate.value for b in report.blocks for arm in (b.on, b.off) if arm and arm.rate.value is not None]
    low, high = (min(rates), max(rates)) if rates else (0.0, 1.0)
    rows = []
    for row, block in zip(table.rows, report.blocks, strict=True):
        chart = [" "] * CHART
        for arm, mark in ((block.off, "○"), (block.on, "●")):
            if block.counted and arm is not None and arm.rate.value is not None:
                at = round((arm.rate.value - low) / ((high - low) or 1.0) * (CHART - 1))
                chart[at] = mark if chart[at] == " " else "◉"
        rows.append((*row[:-1], "".join(chart).rstrip().replace(" ", "·") if block.counted else row[-1]))
    return Table((*table.columns[:-1], "Rates"), table.align, tuple(rows), table.muted)


# --- R against the margin -----------------------------------------------------------------------------------------


def _interval_picture(report: Report, width: int) -> list[str]:
    r = report.result
    looks = [look for look in r.looks if look.R.known][-LOOK_ROWS:]
    if not looks:
        looks = [Look(r.n, r.verdict, r.R, r.lo, r.hi)]
    points = [(f"{look.n} blocks", look.R.value, look.lo.value, look.hi.value) for look in looks]
    ends = [v for _, *three in points for v in three if v is not None] + [r.bound, 1.0]
    pad = (max(ends) - min(ends)) * 0.06 or 0.001
    low, high = min(ends) - pad, max(ends) + pad
    label = max(len(name) for name, *_ in points) + len(INDENT) + 1
    room = min(52, width - label - 28)

    def at(value: float) -> int:
        return min(room - 1, max(0, round((value - low) / (high - low) * (room - 1))))

    head = [" "] * (room + 20)
    _put(head, at(1.0) + 1, "100 %", centre=True)
    _put(head, at(r.bound) - 1, f"{percent(r.bound, 1)}", centre=True)
    lines = [" " * label + "".join(head).rstrip()]
    for name, R, lo, hi in points:
        if R is None or lo is None or hi is None:
            continue
        row = [" "] * room
        row[at(r.bound)], row[at(1.0)] = "┃", "┆"
        for i in range(at(lo), at(hi) + 1):
            row[i] = "┿" if row[i] in "┃┆" else "─"
        row[at(lo)], row[at(hi)] = "├", "┤"
        row[at(R)] = "●"
        lines.append(
            INDENT
            + name.rjust(label - len(INDENT) - 1)
            + " "
            + "".join(row)
            + f"  {percent(R, r.places)} ({interval(lo, hi, r.places)})"
        )
    lines.append(" " * label + "┃ margin   ┆ as fast as " + unburdened(report))
    return lines


def _put(cells: list[str], middle: int, text: str, *, centre: bool) -> None:
    start = max(0, middle - len(text) // 2 if centre else middle)
    if all(c == " " for c in cells[max(0, start - 1) : start + len(text) + 1]):
        cells[start : start + len(text)] = list(text)
