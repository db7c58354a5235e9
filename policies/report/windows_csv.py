"""The raw windows of a run as CSV, and back. A figure that is unknown is an empty cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from policies.harness.rows import BlockRow, WindowRow
from policies.refusal import Refused
from policies.report.words import clean

__all__ = ["COLUMNS", "read_blocks", "write"]

COLUMNS = (
    "run",
    "block",
    "order",
    "state",
    "reason",
    "reason_arm",
    "arm",
    "position",
    "started_at",
    "started_mono_s",
    "length_s",
    "events",
    "rate_per_s",
    "longest_step_s",
    "work_ran_s",
    "dose",
    "dose_unknown_reason",
)


def write(rows: Iterable[BlockRow]) -> str:
    """Two lines a block in the order in which its windows ran, numbers in full precision.

    A block that ended before its first window still has a line, with empty cells, so that none disappears.
    """
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in rows:
        windows = sorted((w for w in (row.on, row.off) if w is not None), key=lambda w: w.position)
        for window in windows:
            table.writerow(_cells(row, window))
        if not windows:
            table.writerow(_cells(row, None))
    return out.getvalue()


def _cells(row: BlockRow, window: WindowRow | None) -> list[str]:
    head = [row.run, row.number, row.order, row.state, row.reason, row.reason_arm]
    if window is None:
        tail: list[object] = [None] * (len(COLUMNS) - len(head))
    else:
        tail = [
            window.arm,
            window.position,
            window.started_at,
            window.started_mono_s,
            window.length_s,
            window.events,
            window.rate,
            window.longest_step_s,
            window.work_ran_s,
            window.dose,
            window.dose_unknown_reason,
        ]
    return [_cell(value) for value in (*head, *tail)]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return repr(value)
    text = clean(value)
    # A spreadsheet would run a text that begins like a formula.
    return "'" + text if text[:1] in ("=", "+", "-", "@") else text


def read_blocks(text: str) -> list[tuple[str, float, float]]:
    """``(order, on_rate, off_rate)`` of the counted blocks, as ``policies.statistics.decide`` takes them.

    Raises:
        Refused: a column is missing, a rate is no number, or a counted block lacks a window; names the line.
    """
    table = csv.DictReader(io.StringIO(text))
    missing = [c for c in ("block", "order", "state", "arm", "rate_per_s") if c not in (table.fieldnames or ())]
    if missing:
        raise _bad("line 1", f"has no column {missing[0]!r}")
    blocks: dict[str, dict[str, str | float]] = {}
    for line in table:
        if line["state"] != "counted":
            continue
        block = blocks.setdefault(line["block"], {"order": line["order"]})
        try:
            block[line["arm"]] = float(line["rate_per_s"])
        except (TypeError, ValueError):
            raise _bad(f"line {table.line_num}", f"rate_per_s {line['rate_per_s']!r} is not a number") from None
    return [_paired(number, block) for number, block in blocks.items()]


def _paired(number: str, block: dict[str, str | float]) -> tuple[str, float, float]:
    on, off = block.get("on"), block.get("off")
    if not isinstance(on, float) or not isinstance(off, float):
        raise _bad(f"block {clean(number)}", "is counted but has no ON and OFF window")
    return str(block["order"]), on, off


def _bad(what: str, why: str) -> Refused:
    return Refused(
        "RUN_BAD_WINDOWS", f"CSV of windows, {what}", why, f"give a CSV with the columns {', '.join(COLUMNS)}"
    )
