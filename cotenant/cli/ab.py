"""``protection ab``: measuring what fleet work costs a protected program. Status, list, abort, approve stand here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli import ab_decide, ab_show, ab_start
from cotenant.cli.command import command, group
from cotenant.cli.options import NodeOption, OptionalNodeArg, RunArg, YesFlag, agent_of, settings
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["register"]


def register(protection: typer.Typer) -> None:
    ab = group("Measure what fleet work costs a protected program, with the work on and off in random order.")
    protection.add_typer(ab, name="ab")
    ab_start.register(ab)
    ab_show.register(ab)
    ab_decide.register(ab)

    @command(ab, "status", example="cotenant protection ab status local\ncotenant protection ab status local --watch")
    def status(
        node: OptionalNodeArg = None,
        watch: Annotated[
            bool, typer.Option("--watch", help="Stay until the run ends; Ctrl-C leaves it going.")
        ] = False,
    ) -> OperationResult:
        """The run that measures on the node now: its block, window, and what its looks said so far."""
        agent = agent_of(node)
        now = agent.ask("run_status")
        if now is None or not watch:
            messages = (
                [] if now else [f"no run measures on node {agent.node}; see earlier ones: cotenant protection ab list"]
            )
            return OperationResult(now, messages=messages, view=_status)
        return ab_start.follow(settings(), agent, now["run"], lambda: None)

    @command(ab, "list", example="cotenant protection ab list")
    def list_runs(
        node: NodeOption = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many runs.")] = 50,
    ) -> OperationResult:
        """Runs, newest first: the node's own journal where its agent runs, the store else."""
        return _list_runs(node, limit)

    @command(ab, "abort", example="cotenant protection ab abort ab-3f2c")
    def abort(run: RunArg) -> OperationResult:
        """End a run now: its block ends, hold and grant end, the work under test goes back under protection."""
        from cotenant.cli.runs import owner_of

        record = owner_of(settings(), run).ask("run_abort", run=run)
        return OperationResult(
            {key: record.get(key) for key in ("run", "state", "ending", "reason", "ended_at")},
            view=lambda data: [
                f"run {data['run']} is {data['ending']}; its report: cotenant protection ab show {data['run']}"
            ],
        )

    @command(ab, "approve", example="cotenant protection ab approve 6f0f2c1e-8f0e-4c52-9d55-0d0a3a0f7d11")
    def approve(
        run: Annotated[str, typer.Argument(metavar="RUN", help="The run, or its flow run, that waits for review.")],
        decline: Annotated[
            bool, typer.Option("--decline", help="Answer no: the run ends without having started.")
        ] = False,
        yes: YesFlag = False,
    ) -> OperationResult:
        """Answer a run that waits for review (one started from the Prefect UI, or by a schedule)."""
        from cotenant.cli.fleet_link import answer_review

        return answer_review(settings(), run, approved=not decline, yes=yes)


def _list_runs(node: str | None, limit: int) -> OperationResult:
    from cotenant.cli.agents import Agent
    from cotenant.cli.failures import Unreachable
    from cotenant.cli.runs import store_engine

    in_force = settings()
    name = node or in_force.node
    try:
        rows = Agent(in_force, name).ask("run_list", limit=limit)
        return OperationResult([{"node": name} | row for row in rows], view=_list)
    except Unreachable as silent:
        engine = store_engine(in_force)
        if engine is None:
            raise
        from cotenant import store

        try:
            rows = store.list_runs(engine, node=node, limit=limit)
        finally:
            engine.dispose()
        return OperationResult(rows, messages=[f"from the store, since {silent}"], view=_list)


def _list(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    if not rows:
        yield "no runs yet; start one: cotenant protection ab start NODE --rule RULE"
        return
    yield table(
        ("run", "node", "rule", "work", "duty", "kind", "ending", "started", "ended"),
        (
            (
                row["run"],
                row["node"],
                row["rule"],
                row["work"],
                row.get("duty"),
                row.get("kind"),
                row.get("ending") or row["state"],
                (row.get("started_at") or "")[:16],
                (row.get("ended_at") or "")[:16],
            )
            for row in rows
        ),
    )


def _status(status: dict[str, Any]) -> Iterator[str]:
    from cotenant.cli.watching import look_words, now_words

    spec = status["spec"]
    duty = "uncapped" if spec.get("duty") is None else f"duty {spec['duty']:g}"
    yield f"run {status['run']}: rule {spec['rule']}, work {spec['work']}, {duty}"
    yield f"  {now_words(status)}"
    for look in status["looks"]:
        yield f"  {look_words(look)}"
