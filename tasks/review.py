"""The question before a run: its plan in words, and the answer that a person gives in the Prefect UI or on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from prefect.client.orchestration import get_client
from prefect.exceptions import Pause
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.runtime import flow_run
from prefect.states import Failed, State
from pydantic import Field

from policies.harness.hours import Hours
from policies.harness.plan_text import duration_words, longest_hours, plan_words
from policies.harness.spec import RunSpec

__all__ = [
    "ASKED",
    "REVIEW_KEY",
    "REVIEW_WITHIN_S",
    "Review",
    "plan_markdown",
    "reviewed_by_whom",
    "sweep_plan_markdown",
]

REVIEW_KEY = "review"
ASKED = "waits for review: read the plan and answer with Resume, or: cotenant protection ab approve"

REVIEW_WITHIN_S = 24 * 3600


class Review(RunInput):
    """The answer. ``decision`` has no default on purpose: an empty answer must not start anything."""

    decision: Literal["approve", "reject"] = Field(description="approve starts the run, reject ends it here")
    comment: str = Field(default="", description="kept with the run")


def reviewed_by_whom(plan: str, reviewed: bool, reviewed_by: str) -> str | State[Any]:
    """Who approved the plan (markdown), or the state that the flow run ends in. The first time it suspends the run.

    Raises:
        Pause: the run is suspended; its process ends, and the flow starts again with the answer.
    """
    if reviewed:
        return reviewed_by or "reviewed = true in the flow run's parameters"
    form = Review.with_initial_data(description=plan, comment="")
    try:
        answer = suspend_flow_run(wait_for_input=form, timeout=REVIEW_WITHIN_S, key=REVIEW_KEY)
    except Pause:
        _say_what_it_waits_for()
        raise
    comment = f": {answer.comment}" if answer.comment else ""
    if answer.decision != "approve":
        return Failed(name="Rejected", message=f"refused by review{comment}")
    return f"answered in Prefect{comment}"


def _say_what_it_waits_for() -> None:
    """Prefect suspends without a message; whoever looks at the run's state should see what it wants of them."""
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 10.0}) as client:
            now = client.read_flow_run(flow_run.id).state
            if now is not None and now.is_paused() and not now.message:
                said = State(
                    type=now.type, name=now.name, message=f"{ASKED} {flow_run.id}", state_details=now.state_details
                )
                client.set_flow_run_state(flow_run.id, said, force=True)
    except Exception:
        return  # the run is suspended all the same, and its form has the plan


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


def sweep_plan_markdown(plan: Mapping[str, Any], levels: Sequence[float], hours: Hours | None) -> str:
    """The plan of a sweep: that of its first level, the levels, and how long they may take."""
    spec = RunSpec.model_validate(plan["spec"])
    longest = duration_words(3600.0 * longest_hours(spec) * len(levels))
    when = (
        "at any hour"
        if hours is None
        else f"only within {hours} of the node's local time, on as many nights as it takes"
    )
    head = [
        f"# Sweep the duty of {spec.work} beside {spec.rule} on {spec.node}",
        "",
        f"- **Levels:** {', '.join(f'{level:g}' for level in levels)}; one run each, and none after the first that fails",
        f"- **When:** {when}; {longest} at most for all, switching included",
        "",
        "The first level's plan:",
        "",
    ]
    return "\n".join(head) + plan_markdown(plan).partition("\n")[2].lstrip("\n")


def _process(process: Mapping[str, Any]) -> str:
    return f"`{process.get('exe') or process.get('name') or 'unknown'}` ({process.get('pid')})"


def _earns(kind: str) -> str:
    return {
        "certificate": "a certificate, if it passes",
        "demonstration": "a demonstration certificate at most, if it passes",
    }.get(kind, "no certificate")
