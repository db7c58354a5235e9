"""What a new protection section would change, for the person who reviews it and for the command that asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect.artifacts import Artifact, create_markdown_artifact

__all__ = ["PREVIEW_KEY", "keep_preview", "section_plan_markdown", "section_words"]

# The agent's answer as it came, on the flow run.
PREVIEW_KEY = "section-preview-answer"

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
    shown = text.encode()[:SHOWN_BYTES].decode(errors="ignore")
    shown += "" if shown == text else "\n… (cut here)"
    fence = "`" * 3
    while fence in shown:
        fence += "`"
    lines += ["", f"In force now: version {before.get('version')}. The new section:", "", f"{fence}toml", shown, fence]
    return "\n".join(lines) + "\n"


def section_words(seen: Mapping[str, Any]) -> str:
    """Why a section is refused, in one line. ``seen``: the agent's preview."""
    words = "; ".join(str(error.get("message") or error) for error in seen["errors"])
    return f"the protection section: {words}. The one in force stays"


def keep_preview(seen: Mapping[str, Any], plan: str | None) -> None:
    """The agent's answer on the flow run, inside it: as JSON, and as the plan (markdown) where there is one."""
    Artifact(type="json", key=PREVIEW_KEY, description="The agent's answer", data=dict(seen)).create()
    if plan is not None:
        create_markdown_artifact(key="section-preview", markdown=plan, description="What the section would change")


def _process(process: Any) -> str:
    if not isinstance(process, Mapping):
        return _cell(str(process))
    argv = process.get("argv")
    words = " ".join(argv) if isinstance(argv, list) else str(process.get("exe") or process.get("name") or "")
    return _cell(f"{process.get('pid')} {words[:120]}")


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("`", "'").replace("\n", " ")
