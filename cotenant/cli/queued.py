"""Runs that somebody asked for and that the node's agent may not know yet: flow runs of ``ab-run`` that are not final.

A run begins with its agent when the node's worker has started its flow, which takes up to minutes. Until then Prefect
alone knows it, whoever asked for it: this command line, the Prefect UI or a schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from policies.harness.names import run_name, sweep_name

if TYPE_CHECKING:
    from cotenant.cli.agents import Agent
    from cotenant.settings import Settings

__all__ = ["Queued", "not_begun", "queued_runs", "refuse_second"]


@dataclass(frozen=True, slots=True)
class Queued:
    """One flow run that is not final; ``state_type`` as Prefect has it (SCHEDULED, PENDING, RUNNING, PAUSED)."""

    flow_run_id: str
    state_type: str
    state_name: str
    at: str | None
    parameters: Mapping[str, Any]

    @property
    def is_sweep(self) -> bool:
        return "levels" in self.parameters

    @property
    def run(self) -> str:
        """The run's name with the agent; of a sweep its own."""
        return sweep_name(self.flow_run_id) if self.is_sweep else run_name(self.flow_run_id)

    @property
    def node(self) -> str:
        return str(self.parameters.get("node", ""))

    @property
    def state(self) -> str:
        if self.state_type == "PAUSED":
            return "waits for review"
        return "starting" if self.state_type in ("PENDING", "RUNNING") else "queued"

    @property
    def words(self) -> str:
        """What it waits for."""
        flow = f"flow run {self.flow_run_id}"
        name = self.run if self.is_sweep else f"run {self.run}"
        if self.state == "waits for review":
            return f"{name} waits for review: cotenant protection ab approve {self.run}  ({flow})"
        if self.state == "starting":
            if self.is_sweep:
                return f"{name} has begun ({flow})"
            return f"{name} is starting: the node's worker has taken it ({flow})"
        return f"{name} is queued: waits for the node's worker ({flow})"

    def as_dict(self) -> dict[str, Any]:
        """Named as the agent's ``run_list`` names them, where it has the same."""
        asked = {key: self.parameters.get(key) for key in ("rule", "work", "duty", "kind")}
        return asked | {
            "run": self.run,
            "node": self.node,
            "state": self.state,
            "ending": None,
            "started_at": None,
            "ended_at": None,
            "flow_run_id": self.flow_run_id,
            "flow_state": self.state_name,
            "queued_at": self.at,
        }


def queued_runs(settings: Settings, node: str | None = None) -> list[Queued]:
    """Open flow runs of this node (of all nodes for None), oldest first; none where no server was ever started.

    Raises:
        Unreachable: the server does not answer, so what is queued is unknown.
    """
    from cotenant.cli import fleet_link

    if settings.api_url is None:
        return []
    return [entry for entry in fleet_link.connect(settings).open_runs() if node in (None, entry.node)]


def not_begun(agent: Agent, entries: Iterable[Queued]) -> list[Queued]:
    """Those that this agent does not know yet."""
    from policies.refusal import Refused

    found = []
    for entry in entries:
        if entry.is_sweep and entry.state == "starting":
            continue  # its levels are runs of their own
        try:
            agent.ask("run_show", run=entry.run)
        except Refused as refused:
            if refused.code != "RUN_UNKNOWN":
                raise
            found.append(entry)
    return found


def refuse_second(entries: Iterable[Queued], node: str) -> None:
    """Nothing, or ``Refused`` naming the run of this node that has not ended.

    Two runs on one node would hold each other's work; the second would fail when its turn comes, hours later.
    """
    from policies.refusal import Refused

    first = next((entry for entry in entries if entry.node == node), None)
    if first is not None:
        raise Refused(
            "RUN_LOCKED",
            f"node {node}",
            f"another run has not ended: {first.words}",
            f"wait for it: cotenant protection ab status {node} --watch; or end it: cotenant protection ab abort {first.run}",
        )
