"""A report as markdown and as table rows, for Prefect artifacts. Everything that others named is escaped."""

from __future__ import annotations

import re

from policies.report import Report, Section, Table, sections, terms

__all__ = ["LIMIT_BYTES", "block_rows", "markdown"]

# Prefect stores each artifact twice; larger things belong into a file.
LIMIT_BYTES = 100_000


def markdown(report: Report) -> str:
    """The whole report; the table of blocks makes room for the rest where all would pass ``LIMIT_BYTES``."""
    text = _lay_out(report, with_blocks=True)
    if len(text.encode()) >= LIMIT_BYTES:
        text = _lay_out(report, with_blocks=False)
    return text


def block_rows(report: Report) -> list[dict[str, str]]:
    """One dict a block, keyed by column: the same cells as in every other form of the report."""
    table = next((s.table for s in sections(report) if s.key == "blocks"), None)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows] if table is not None else []


def _lay_out(report: Report, *, with_blocks: bool) -> str:
    lines = [f"# {escape(report.title)}", "", f"**{escape(report.sentence)}**", ""]
    lines += [f"> {escape(warning)}\n" for warning in report.warnings]
    lines += [escape(text) + "\n" for text in (report.reason, report.certificate.says) if text]
    if report.certificate.remedy:
        lines += [_code(report.certificate.remedy), ""]
    lines += [f"- **{escape(word)}**: {escape(meaning)}" for word, meaning in terms(report)]
    for section in sections(report):
        lines += ["", f"## {escape(section.title)}", ""]
        lines += _section(section, with_table=with_blocks or section.key != "blocks")
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section, *, with_table: bool) -> list[str]:
    lines = [escape(p) + "\n" for p in section.paragraphs]
    if section.facts:
        lines += ["| | |", "|:--|:--|", *(f"| {escape(name)} | {escape(value)} |" for name, value in section.facts), ""]
    if section.table is not None:
        lines += (
            _table(section.table) if with_table else ["Too many blocks for this form: see the page or the CSV.", ""]
        )
    lines += [f"- {escape(item)}" for item in section.items]
    return lines


def _table(table: Table) -> list[str]:
    lines = ["| " + " | ".join(escape(c) for c in table.columns) + " |"]
    lines.append("|" + "|".join("--:" if a == "r" else ":--" for a in table.align) + "|")
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in table.rows]
    return [*lines, ""]


def escape(text: str) -> str:
    """Text that no markdown reader takes for anything else: markup, a link, HTML, the border of a table cell.

    A bare address is a link to many readers, so its colon or its first dot is escaped too.
    """
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    safe = re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", safe)
    safe = re.sub(r"(?i)(https?|ftp|mailto):", r"\1\\:", safe)
    return re.sub(r"(?i)(www)\.", r"\1\\.", safe)


def _code(text: str) -> str:
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}"
