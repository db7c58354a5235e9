"""What a new protection section would change, for the person who reviews it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["section_plan_markdown"]

SHOWN_BYTES = 60_000


def section_plan_markdown(node: str, text: str, seen: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """``seen``: the agent's preview; ``before``: the section in force."""
    lines = [f"# Change what node {node} protects", ""]
    lines += [f"- {change}" for change in seen["changes"]] or ["- no change of meaning; the text differs"]
    lines += ["", "| rule | matches now | cannot be judged |", "|---|---|---|"]
    for match in seen["matches"]:
        found = ", ".join(_process(process) for process in match["processes"]) or "nothing"
        unreadable = match.get("unreadable")
        count = len(unreadable) if isinstance(unreadable, list) else unreadable or 0
        lines.append(f"| {_cell(match['rule'])} | {found} | {count} |")
    if held := seen.get("held"):
        lines += ["", f"Fleet work that would be held now: jobs {', '.join(map(str, held))}."]
    shown = text if len(text.encode()) <= SHOWN_BYTES else text[:SHOWN_BYTES] + "\n… (cut here)"
    fence = "`" * 3
    while fence in shown:
        fence += "`"
    lines += ["", f"In force now: version {before.get('version')}. The new section:", "", f"{fence}toml", shown, fence]
    return "\n".join(lines) + "\n"


def _process(process: Any) -> str:
    if not isinstance(process, Mapping):
        return _cell(str(process))
    argv = process.get("argv")
    words = " ".join(argv) if isinstance(argv, list) else str(process.get("exe") or process.get("name") or "")
    return _cell(f"{process.get('pid')} {words[:120]}")


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("`", "'").replace("\n", " ")
