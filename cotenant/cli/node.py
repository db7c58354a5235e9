"""``node``: the agent and worker of one node, and what it does now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command, group
from cotenant.cli.options import NodeArg, agent_of, settings
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["register", "state_parts"]


def register(app: typer.Typer) -> None:
    nodes = group("Nodes: machines with an agent and a worker.")
    app.add_typer(nodes, name="node")

    @command(nodes, "run", example="cotenant node run local")
    def run(node: NodeArg) -> OperationResult:
        """The node's agent and worker, in the foreground, until Ctrl-C. A piece that dies is started again."""
        from cotenant.cli.foreground import stay_up

        return stay_up(settings(), node, kind="node")

    @command(
        nodes,
        "join",
        example="cotenant node join mac-01 --server http://10.0.0.2:4200\n"
        "cotenant node join mac-01 --server https://fleet.example --auth-string ops:secret --store postgresql://c@db/c",
    )
    def join_fleet(
        node: NodeArg,
        server: Annotated[str, typer.Option("--server", metavar="URL", help="The fleet's Prefect server.")],
        auth_string: Annotated[
            str | None,
            typer.Option(
                "--auth-string",
                envvar="COTENANT_PREFECT_AUTH_STRING",
                show_envvar=True,
                help="USER:PASSWORD of the server, where it asks for one.",
            ),
        ] = None,
        store: Annotated[
            str | None,
            typer.Option(
                "--store", envvar="COTENANT_STORE_URL", show_envvar=True, help="The fleet's store; its own else."
            ),
        ] = None,
    ) -> OperationResult:
        """Make this machine's node part of a fleet. Kept in the home's fleet.json; `cotenant node run NODE` starts it."""
        from cotenant.cli.join import join

        return join(settings(), node, server, auth_string, store)

    @command(nodes, "list", example="cotenant node list --json\ncotenant node list --fleet")
    def list_nodes(
        fleet: Annotated[bool, typer.Option("--fleet", help="All nodes that the server and the store know.")] = False,
    ) -> OperationResult:
        """Nodes that have a folder on this machine, and whether their agents answer."""
        if fleet:
            from cotenant.cli.fleet_view import fleet_nodes

            known, said = fleet_nodes(settings())
            return OperationResult(known, messages=said, view=_fleet_list)
        from cotenant.cli.agents import Agent, local_nodes
        from cotenant.cli.failures import Unreachable

        in_force = settings()
        rows: list[dict[str, Any]] = []
        for name in local_nodes(in_force.home):
            try:
                hello = Agent(in_force, name).ask("hello", _timeout_s=3.0)
                rows.append({"node": name, "state": "running"} | hello)
            except Unreachable as error:
                rows.append(
                    {"node": name, "state": "not running", "why": error.error.why, "remedy": error.error.remedy}
                )
        return OperationResult(rows, view=_list)

    @command(nodes, "show", example="cotenant node show local")
    def show(node: NodeArg) -> OperationResult:
        """One node: its mode, active rules, sources, units of fleet work, memory, and last codes."""
        agent = agent_of(node)
        status = agent.ask("status")
        entries = agent.ask("timeline", before_seq=int(status["journal"]["last_seq"]) + 1, limit=10)["entries"]
        return OperationResult(status | {"last_entries": entries}, view=_show)


def _fleet_list(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table, when

    if not rows:
        yield "no nodes yet; on its machine: cotenant node join NAME --server URL"
        return
    yield table(
        ("node", "worker", "last seen", "journal copied", "entries"),
        (
            (
                row["node"],
                row["worker"],
                when(row["last_seen"]),
                when(row["mirrored_at"]),
                row["last_seq"],
            )
            for row in rows
        ),
    )


def _list(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    if not rows:
        yield "no nodes on this machine yet; start one: cotenant up"
        return
    yield table(
        ("node", "state", "pid", "up", "section", "why", "next"),
        (
            (
                row["node"],
                row["state"],
                row.get("pid"),
                _age(row.get("uptime_s")),
                row.get("section_version"),
                row.get("why") or "",
                row.get("remedy") or "",
            )
            for row in rows
        ),
        keep=("next",),
    )


def _age(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s" if minutes else f"{left} s"


def state_parts(status: dict[str, Any]) -> Iterator[RenderableType]:
    """What a node does now: one table a topic."""
    from cotenant.cli.render import fields, table

    yield fields(
        [
            (
                "node",
                f"{status['node']}, agent {status['version']} (pid {status['pid']}), up {_age(status['uptime_s'])}",
            ),
            ("section", f"version {status['section_version']}, mode {status['mode']}, gpu_jobs {status['gpu_jobs']}"),
            ("duty counts on", status["duty_device"]),
            ("owner's pause", "on: no fleet work at all" if status["pause"] else "off"),
            *(
                ("held", f"no fleet work at all: {held['code']}: {held['why']}; next: {held['remedy']}")
                for held in status.get("unknown_sections") or []
            ),
            ("memory", _memory_words(status.get("memory") or {})),
            ("run", _run_words(status.get("run"))),
        ]
    )
    if (budget := status.get("duty")) is not None:
        from policies.duty_text import duty_text, has_budget

        if has_budget(budget):
            yield ""
            yield duty_text(budget).rstrip("\n")
    if rules := status.get("rules"):
        yield ""
        keys = [key for key in rules[0] if not isinstance(rules[0][key], (dict,))]
        yield table(keys, ([_short(rule.get(key)) for key in keys] for rule in rules))
    if sources := status.get("sources"):
        from cotenant.cli.protection import sources_view

        yield ""
        yield from sources_view(sources)
    if jobs := status.get("jobs"):
        from cotenant.cli.job import jobs_view

        yield ""
        yield from jobs_view(jobs)


def _memory_words(memory: dict[str, Any]) -> str | None:
    """``level clear; 23.7 of 25.3 GB available``, a part for each pool; None where nothing is known."""
    if not memory:
        return None
    level, why = memory.get("level") or "unknown", memory.get("why")
    parts = [f"level {level}" if level == "clear" or not why else f"level {level} ({why})"]
    pools = memory.get("pools") or []
    for pool in pools:
        name = f"{pool['name']}: " if len(pools) > 1 else ""
        free, total = _gb(pool.get("available_bytes")), _gb(pool.get("total_bytes"))
        parts.append(f"{name}{free} of {total} GB available")
    if memory.get("swap_used_bytes"):
        parts.append(f"{_gb(memory['swap_used_bytes'])} GB of swap used")
    return "; ".join(parts)


def _gb(count_bytes: float | None) -> str:
    return "unknown" if count_bytes is None else f"{count_bytes / 1e9:.1f}"


def _short(value: Any) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(str(item.get("pid", item) if isinstance(item, dict) else item) for item in value[:8]) or None
    return value


def _run_words(run: dict[str, Any] | None) -> str:
    if not run:
        return "none"
    from cotenant.cli.watching import now_words

    return f"{run['run']}: {now_words(run)}"


def _show(status: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.timeline import entry_line

    yield from state_parts(status)
    if entries := status.get("last_entries"):
        yield ""
        yield from (entry_line(entry) for entry in entries)
