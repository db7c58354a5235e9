"""What the worker itself holds against starting a flow run now, from its parameters alone."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nodes.zone import local_zone
from policies.harness.hours import parse_hours
from policies.refusal import Refused
from policies.views import Reason

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

__all__ = ["SHARED_QUEUE", "no_such_node", "outside_hours", "unknown_parameters", "was_reviewed"]

# Of runs that any node may take.
SHARED_QUEUE = "any"
MOST_NAMES = 20
# Under this key the flows suspend for their review (``tasks.review``).
REVIEW_KEY = "review"


def unknown_parameters(deployment: DeploymentResponse, given: dict[str, Any]) -> str | None:
    """Names that the flow does not have, in words. Prefect takes them, and the run's process would end without a word."""
    known = (deployment.parameter_openapi_schema or {}).get("properties") or {}
    unknown = [name for name in given if name not in known]
    if not unknown or not known:
        return None
    near = difflib.get_close_matches(unknown[0], known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return (
        f"parameter {', '.join(map(repr, unknown))}: {deployment.name} has no such parameter{hint} "
        f"Known: {', '.join(sorted(known))}"
    )


def no_such_node(wanted: str, known: Iterable[str]) -> str:
    """In words, that the fleet has no node of this name."""
    names = sorted(known)
    near = difflib.get_close_matches(wanted, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    shown = ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
    return (
        f"node {wanted!r}: the fleet has no such node{hint} Known: {shown or 'none'}. Next: cotenant node list --fleet"
    )


def outside_hours(parameters: dict[str, Any], reviewed: bool, now: datetime) -> tuple[Reason, float] | None:
    """Why a run with hours of the day (``window``) does not start ``now``, and in how many seconds it does; or None.

    One that still has to be reviewed starts at any hour: it asks, and measures nothing.
    """
    window = parameters.get("window")
    if not isinstance(window, str) or not window.strip() or not reviewed:
        return None
    try:
        hours = parse_hours(window)
    except Refused:
        return None  # the flow itself says what is wrong with it
    zone = local_zone()
    span = hours.next_span(now, zone)
    wait_s = (span.start - now).total_seconds()
    if wait_s <= 0.0:
        return None
    why = f"outside its hours {hours}; it starts at {span.start.astimezone(zone):%a %H:%M}"
    return Reason("FLOW_OUTSIDE_HOURS", why), wait_s


def was_reviewed(flow_run: FlowRun) -> bool:
    policy = flow_run.empirical_policy
    return bool(flow_run.parameters.get("reviewed")) or REVIEW_KEY in (policy.pause_keys or set())
