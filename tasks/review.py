"""The question before a run: its plan in words, and the answer that a person gives in the Prefect UI or on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from prefect.input import RunInput
from pydantic import Field

from policies.harness.plan_text import plan_words
from policies.harness.spec import RunSpec

__all__ = ["REVIEW_WITHIN_S", "Review", "plan_markdown"]

REVIEW_WITHIN_S = 24 * 3600


class Review(RunInput):
    """The answer. ``decision`` has no default on purpose: an empty answer must not start anything."""

    decision: Literal["approve", "reject"] = Field(description="approve starts the run, reject ends it here")
    comment: str = Field(default="", description="kept with the run")


def plan_markdown(plan: Mapping[str, Any]) -> str:
    """The agent's plan for a person to judge: what is measured, for how long, what is held and what is let happen."""
    spec = RunSpec.model_validate(plan["spec"])
    source = plan["source"]
    rate = source.get("rate")
    duty = "" if spec.duty is None else f" at duty {spec.duty:g}"
    processes = ", ".join(_process(process) for process in plan["processes"]) or "none seen"
    lines = [
        f"# Measure what {spec.work}{duty} costs {spec.rule} on {spec.node}",
        "",
        f"- **Protected program:** {processes}",
        f"- **Progress source:** {source['kind']} `{source.get('path')}`, {source['state']}, "
        + ("rate unknown" if rate is None else f"{rate:.4g} per second over the last minute"),
        f"- **Length:** {plan_words(spec)}",
        f"- **Slowdown that counts:** {100 * spec.margin:g} %",
    ]
    if work := [f"{unit['module']}/{unit['stage']} ({unit['running']} running)" for unit in plan["work"]]:
        lines.append(f"- **Work:** {', '.join(work)}")
    if plan.get("feed"):
        lines.append(f"- **Fed with:** {spec.feed}, its results are thrown away")
    lines += [f"- **Held:** {held}" for held in plan["held"]]
    lines += [f"- **Let happen:** {allowed}" for allowed in plan["allowed"]]
    lines += [f"- **Warning:** {warning}" for warning in plan["warnings"]]
    lines += [f"- **Earns:** {_earns(str(plan['certificate_kind']))}"]
    if before := plan["attempts_before"]:
        lines.append(f"- **Attempts before at the same thing:** {len(before)}")
    return "\n".join(lines)


def _process(process: Mapping[str, Any]) -> str:
    return f"`{process.get('exe') or process.get('name') or 'unknown'}` ({process.get('pid')})"


def _earns(kind: str) -> str:
    return {
        "certificate": "a certificate, if it passes",
        "demonstration": "a demonstration certificate at most, if it passes",
    }.get(kind, "no certificate")
