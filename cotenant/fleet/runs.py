"""Flow runs from the command line: start, approve, cancel, look at."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled, Cancelling

from cotenant.fleet.deployments import client_of, queues
from policies.refusal import Refused

__all__ = ["approve", "cancel_ended", "cancel_flow", "flow_answer", "flow_state", "review_text", "run_flow", "ui_link"]

REVIEW_FORM_WITHIN_S = 10.0


def run_flow(url: str, deployment: str, parameters: Mapping[str, Any], node: str) -> str:
    """Start a deployment on a node.

    Args:
        deployment: ``flow/deployment``, e.g. ``ab-run/ab-run``.
        parameters: by the flow's names. Prefect itself would take an unknown one and crash the run.

    Returns:
        The flow run's id.

    Raises:
        Refused: no such node, deployment or parameter, or a value that does not fit.
    """
    known = queues(url)
    if node not in known:
        near = difflib.get_close_matches(node, known, 1)
        why = f"the Prefect server at {url} knows no worker queue for it; it knows: {', '.join(known) or 'none'}"
        why += f". Did you mean {near[0]!r}?" if near else ""
        # A mistyped name must not become a node.
        hint = "cotenant node list --fleet" if near else f"on its machine: cotenant node run {node}; then try again"
        raise Refused("NODE_UNKNOWN", f"node {node!r}", why, hint)
    with client_of(url) as client:
        try:
            found = client.read_deployment_by_name(deployment)
        except ObjectNotFound:
            raise Refused(
                "DEPLOYMENT_UNKNOWN", f"deployment {deployment!r}", "the server has none of that name", "cotenant up"
            ) from None
        allowed = (found.parameter_openapi_schema or {}).get("properties", {})
        for name in parameters:
            if name not in allowed:
                near = difflib.get_close_matches(name, allowed, 1)
                why = f"{deployment} has no such parameter" + (f"; did you mean {near[0]!r}?" if near else "")
                raise Refused("FLOW_BAD_PARAMETER", f"parameter {name!r}", why, f"known: {', '.join(sorted(allowed))}")
        try:
            run = client.create_flow_run_from_deployment(found.id, parameters=dict(parameters), work_queue_name=node)
        except PrefectHTTPStatusError as error:
            if error.response.status_code not in (409, 422):
                raise
            raise Refused(
                "FLOW_BAD_PARAMETER", deployment, str(error.response.json().get("detail")), "set it right"
            ) from error
        return str(run.id)


def flow_state(url: str, flow_run_id: str) -> dict[str, Any]:
    """``{type, name, message, final, at}`` of a flow run: type as Prefect has it (RUNNING, COMPLETED, …).

    Raises:
        Refused: there is no such flow run.
    """
    with client_of(url) as client:
        run = _read(client, flow_run_id)
        state = run.state
    if state is None:
        return {"type": None, "name": None, "message": None, "final": False, "at": None}
    return {
        "type": state.type.value,
        "name": state.name,
        "message": state.message,
        "final": state.is_final(),
        "at": state.timestamp.isoformat(),
    }


def flow_answer(url: str, flow_run_id: str, key: str) -> Any:
    """The JSON that a flow run left under this key; None where it left none."""
    wanted = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(flow_run_id)]), key=ArtifactFilterKey(any_=[key])
    )
    with client_of(url) as client:
        found = client.read_artifacts(artifact_filter=wanted, limit=1)
    if not found:
        return None
    data = found[0].data
    return json.loads(data) if isinstance(data, str) else data


def cancel_flow(url: str, flow_run_id: str) -> None:
    """Ask for a flow run to be cancelled; its worker ends the process, and the run is aborted.

    Raises:
        Refused: no such run, or it has ended.
    """
    with client_of(url) as client:
        run = _read(client, flow_run_id)
        had_ended = run.state is not None and run.state.is_final()
        answer = client.set_flow_run_state(run.id, Cancelling())
    # A run that waits has no process to end: the server makes it Cancelled instead of Cancelling.
    cancelled_at_once = not had_ended and answer.state is not None and answer.state.is_cancelled()
    if answer.status is not SetStateStatus.ACCEPT and not cancelled_at_once:
        why = getattr(answer.details, "reason", None) or f"the server answered {answer.status.value}"
        raise Refused("FLOW_NOT_CANCELLED", f"flow run {flow_run_id}", str(why), "cotenant protection ab list")


def cancel_ended(url: str, flow_run_id: str) -> None:
    """Set a flow run that failed or crashed as cancelled, so that no worker puts it back, and whoever is about to sees it.

    One that was put back meanwhile is cancelled as any other; one that completed, or that is not on the server, is left.

    Raises:
        Refused: it was put back meanwhile and the server does not cancel it.
    """
    with client_of(url) as client:
        try:
            run = client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:
            return
        if run.state is None or run.state.is_completed() or run.state.is_cancelled():
            return
        if run.state.is_final():
            client.set_flow_run_state(run.id, Cancelled(message="Its batch was cancelled."), force=True)
            return
    cancel_flow(url, flow_run_id)


def approve(url: str, flow_run_id: str, decision: str, comment: str = "") -> None:
    """Answer the review that a flow run waits for.

    Args:
        decision: ``approve`` or ``reject``.

    Raises:
        Refused: it does not wait for a review, or the answer does not fit.
    """
    end = time.monotonic() + REVIEW_FORM_WITHIN_S
    while True:
        with client_of(url) as client:
            run = _read(client, flow_run_id)
            answer = client.resume_flow_run(run.id, run_input={"decision": decision, "comment": comment})
        if answer.status is SetStateStatus.ACCEPT:
            return
        why = str(getattr(answer.details, "reason", None) or f"the server answered {answer.status.value}")
        # The run is suspended a moment before its form is stored.
        if "schema not found" not in why or time.monotonic() > end:
            raise Refused("REVIEW_REFUSED", f"flow run {flow_run_id}", why, f"look at it: {ui_link(url, flow_run_id)}")
        time.sleep(0.3)


def review_text(url: str, flow_run_id: str) -> str | None:
    """What a suspended run shows to whoever reviews it (markdown); None where it waits for no review."""
    with client_of(url) as client:
        run = _read(client, flow_run_id)
        keys = run.state.state_details.run_input_keyset if run.state is not None else None
        if not keys or "description" not in keys:
            return None
        try:
            raw = client.read_flow_run_input(run.id, keys["description"])
        except (ObjectNotFound, httpx.HTTPStatusError):
            return None
    return str(json.loads(raw)) if raw else None


def ui_link(url: str, flow_run_id: str) -> str:
    """Where the run is in the Prefect UI."""
    return f"{url.removesuffix('/api')}/runs/flow-run/{flow_run_id}"


def _read(client: Any, flow_run_id: str) -> Any:
    try:
        return client.read_flow_run(UUID(flow_run_id))
    except (ObjectNotFound, ValueError):
        raise Refused(
            "FLOW_RUN_UNKNOWN",
            f"flow run {flow_run_id}",
            "the server has no such flow run",
            "cotenant protection ab list",
        ) from None
