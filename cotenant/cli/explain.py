"""``explain``: why the work of a node, or one job, runs or waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.options import NodeOption, agent_of, settings
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["register"]

ThingArg = Annotated[
    str | None,
    typer.Argument(metavar="[NODE|JOB]", help="A node by name, or a job by number; this machine's node by default."),
]


def register(app: typer.Typer) -> None:
    @command(app, "explain", example="cotenant explain local\ncotenant explain 812\ncotenant explain 812 --node local")
    def explain(thing: ThingArg = None, node: NodeOption = None) -> OperationResult:
        """Why work runs or waits, in codes with remedies: of a node and all its jobs, or of one job."""
        if thing is not None and thing.isdecimal():
            return OperationResult(agent_of(node).ask("explain", job=int(thing)), view=_job)
        agent = agent_of(thing if thing is not None else node)
        found = agent.ask("explain")
        waiting, messages = _awaiting(agent.node)
        return OperationResult(found | {"flow_runs": waiting}, messages=messages, view=_node)


def _awaiting(node: str) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """Flow runs that the node's worker has put off, as Prefect has them; None where that is unknown, and why."""
    from cotenant.cli import fleet_link
    from cotenant.cli.failures import Unreachable

    in_force = settings()
    if in_force.api_url is None:
        return [], []
    try:
        return fleet_link.connect(in_force).awaiting(node), []
    except Unreachable as silent:
        return None, [f"which flow runs wait is unknown: {silent}"]


def _node(data: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    yield f"{data['node']}: mode {data['mode']}, gpu_jobs {data['gpu_jobs']}" + (
        ", paused by its owner" if data["pause"] else ""
    )
    for held in data.get("unknown_sections") or []:
        yield f"all fleet work is held: {held['code']}: {held['why']}; next: {held['remedy']}"
    memory = data.get("memory") or {}
    yield f"memory: {memory.get('level')}: {memory.get('why')}"
    if not data["admits"]:
        yield f"nothing is admitted: {data['admits_why']}"
    if data.get("run"):
        yield f"run {data['run']} is measuring"
    if flows := data.get("flows"):
        yield f"flow runs wait: {flows['code']}: {flows['why']}; next: {flows['remedy']}"
    for waiting in data.get("flow_runs") or []:
        yield f"flow run {waiting['flow_run_id']} is AwaitingNode: {waiting['message']}"
    for limit in data["limits"]:
        yield f"limit: {limit}"
    if rules := data["rules"]:
        yield ""
        yield table(
            ("rule", "state", "does now"),
            ((rule["rule"], rule["state"], "\n".join(rule["does"]) or "nothing") for rule in rules),
        )
    if jobs := data["jobs"]:
        yield ""
        columns = ("job", "work", "state", "code", "why", "remedy")
        yield table(columns, (row for job in jobs for row in _job_rows(job)), keep=("remedy",))
    else:
        yield "no job runs or waits"


def _job_rows(job: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    name = f"{job['module'].rpartition('.')[2]}/{job['stage']}"
    if not job["reasons"]:
        yield job["job"], name, job["words"], None, None, None
    for at, reason in enumerate(job["reasons"]):
        first = (job["job"], name, job["state"]) if at == 0 else ("", "", "")
        yield *first, reason["code"], reason["why"], reason["remedy"]


def _job(job: dict[str, Any]) -> Iterator[RenderableType]:
    yield f"job {job['job']} ({job['module'].rpartition('.')[2]}/{job['stage']}): {job['words'].partition(':')[0]}"
    for reason in job["reasons"]:
        yield f"  {reason['code']} ({reason['severity']}): {reason['why']}"
        yield f"    {reason['means']}"
        if reason["remedy"]:
            yield f"    remedy: {reason['remedy']}"
