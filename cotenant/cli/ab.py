"""``protection ab``: measuring what fleet work costs a protected program. Status, list, abort, approve stand here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli import ab_decide, ab_show, ab_start, ab_sweep
from cotenant.cli.command import command, group
from cotenant.cli.options import NodeOption, OptionalNodeArg, RunArg, YesFlag, agent_of, settings
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cotenant.cli.agents import Agent
    from cotenant.settings import Settings

__all__ = ["register"]


def register(protection: typer.Typer) -> None:
    ab = group("Measure what fleet work costs a protected program, with the work on and off in random order.")
    protection.add_typer(ab, name="ab")
    ab_start.register(ab)
    ab_show.register(ab)
    ab_decide.register(ab)
    ab_sweep.register(ab)

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
        if now is None:
            return _not_measuring(agent, watch)
        if not watch:
            return OperationResult(now, view=_status)
        return ab_start.follow(settings(), agent, now["run"], lambda: None)

    @command(ab, "list", example="cotenant protection ab list")
    def list_runs(
        node: NodeOption = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many runs.")] = 50,
        fleet: Annotated[bool, typer.Option("--fleet", help="All nodes' runs, from the fleet's store.")] = False,
    ) -> OperationResult:
        """Runs, newest first: the node's own journal where its agent runs, the store else."""
        return _list_fleet(node, limit) if fleet else _list_runs(node, limit)

    @command(ab, "abort", example="cotenant protection ab abort run-3f2c9b1e04")
    def abort(run: RunArg) -> OperationResult:
        """End a run now: its block ends, hold and grant end, the work under test goes back under protection."""
        from cotenant.cli.failures import Unreachable
        from cotenant.cli.runs import owner_of
        from policies.refusal import Refused

        try:
            owner = owner_of(settings(), run)
        except (Refused, Unreachable) as unknown:
            return _cancel_queued(run, unknown)
        record = owner.ask("run_abort", run=run)
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


def _not_measuring(agent: Agent, watch: bool) -> OperationResult:
    """What waits to measure on this node, where nothing measures."""
    from cotenant.cli import fleet_link
    from cotenant.cli.failures import Unreachable
    from cotenant.cli.queued import not_begun, queued_runs

    nothing = f"no run measures on node {agent.node}"
    earlier = "see earlier ones: cotenant protection ab list"
    try:
        waiting = not_begun(agent, queued_runs(settings(), agent.node))
    except Unreachable as silent:
        return OperationResult(messages=[f"{nothing}; whether one is queued is unknown: {silent}", earlier])
    if not waiting:
        return OperationResult(messages=[f"{nothing}; {earlier}"])
    first, *others = waiting
    if not watch:
        return OperationResult(
            first.as_dict(), messages=[entry.words for entry in others], view=lambda data: [first.words]
        )
    print(first.words, file=sys.stderr, flush=True)
    fleet = fleet_link.connect(settings())
    return ab_start.follow(settings(), agent, first.run, lambda: fleet.why_ended(first.flow_run_id))


def _cancel_queued(run: str, unknown: Exception) -> OperationResult:
    """Cancel a run that no agent tells of; where Prefect does not either, ``unknown`` is raised.

    ``run`` may be the flow run's id.
    """
    from cotenant.cli import fleet_link
    from cotenant.cli.failures import Unreachable
    from cotenant.cli.queued import queued_runs

    found = next((entry for entry in queued_runs(settings()) if run in (entry.run, entry.flow_run_id)), None)
    if found is None:
        raise unknown
    fleet_link.connect(settings()).cancel(found.flow_run_id)
    # An agent that is away may have begun it: it hears of the end when its flow cannot go on.
    begun = f"whether it had begun is unknown: {unknown}" if isinstance(unknown, Unreachable) else "it had not begun"
    return OperationResult(
        found.as_dict() | {"state": "cancelled"},
        view=lambda data: [f"run {data['run']} is cancelled; {begun} (flow run {data['flow_run_id']})"],
    )


def _list_fleet(node: str | None, limit: int) -> OperationResult:
    from cotenant import store
    from cotenant.cli.runs import NO_STORE, of_store

    rows = of_store(settings(), lambda engine: store.list_runs(engine, node=node, limit=limit))
    return OperationResult(rows or [], messages=[NO_STORE] if rows is None else [], view=_list)


def _list_runs(node: str | None, limit: int) -> OperationResult:
    from cotenant.cli.agents import Agent
    from cotenant.cli.failures import Unreachable
    from cotenant.cli.runs import of_store

    in_force = settings()
    name = node or in_force.node
    try:
        rows = Agent(in_force, name).ask("run_list", limit=limit)
        queued, messages = _queued_rows(in_force, name, {row["run"] for row in rows})
        return OperationResult([*queued, *({"node": name} | row for row in rows)], messages=messages, view=_list)
    except Unreachable as silent:
        from cotenant import store

        rows = of_store(in_force, lambda engine: store.list_runs(engine, node=node, limit=limit))
        if rows is None:
            raise
        return OperationResult(rows, messages=[f"from the store, since {silent}"], view=_list)


def _queued_rows(in_force: Settings, node: str, known: set[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of runs that have not begun, newest first, and what there is to say about them."""
    from cotenant.cli.failures import Unreachable
    from cotenant.cli.queued import queued_runs

    try:
        waiting = [entry for entry in queued_runs(in_force, node) if entry.run not in known]
    except Unreachable as silent:
        return [], [f"without runs that are queued: {silent}"]
    return [entry.as_dict() for entry in reversed(waiting)], []


def _list(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table, when

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
                (row.get("ending") or row["state"]) + (" (damaged)" if row.get("damaged") else ""),
                when(row.get("started_at")),
                when(row.get("ended_at")),
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
