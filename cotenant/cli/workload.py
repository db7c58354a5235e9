"""``workload``: fleet processes that do not end by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command, group
from cotenant.cli.options import NodeOption, agent_of
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["register"]

WorkloadArg = Annotated[
    str, typer.Argument(metavar="MODULE[/NAME]", help="A module's service; the name where it has several.")
]


def register(app: typer.Typer) -> None:
    workloads = group("Fleet servers: kept going beside the protected program, held and limited like jobs.")
    app.add_typer(workloads, name="workload")

    @command(workloads, "list", example="cotenant workload list")
    def list_workloads(node: NodeOption = None) -> OperationResult:
        """Started workloads of the node, with what each may do now."""
        return OperationResult(agent_of(node).ask("workload_list"), view=_list)

    @command(workloads, "start", example="cotenant workload start mymodule\ncotenant workload start mymodule/server")
    def start(workload: WorkloadArg, node: NodeOption = None) -> OperationResult:
        """Start a workload, and start it again whenever it ends, until it is stopped. One that is started stays as it is."""
        return OperationResult(agent_of(node).ask("workload_start", **_named(workload)), view=lambda one: _list([one]))

    @command(workloads, "stop", example="cotenant workload stop mymodule/server")
    def stop(workload: WorkloadArg, node: NodeOption = None) -> OperationResult:
        """Stop a workload within its grace; it is not started again."""
        return OperationResult(agent_of(node).ask("workload_stop", **_named(workload)), view=lambda one: _list([one]))


def _named(text: str) -> dict[str, Any]:
    module, _, service = text.partition("/")
    return {"module": module} | ({"service": service} if service else {})


def _list(workloads: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table, when

    if not workloads:
        yield "no workload is started"
        return
    yield table(
        ("workload", "state", "why", "duty", "share", "restarts", "since"),
        (
            (
                one["workload"],
                one.get("outcome") or one["state"] if one["state"] == "ended" else one["state"],
                ": ".join(part for part in (one.get("code"), one.get("reason")) if part) or None,
                one.get("duty"),
                one.get("share"),
                one["restarts"],
                when(one.get("started_at") or one.get("queued_at")),
            )
            for one in workloads
        ),
    )
