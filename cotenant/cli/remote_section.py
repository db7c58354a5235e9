"""``protection set`` and ``preview`` for a node on another machine: a flow run there, reviewed and shown here."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from cotenant.cli.result import Exit, OperationError, OperationResult
from cotenant.cli.review import ask

if TYPE_CHECKING:
    from cotenant.settings import Settings

__all__ = ["is_remote", "preview_remote", "remote_nodes", "set_remote"]

SET = "protection-set/protection-set"
PREVIEW = "protection-preview/protection-preview"
LOOK_EVERY_S = 1.0


def is_remote(in_force: Settings, node: str) -> bool:
    """A node that has no folder here, while this home belongs to a fleet; whether it exists, its server says."""
    from cotenant.cli.agents import local_nodes

    return node not in (in_force.node, *local_nodes(in_force.home)) and in_force.api_url is not None


def remote_nodes(in_force: Settings) -> list[str]:
    """Nodes of the fleet on other machines; none where this home belongs to no fleet.

    Raises:
        Unreachable: the fleet's server.
    """
    if in_force.api_url is None:
        return []
    from cotenant import fleet
    from cotenant.cli import fleet_link

    return [node for node in fleet.queues(fleet_link.connect(in_force).url) if is_remote(in_force, node)]


def preview_remote(in_force: Settings, node: str, text: str, *, of_fleet: bool) -> dict[str, Any]:
    """The agent's answer to ``section_preview``, asked by a flow run on the node's queue. Changes nothing.

    Raises:
        Refused: no such node; its agent refuses, or the flow run ended without an answer.
        Unreachable: the server, or the node's worker does not take it in time (it is then cancelled).
    """
    from cotenant import fleet
    from cotenant.cli import fleet_link
    from policies.refusal import Refused
    from tasks.section import PREVIEW_KEY

    url = fleet_link.connect(in_force).url
    flow_run = fleet.run_flow(url, PREVIEW, _asked(node, text, of_fleet), node)
    state = _wait(in_force, url, flow_run, node, ())
    seen = fleet.flow_answer(url, flow_run, PREVIEW_KEY)
    if seen is None:
        why = f"flow run {flow_run} ended {state['name']}: {state['message'] or 'it says no more'}"
        raise Refused("PREVIEW_FAILED", f"node {node}", why, f"look at it: {fleet.ui_link(url, flow_run)}")
    return dict(seen)


def _asked(node: str, text: str, of_fleet: bool) -> dict[str, Any]:
    return {"node": node, "section": text} | ({"fleet": True} if of_fleet else {})


def set_remote(
    in_force: Settings, node: str, text: str, what: str, *, yes: bool, of_fleet: bool = False
) -> OperationResult:
    """Start the flow on the node's queue, show what it would change, answer its review, and wait for the outcome.

    Raises:
        Refused: no such node.
        Unreachable: the server, or the node's worker does not take it in time (it is then cancelled).
        ReviewDeclined: the answer was no; nothing was changed.
    """
    from cotenant import fleet
    from cotenant.cli import fleet_link

    url = fleet_link.connect(in_force).url
    flow_run = fleet.run_flow(url, SET, _asked(node, text, of_fleet), node)
    state = _wait(in_force, url, flow_run, node, ("Suspended",))
    if not state["final"]:
        print(_review_text(url, flow_run), file=sys.stderr, flush=True)
        try:
            ask(
                f"Put this section in force on node {node}?",
                yes=yes,
                what=f"protection section of node {node}",
                again=f"cotenant protection set {node} {what} --yes",
            )
        except BaseException:
            fleet.approve(url, flow_run, "reject")
            raise
        fleet.approve(url, flow_run, "approve")
        state = _wait(in_force, url, flow_run, node, ())
    data = {"node": node, "flow_run_id": flow_run, "state": state["name"], "message": state["message"]}
    if state["type"] == "COMPLETED":
        return OperationResult(data, view=lambda shown: [str(shown["message"])])
    if state["name"] == "Refused":
        error = OperationError("SECTION_INVALID", f"node {node}", str(state["message"] or state["name"]), "correct it")
        return OperationResult(data, exit_code=Exit.REFUSED_INPUT, errors=[error])
    why = f"flow run {flow_run} ended {state['name']}: {state['message'] or 'it says no more'}"
    error = OperationError("SECTION_NOT_SET", f"node {node}", why, f"look at it: {fleet.ui_link(url, flow_run)}")
    return OperationResult(data, exit_code=Exit.OTHER_ANSWER, errors=[error])


def _wait(in_force: Settings, url: str, flow_run: str, node: str, names: tuple[str, ...]) -> dict[str, Any]:
    from cotenant import fleet
    from cotenant.cli.failures import Unreachable

    until, said = time.monotonic() + in_force.flow_start_s, ""
    while True:
        state = fleet.flow_state(url, flow_run)
        if state["final"] or state["name"] in names:
            return state
        # Why it waits is said by the node's worker, where there is one.
        words = f"{state['name']}: {state['message']}" if state["message"] else str(state["name"])
        if words != said:
            said = words
            print(f"node {node}, flow run {flow_run}: {words}", file=sys.stderr, flush=True)
        if time.monotonic() > until:
            fleet.cancel_flow(url, flow_run)
            why = f"its worker has not gone on with flow run {flow_run} for {in_force.flow_start_s:g} s ({words})"
            raise Unreachable(
                "NODE_SILENT", f"node {node}", f"{why}; it is cancelled", f"on its machine: cotenant node run {node}"
            )
        time.sleep(LOOK_EVERY_S)


def _review_text(url: str, flow_run: str) -> str:
    """The form is stored a moment after the run is suspended."""
    from cotenant import fleet

    until = time.monotonic() + 30.0
    while (text := fleet.review_text(url, flow_run)) is None and time.monotonic() < until:
        time.sleep(0.5)
    return text or f"what it changes cannot be shown here; read it at {fleet.ui_link(url, flow_run)}"
