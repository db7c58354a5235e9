"""The page of results: each figure on an idle and on a busy host, beside its budget and its reference.

What was measured lies in ``results.json``: ``{host: {benchmark: result}}``, the host ``idle`` or ``busy`` and a result as
``--json`` prints it (or ``{name, failed, at}``), with ``quick`` and ``load_before`` added. A benchmark that is run again
replaces its own result alone, so that each carries its own date. ``RESULTS.md`` is drawn from that, and from
``reasons.toml``, which says for a benchmark why a figure falls short.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
STORE, REASONS, PAGE = HERE / "results.json", HERE / "reasons.toml", HERE / "RESULTS.md"
Host = Literal["idle", "busy"]
HOSTS: tuple[Host, ...] = ("idle", "busy")
Results = dict[str, dict[str, dict[str, Any]]]


def kept() -> Results:
    """What was measured so far."""
    found: Results = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    return found


def keep(host: Host, result: dict[str, Any]) -> None:
    """Put one result in its place and draw the page anew; an interrupted run loses only what it did not finish."""
    results = kept()
    results.setdefault(host, {})[result["name"]] = result
    _replace(STORE, json.dumps(results, indent=1, sort_keys=True, allow_nan=False) + "\n")
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    _replace(PAGE, page(results, reasons))


def short(result: dict[str, Any]) -> bool:
    """Whether a benchmark failed or one of its figures is over its budget."""
    return "failed" in result or any(item["holds"] is False for item in result["figures"])


def page(results: Results, reasons: dict[str, str]) -> str:
    """``RESULTS.md``: a table for each benchmark, one column for each host."""
    names = sorted({name for by_name in results.values() for name in by_name})
    lines = [
        "# Results",
        "",
        "Made by `make bench`: each benchmark on an idle host, and on a busy one, with a competitor pinned to each core.",
        "Compare figures within one column: absolute times belong to the machine. **Bold**: over its budget.",
        "",
        f"Machine: {_machines(results)}.",
    ]
    for name in names:
        of_host = {host: results[host][name] for host in HOSTS if name in results.get(host, {})}
        lines += ["", f"## {name}", "", *_dates(of_host)]
        lines += ["", *_table(of_host)]
        if name in reasons and any(short(result) for result in of_host.values()):
            lines += ["", f"Why it falls short: {reasons[name].strip()}"]
    return "\n".join(lines) + "\n"


def _machines(results: Results) -> str:
    told = {
        f"{m['cpu']}, {m['cores']} cores, {m['system']}, Python {m['python']}"
        for by_name in results.values()
        for result in by_name.values()
        if (m := result.get("machine"))
    }
    return "; ".join(sorted(told)) or "unknown"


def _dates(of_host: dict[Host, dict[str, Any]]) -> Iterable[str]:
    for host, result in of_host.items():
        quick = ", the quick form" if result.get("quick") else ""
        if "failed" in result:
            yield f"- {host}, {result['at']}{quick}: it failed: {result['failed']}"
            continue
        loads = [row[0] for row in (result.get("load_before"), result.get("load")) if row]
        load = f", load {' before, '.join(f'{value:.1f}' for value in loads)} after" if len(loads) == 2 else ""
        yield f"- {host}, {result['at']}{quick}{load}"


def _table(of_host: dict[Host, dict[str, Any]]) -> list[str]:
    measured = {
        host: {f["what"]: f for f in result["figures"]} for host, result in of_host.items() if "figures" in result
    }
    if not measured:
        return []
    hosts = list(measured)
    lines = [
        f"| what | unit | budget | {' | '.join(hosts)} | beside it ({hosts[0]}) |",
        f"|---|---|---|{'---|' * len(hosts)}---|",
    ]
    for what in dict.fromkeys(what for figures in measured.values() for what in figures):
        rows = [measured[host].get(what) for host in hosts]
        first = next(row for row in rows if row is not None)
        cells = [what, first["unit"], first["budget"] or "", *(_value(row) for row in rows), first["reference"] or ""]
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return lines


def _value(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    text = "unknown" if row["value"] is None else f"{row['value']:.4g}"
    return f"**{text}**" if row["holds"] is False else text


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
