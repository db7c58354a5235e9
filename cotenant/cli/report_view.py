"""A run's report for the command line: built by ``tasks.reports``, printed as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cotenant.cli.result import OperationResult
from cotenant.cli.runs import ending_exit

__all__ = ["ended_result", "report_result", "write_report"]


def report_result(
    record: dict[str, Any], *, html: Path | None = None, csv: Path | None = None, told_by: str = "agent"
) -> OperationResult:
    """The report as a result; the page and the windows are written where asked."""
    from tasks.reports import build

    rendered = build(record)
    messages = []
    if html is not None:  # a page has pictures, which take a second to draw
        html.expanduser().write_text(rendered.html, encoding="utf-8")
        messages.append(f"page: {html}")
    if csv is not None:
        csv.expanduser().write_text(rendered.csv, encoding="utf-8")
        messages.append(f"raw windows: {csv}")
    return OperationResult(
        {"record": record, "report": rendered.json, "told_by": told_by},
        exit_code=ending_exit(record),
        messages=messages,
        view=lambda _: [rendered.text.rstrip("\n")],
    )


def ended_result(record: dict[str, Any], extra: dict[str, Any] | None = None) -> OperationResult:
    """A run that was watched to its end: its report, and where to find it again."""
    result = report_result(record)
    result.data = (extra or {}) | result.data | {"run": record["run"]}
    result.messages.append(f"this report again: cotenant protection ab show {record['run']} (--html FILE for the page)")
    return result


def write_report(record: dict[str, Any], folder: Path) -> dict[str, Path]:
    """Page, text, raw windows and JSON of a run in a folder; gives their paths."""
    from tasks.reports import build

    rendered = build(record)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "html": rendered.html,
        "txt": rendered.text,
        "csv": rendered.csv,
        "json": json.dumps({"record": record, "report": rendered.json}, indent=1, ensure_ascii=False),
    }
    paths = {kind: folder / f"{record['run']}.{kind}" for kind in texts}
    for kind, path in paths.items():
        path.write_text(texts[kind], encoding="utf-8")
    return paths
