"""``protection duty``: the device duty of each node, held and measured."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.options import OptionalNodeArg, agent_of, settings
from cotenant.cli.result import Exit, OperationError, OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["register"]

# The agent's own period: nothing changes more often.
WATCH_EVERY_S = 2.0
NO_BUDGET = 'no node has a gpu_duty budget now: one needs gpu_jobs = "certified" and a rule that holds device work back'


def register(protection: typer.Typer) -> None:
    @command(
        protection,
        "duty",
        example="cotenant protection duty local\ncotenant protection duty --watch\ncotenant protection duty --fleet",
        lines_with="watch",
    )
    def duty(
        node: OptionalNodeArg = None,
        watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")] = False,
        fleet: Annotated[
            bool, typer.Option("--fleet", help="All nodes in one table, as each was copied last, from the store.")
        ] = False,
        as_json: bool = False,
    ) -> OperationResult:
        """The GPU budget beside protected programs: its ceiling, baselines, and each unit's duty, asked and measured.

        Without a node every node of this machine that has a budget. With --watch and --json, one object a line; the last
        is the envelope that other commands answer with.
        """
        if fleet:
            return _fleet(node, watch=watch)
        if not watch:
            views, errors = _views(node)
            return OperationResult(
                {"nodes": views},
                exit_code=Exit.UNREACHABLE if errors else Exit.DONE,
                errors=errors,
                messages=_why_none(views, errors),
                view=_text,
            )
        try:
            _watch(node, as_json)
        except KeyboardInterrupt:
            pass
        return OperationResult()


def _fleet(node: str | None, *, watch: bool) -> OperationResult:
    from policies.refusal import Refused

    if watch:
        why = "the store has each node's duty as of half a minute ago or more, so there is nothing to watch"
        raise Refused(
            "USAGE", "--fleet --watch", why, "watch the nodes of this machine: cotenant protection duty --watch"
        )
    from cotenant import store
    from cotenant.cli.runs import NO_STORE, of_store

    rows = of_store(settings(), lambda engine: store.list_duties(engine, node))
    if rows is None:
        return OperationResult({"nodes": []}, messages=[NO_STORE])
    if node is not None and not rows:
        raise Refused("NODE_UNKNOWN", f"node {node!r}", "the store has no such node", "cotenant node list --fleet")
    return OperationResult({"nodes": rows}, view=_fleet_text)


def _fleet_text(data: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table, when
    from policies.duty_text import DUTY_COLUMNS, duty_row

    if not data["nodes"]:
        yield "the store has no node yet: each node's worker copies to it (cotenant node list --fleet)"
        return
    blank = (None,) * (len(DUTY_COLUMNS) - 1)
    yield table(
        (*DUTY_COLUMNS, "as of"),
        (
            (*(duty_row(row["duty"]) if row["duty"] else (row["node"], *blank)), when(row["as_of"]))
            for row in data["nodes"]
        ),
    )


def _views(node: str | None) -> tuple[list[dict[str, Any]], list[OperationError]]:
    """The view of the node that was named; else of each that has a budget, and what did not answer."""
    if node is not None:
        return [agent_of(node).ask("duty")], []
    from cotenant.cli.agents import Agent, local_nodes
    from cotenant.cli.failures import Unreachable
    from policies.duty_text import has_budget

    in_force, views, errors = settings(), [], []
    for name in local_nodes(in_force.home) or [in_force.node]:
        try:
            view = Agent(in_force, name).ask("duty")
        except Unreachable as error:
            errors.append(error.error)
            continue
        if has_budget(view):
            views.append(view)
    return views, errors


def _why_none(views: list[dict[str, Any]], errors: list[OperationError]) -> list[str]:
    """A node that does not answer is none that has no budget: then that is said alone."""
    return [] if views or errors else [NO_BUDGET]


def _text(data: dict[str, Any]) -> Iterator[RenderableType]:
    from policies.duty_text import duty_text

    for view in data["nodes"]:
        yield duty_text(view).rstrip("\n")


def _watch(node: str | None, as_json: bool) -> None:
    """Show it until Ctrl-C. A named node that is refused or silent at the first look ends it; later ones are said and waited out."""
    found = _views(node)
    if as_json or not sys.stdout.isatty():
        while True:
            views, errors = found
            if as_json:
                told = {
                    "nodes": views,
                    "errors": [error.as_dict() for error in errors],
                    "messages": _why_none(views, errors),
                }
                print(json.dumps(told, ensure_ascii=False), flush=True)
            else:
                print("\n".join(_lines(views, errors)), flush=True)
            time.sleep(WATCH_EVERY_S)
            found = _views_again(node)
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        while True:
            live.update(Text("\n".join(_lines(*found))), refresh=True)
            time.sleep(WATCH_EVERY_S)
            found = _views_again(node)


def _views_again(node: str | None) -> tuple[list[dict[str, Any]], list[OperationError]]:
    from cotenant.cli.failures import Unreachable

    try:
        return _views(node)
    except Unreachable as error:  # an agent that is started anew answers again
        return [], [error.error]


def _lines(views: list[dict[str, Any]], errors: list[OperationError]) -> list[str]:
    """What one look shows."""
    from cotenant.cli.render import error_text

    shown = _why_none(views, errors) + [str(part) for part in _text({"nodes": views})]
    return shown + [error_text(error) for error in errors]
