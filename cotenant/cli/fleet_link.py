"""The command line's line to Prefect: is the server there, start a run's flow, follow it, answer a review."""

from __future__ import annotations

import base64
import http.client
import json
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cotenant.cli.agents import start_command
from cotenant.cli.failures import Unreachable
from cotenant.cli.queued import Queued, queued_runs
from cotenant.cli.result import OperationResult
from cotenant.cli.review import ask
from policies.explain import AWAITING

if TYPE_CHECKING:
    from cotenant.settings import Settings
    from policies.harness.spec import RunSpec

__all__ = ["AB_DEPLOYMENT", "Fleet", "answer_review", "connect", "server_answers", "start_server", "why_silent"]

AB_DEPLOYMENT = "ab-run/ab-run"
MEASURING = ("ab-run", "duty-sweep")
HEALTH_S = 3.0
OPEN_S = 10.0
# CANCELLING is on its way out, and a worker that is away would leave it so: it keeps nobody from starting.
OPEN = ("SCHEDULED", "PENDING", "RUNNING", "PAUSED")
MOST_OPEN = 200
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")


def server_answers(url: str) -> str | None:
    """None when the Prefect server behind this API address is well, else why not. Needs no Prefect import."""
    try:
        with _opener().open(_asked(f"{url}/health"), timeout=HEALTH_S) as answer:
            return None if answer.status == 200 else f"it answers with status {answer.status}"
    except urllib.error.HTTPError as error:
        if error.code == 401:
            return "it asks for a user and password: set COTENANT_PREFECT_AUTH_STRING, or join the fleet with --auth-string"
        return f"it answers with status {error.code}; is it a Prefect server?"
    except http.client.InvalidURL as error:
        return f"it is no address: {error}"
    except http.client.HTTPException:
        return "what answers there speaks no HTTP"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return str(getattr(reason, "strerror", None) or reason)


def start_server(settings: Settings) -> str:
    """What starts the Prefect server of this home: of one that joined a fleet it is on another machine."""
    if settings.prefect_api_url is not None:
        return "on the server's machine: cotenant up"
    return start_command(settings.home, "up")


def _asked(url: str, body: bytes | None = None) -> urllib.request.Request:
    """A request with the fleet's user and password, where there are any and the address is the fleet's."""
    from cotenant.settings import Settings

    headers = {"Content-Type": "application/json"} if body is not None else {}
    settings = Settings.from_env()
    if settings.prefect_auth_string is not None and settings.api_url is not None and url.startswith(settings.api_url):
        headers["Authorization"] = "Basic " + base64.b64encode(settings.prefect_auth_string.encode()).decode()
    return urllib.request.Request(url, body, headers)


def _opener() -> urllib.request.OpenerDirector:
    # A proxy of the environment has no business between two processes of one machine.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def why_silent(settings: Settings) -> str | None:
    """Why the settings' Prefect server is not to be had, or None. Another's server on our port is not ours."""
    from cotenant.fleet.server import PrefectServer

    url = settings.api_url
    if url is None:
        return "it has never been started in this home"
    why = server_answers(url)
    if why is None and settings.prefect_api_url is None and not PrefectServer(settings.home).is_ours():
        return "our server does not run, and another process answers on its port"
    return why


def connect(settings: Settings) -> Fleet:
    """The fleet behind the settings' API address.

    Raises:
        Unreachable: its server does not answer, or it is another's; names the command that starts it.
    """
    url = settings.api_url
    why = why_silent(settings)
    if url is None or why is not None:
        raise Unreachable(
            "SERVER_UNREACHABLE",
            f"Prefect server {url}" if url else "the Prefect server",
            str(why),
            start_server(settings),
        )
    return Fleet(url)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A Prefect server that answered at this API address."""

    url: str

    def start_ab(self, spec: RunSpec, reviewed_by: str) -> tuple[str, str]:
        """Queue the run on its node; ``reviewed_by`` has seen and agreed to its plan.

        Returns:
            The flow run's id, and the name that the run will have with the agent.
        """
        from cotenant import fleet
        from policies.harness.names import run_name

        parameters = spec.model_dump() | {"reviewed": True, "reviewed_by": reviewed_by}
        flow_run = fleet.run_flow(self.url, AB_DEPLOYMENT, parameters, spec.node)
        return flow_run, run_name(flow_run)

    def ui_link(self, flow_run: str) -> str:
        from cotenant import fleet

        return fleet.ui_link(self.url, flow_run)

    def open_runs(self) -> list[Queued]:
        """Flow runs that measure, or will, that are due and not final, oldest first. A schedule's later ones are not due.

        Raises:
            Unreachable: the server does not answer, or not in a form that can be read.
        """
        wanted = {
            "flows": {"name": {"any_": list(MEASURING)}},
            "flow_runs": {
                "state": {"type": {"any_": list(OPEN)}},
                "expected_start_time": {"before_": datetime.now(UTC).isoformat()},
            },
            "sort": "EXPECTED_START_TIME_ASC",
            "limit": MOST_OPEN,
        }
        try:
            return [
                Queued(
                    str(raw["id"]),
                    str(raw["state"]["type"]),
                    str(raw["state"]["name"]),
                    raw.get("expected_start_time"),
                    raw.get("parameters") or {},
                )
                for raw in self._flow_runs(wanted)
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(error) from error

    def awaiting(self, node: str) -> list[dict[str, Any]]:
        """``{flow_run_id, name, message, code, why, remedy}`` of flow runs that the node's worker has put off, next first.

        Raises:
            Unreachable: as ``open_runs``.
        """
        from policies.explain import awaiting_parts

        wanted = {
            "flow_runs": {"state": {"name": {"any_": [AWAITING]}}},
            "sort": "EXPECTED_START_TIME_ASC",
            "limit": MOST_OPEN,
        }
        found = []
        try:
            for raw in self._flow_runs(wanted):
                message = str(raw["state"].get("message") or "")
                parts = awaiting_parts(message) or {
                    "node": raw.get("work_queue_name"),
                    "code": "",
                    "why": message,
                    "remedy": "",
                }
                if parts.pop("node") == node:
                    found.append({"flow_run_id": str(raw["id"]), "name": raw.get("name"), "message": message} | parts)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(error) from error
        return found

    def _flow_runs(self, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        request = _asked(f"{self.url}/flow_runs/filter", json.dumps(wanted).encode())
        try:
            with _opener().open(request, timeout=OPEN_S) as answer:
                return list(json.load(answer))
        except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> Unreachable:
        why = f"it did not say what is queued: {error}"
        return Unreachable("SERVER_UNREACHABLE", f"Prefect server {self.url}", why, "cotenant status")

    def cancel(self, flow_run: str) -> None:
        from cotenant import fleet

        fleet.cancel_flow(self.url, flow_run)

    def cancel_ended(self, flow_run: str) -> None:
        from cotenant import fleet

        fleet.cancel_ended(self.url, flow_run)

    def why_ended(self, flow_run: str) -> str | None:
        """Name and message of a final state; None while the flow run may still go on, or the server does not say."""
        state = self.state_of(flow_run)
        return state["words"] if state is not None and state["final"] else None

    def state_of(self, flow_run: str) -> dict[str, Any] | None:
        """``{words, final}``: name and message of its state; None where the server does not say.

        Asked while a run is watched, so it costs one small request and no Prefect client.
        """
        try:
            with _opener().open(_asked(f"{self.url}/flow_runs/{flow_run}"), timeout=HEALTH_S) as answer:
                state = json.load(answer).get("state") or {}
        except urllib.error.HTTPError as error:
            return {"words": "the server no longer knows it", "final": True} if error.code == 404 else None
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return None  # the server is away: the run goes on without it, and the agent tells of it
        if not state.get("name"):
            return None
        words = f"{state['name']}: {state['message']}" if state.get("message") else str(state["name"])
        return {"words": words, "final": state.get("type") in FINAL}


def answer_review(settings: Settings, run: str, *, approved: bool, yes: bool) -> OperationResult:
    """Answer a run (or flow run) that waits for its review, after showing the plan it asks about."""
    from cotenant import fleet

    url = connect(settings).url
    flow_run = _flow_run_of(settings, run)
    state = fleet.flow_state(url, flow_run)
    if state["final"]:
        from policies.refusal import Refused

        raise Refused(
            "REVIEW_NOT_ASKED", f"flow run {flow_run}", f"it has ended ({state['name']})", "cotenant protection ab list"
        )
    if approved:
        _show_asked(url, flow_run)
        ask(
            "Let this run start?",
            yes=yes,
            what=f"the review of flow run {flow_run}",
            again=f"cotenant protection ab approve {flow_run} --yes",
        )
    fleet.approve(url, flow_run, "approve" if approved else "reject")
    words = (
        "approved: it starts as soon as the node's worker takes it"
        if approved
        else "declined: it ends without having run"
    )
    return OperationResult(
        {"flow_run_id": flow_run, "decision": "approve" if approved else "reject", "ui": fleet.ui_link(url, flow_run)},
        view=lambda data: [f"flow run {data['flow_run_id']} is {words}"],
    )


def _flow_run_of(settings: Settings, name: str) -> str:
    """The flow run behind a run's name; a flow run's own id stays as it is."""
    from policies.refusal import Refused

    if not name.startswith(("run-", "sweep-")):
        return name
    found = next((entry for entry in queued_runs(settings) if entry.run == name), None)
    if found is None:
        raise Refused("REVIEW_NOT_ASKED", f"run {name}", "no run of this name waits", "cotenant protection ab list")
    return found.flow_run_id


def _show_asked(url: str, flow_run: str) -> None:
    """The plan that the suspended run asks about, as the Prefect UI shows it; else where to read it."""
    from cotenant import fleet

    text = fleet.review_text(url, flow_run)
    print(text or f"its plan cannot be shown here; read it at {fleet.ui_link(url, flow_run)}", file=sys.stderr)
