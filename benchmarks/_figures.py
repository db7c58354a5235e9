"""How every benchmark speaks: a table for people and, with ``--json``, one object as the last line.

The object is ``{name, figures: [{what, value, unit, budget, reference, holds}], load, machine, at}``. A figure without a
budget is there to be compared with (``holds`` is null). The exit status is 1 where a budget does not hold.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

__all__ = ["Figure", "figure", "result", "run"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. ``budget`` and ``reference`` are words or numbers in the figure's unit, None where there is none."""

    what: str
    value: float | None
    unit: str
    budget: str | None = None
    reference: str | None = None
    holds: bool | None = None


def figure(
    what: str,
    value: float | None,
    unit: str,
    bound: tuple[Literal["<=", ">=", "="], float] | None = None,
    reference: str | None = None,
) -> Figure:
    """A figure held to a bound. A value that could not be measured (None) does not hold."""
    if bound is None:
        return Figure(what, value, unit, None, reference, None)
    sign, limit = bound
    holds = value is not None and {"<=": value <= limit, ">=": value >= limit, "=": value == limit}[sign]
    return Figure(what, value, unit, f"{sign} {limit:.6g}", reference, holds)


def result(name: str, figures: Sequence[Figure]) -> dict[str, Any]:
    """The object that ``--json`` prints, with the machine and its load at this moment."""
    return {
        "name": name,
        "figures": [dataclasses.asdict(item) for item in figures],
        "load": [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
        },
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def run(name: str, doc: str | None, measure: Callable[[bool], Sequence[Figure]]) -> int:
    """A benchmark's main: parse ``--json`` and ``--quick``, measure, print; 1 where a budget does not hold."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(doc or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, wider bounds")
    options = parser.parse_args()
    figures = measure(options.quick)
    for line in _table(figures):
        print(line)
    sys.stdout.flush()
    if options.json:
        print(json.dumps(result(name, figures), allow_nan=False))
    return 0 if all(item.holds is not False for item in figures) else 1


def _table(figures: Sequence[Figure]) -> list[str]:
    mark = {True: "ok", False: "OVER", None: ""}
    rows = [("what", "value", "budget", "", "beside it")]
    rows += [
        (
            item.what,
            "unknown" if item.value is None else f"{item.value:.6g} {item.unit}".strip(),
            item.budget or "",
            mark[item.holds],
            item.reference or "",
        )
        for item in figures
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
