"""The command line's line to Prefect: is the server there, start a run's flow, follow it, answer a review."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cotenant.cli.agents import start_command
from cotenant.cli.failures import Unreachable
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from cotenant.cli.agents import Agent
    from cotenant.settings import Settings
    from policies.harness.spec import RunSpec

__all__ = ["AB_DEPLOYMENT", "Fleet", "answer_review", "connect", "server_answers"]

AB_DEPLOYMENT = "ab-run/ab-run"
HEALTH_S = 3.0


def server_answers(url: str) -> str | None:
    """None when the Prefect server behind this API address is well, else why not. Needs no Prefect import."""
    # A proxy of the environment has no business between two processes of one machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=HEALTH_S) as answer:
            return None if answer.status == 200 else f"it answers with status {answer.status}"
    except urllib.error.HTTPError as error:
        return f"it answers with status {error.code}; is it a Prefect server?"
    except OSError as error:
        return str(getattr(error, "reason", None) or error)


def connect(settings: Settings) -> Fleet:
    """The fleet behind the settings' API address.

    Raises:
        Unreachable: its server does not answer; names the command that starts it.
    """
    why = server_answers(settings.prefect_api_url)
    if why is not None:
        raise Unreachable(
            "SERVER_UNREACHABLE",
            f"Prefect server {settings.prefect_api_url}",
            why,
            f"start it: {start_command(settings.home, 'up')}",
        )
    return Fleet(settings)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A Prefect server that answered."""

    settings: Settings

    @property
    def url(self) -> str:
        return self.settings.prefect_api_url

    def start_ab(self, spec: RunSpec) -> str:
        """Queue the run on its node; a person has seen and agreed to its plan. Gives the flow run's id."""
        from cotenant import fleet

        parameters = {"spec": spec.model_dump(), "reviewed": True}
        return str(fleet.run_flow(self.url, AB_DEPLOYMENT, parameters, spec.node))

    def ui_link(self, flow_run: str) -> str:
        from cotenant import fleet

        return str(fleet.ui_link(self.url, flow_run))

    def find(self, agent: Agent, flow_run: str) -> str | None:
        """The agent's name for the run that this flow run drives, once it has begun."""
        status = agent.ask("run_status")
        if status is not None and status.get("flow_run_id") == flow_run:
            return str(status["run"])
        for row in agent.ask("run_list", limit=5):
            if agent.ask("run_show", run=row["run"]).get("flow_run_id") == flow_run:
                return str(row["run"])
        return None

    def why_ended(self, flow_run: str) -> str | None:
        """Name and message of a final state; None while the flow run may still go on."""
        from cotenant import fleet

        state: Any = fleet.flow_state(self.url, flow_run)
        if not state["final"]:
            return None
        return f"{state['name']}: {state['message']}" if state.get("message") else str(state["name"])

    def run_id(self, flow_run: str) -> str | None:
        return None


def answer_review(settings: Settings, run: str, *, approved: bool, yes: bool) -> OperationResult:
    """Resume a suspended run with yes or no, after showing what it asks."""
    raise NotImplementedError
