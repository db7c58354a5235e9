"""A job's own figures out of its events, added up over the jobs of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from policies.json_text import parse_json

__all__ = ["added", "progress_of", "rates"]

_SUMS = (
    "tokens",
    "prompt_tokens",
    "shared_tokens",
    "units",
    "at_limit",
    "busy_s",
    "idle_s",
    "paused_s",
    "wall_s",
    "load_s",
)
_WORST = ("unit_worst_s", "yield_s", "width_most", "peak_rss_mb")


def progress_of(lines: Iterable[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """``(answers, figures)`` of event lines: each answer as the runner gave it, each ``progress`` event's figures.

    A line that is neither, or no JSON, says nothing here.
    """
    answers, figures = [], []
    for line in lines:
        try:
            event = parse_json(line)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        if event.get("name") == "prompt" and isinstance(event.get("answer"), dict):
            answers.append(event["answer"])
        elif event.get("type") == "progress":
            told = {name: event[name] for name in (*_SUMS, *_WORST) if _number(event.get(name))}
            attempt = event.get("attempt")
            figures.append(told | ({"attempt": attempt} if isinstance(attempt, str) and attempt else {}))
    return answers, figures


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def added(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Sums of what adds up, the larger of what is a worst case."""
    found = dict(before)
    for name in _SUMS:
        if name in more:
            found[name] = round(found.get(name, 0) + more[name], 4)
    for name in _WORST:
        if name in more:
            found[name] = max(found.get(name, 0), more[name])
    return found


def rates(figures: Mapping[str, Any]) -> dict[str, float | None]:
    """Generated tokens a second of busy and of wall time; None where nothing was measured."""

    def rate(seconds: str) -> float | None:
        span = figures.get(seconds)
        return round(figures.get("tokens", 0) / span, 2) if span else None

    return {"tokens_per_busy_s": rate("busy_s"), "tokens_per_wall_s": rate("wall_s")}
