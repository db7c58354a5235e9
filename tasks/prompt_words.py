"""A batch in words: one line for states and bars, a page for the flow run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.prompts import model_words

__all__ = ["batch_words", "report_markdown"]


def batch_words(status: Mapping[str, Any]) -> str:
    """``480 of 500 done, 3 of them cut at the time limit, 2 failed, 18 open; 31.2 tokens/s busy, 12.0 wall``."""
    words = f"{status['done']} of {status['total']} done"
    figures = status["figures"]
    words += f", {figures['at_limit']} of them cut at the time limit" if figures.get("at_limit") else ""
    words += f", {status['failed']} failed" if status["failed"] else ""
    words += f", {status['open']} open" if status["open"] else ""
    busy, wall = figures.get("tokens_per_busy_s"), figures.get("tokens_per_wall_s")
    if busy is not None and wall is not None:
        words += f"; {busy:.1f} tokens/s busy, {wall:.1f} wall"
    return words


def report_markdown(status: Mapping[str, Any]) -> str:
    """The batch's figures as a page."""
    figures, spec = status["figures"], status["spec"]
    rows = [
        ("prompts", f"{status['total']}: {status['done']} done, {status['failed']} failed"),
        ("model", f"{model_words(spec)} ({spec['backend']})"),
        ("cut at the time limit (wall_s)", figures.get("at_limit") or 0),
        ("jobs", status["jobs"]),
        ("tokens generated", figures.get("tokens")),
        ("tokens a busy second", figures.get("tokens_per_busy_s")),
        ("tokens a second of wall time", figures.get("tokens_per_wall_s")),
        ("busy, idled for the duty, held (s)", _three(figures)),
        ("loading, of all jobs (s)", figures.get("load_s")),
        ("longest unit (s)", figures.get("unit_worst_s")),
        ("yield latency: longest between two safe points (s)", figures.get("yield_s")),
    ]
    lines = [f"# Batch {status['batch']}", "", "| what | value |", "|---|---|"]
    lines += [f"| {name} | {'–' if value is None else value} |" for name, value in rows]
    return "\n".join([*lines, "", f"Answers: `cotenant llmserve results {status['batch']} -o out.jsonl`", ""])


def _three(figures: Mapping[str, Any]) -> str | None:
    found = [figures.get(name) for name in ("busy_s", "idle_s", "paused_s")]
    return None if None in found else ", ".join(f"{value:.1f}" for value in found if value is not None)
