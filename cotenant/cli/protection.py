"""``protection``: the node's section, its sources, its certificates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli import duty, sections
from cotenant.cli.command import command, group
from cotenant.cli.options import OptionalNodeArg, agent_of, settings
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["app", "register", "sources_view"]

app = group("What the owner protects: the section, its sources, measurements and certificates.")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="protection")
    sections.register(app)
    duty.register(app)


@command(app, "sources", example="cotenant protection sources local")
def sources(node: OptionalNodeArg = None) -> OperationResult:
    """Each source: who reads it, its state, its rate or phase, and how fast a phase takes effect."""
    return OperationResult(agent_of(node).ask("sources"), view=sources_view)


@command(
    app,
    "certificates",
    example="cotenant protection certificates local\ncotenant protection certificates check",
)
def certificates(
    node: OptionalNodeArg = None,
    fleet: Annotated[bool, typer.Option("--fleet", help="All nodes', as they were issued, from the store.")] = False,
) -> OperationResult:
    """Each certificate: valid, expired or stale, why, and the command that renews it.

    "check" in a node's place lists what needs attention on all nodes of this machine; exit code 1 where anything does.
    """
    if node == "check":
        from cotenant.cli.certificates import check

        return check(settings())
    if fleet:
        from cotenant.cli.certificates import of_the_fleet

        return of_the_fleet(settings(), node)
    return OperationResult(agent_of(node).ask("certificates"), view=_certificates)


def sources_view(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    if not rows:
        yield "no sources: the section in force names none"
        return
    yield table(
        ("rule", "role", "state", "reads now", "reader", "watch", "p50/p99 ms"),
        (
            (row["rule"], row["role"], row["state"], _reading(row), row.get("reader"), row.get("watch"), _latency(row))
            for row in rows
        ),
    )
    yield ""
    # A table of its own: a path needs the width of a terminal.
    yield table(
        ("rule", "path", "why", "next"),
        ((row["rule"], row.get("path"), _source_why(row), row.get("remedy") or "") for row in rows),
        keep=("next",),
    )


def _source_why(row: dict[str, Any]) -> str:
    timed = row.get("timed") and "its lines come on a timer"
    return "; ".join(str(part) for part in (row.get("why"), timed, row.get("watch_why")) if part)


def _reading(row: dict[str, Any]) -> str | None:
    """The rate or the phase. A rate that is not known is said to be, and is never a rate of zero."""
    if row["role"] == "progress":
        return "unknown" if row.get("rate") is None else f"{row['rate']:.4g}/s"
    return row.get("phase")


def _latency(row: dict[str, Any]) -> str | None:
    p50, p99 = row.get("latency_p50_ms"), row.get("latency_p99_ms")
    return None if p50 is None or p99 is None else f"{p50:.2f} / {p99:.2f}"


def _certificates(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    if not rows:
        yield "no certificates; earn one with: cotenant protection ab start NODE --rule RULE"
        return
    yield table(
        ("rule", "work", "duty", "state", "kind", "R", "issued", "expires", "run", "why", "renew"),
        (_certificate_row(row) for row in rows),
        keep=("renew",),
    )


def _certificate_row(row: dict[str, Any]) -> tuple[object, ...]:
    from cotenant.cli.render import when

    validity = row.get("validity") or {}
    ratio = row.get("R")
    work = row.get("work")
    return (
        row.get("rule"),
        work if isinstance(work, str) else ", ".join(_work_name(item) for item in work or []),
        row.get("duty", row.get("certified_duty")),
        validity.get("state"),
        "demonstration" if row.get("demonstration") else "certificate",
        None if not isinstance(ratio, (int, float)) else f"{100 * ratio:.1f} %",
        when(row.get("issued_at")),
        when(row.get("expires_at")),
        row.get("run"),
        validity.get("why"),
        validity.get("renew"),
    )


def _work_name(item: Any) -> str:
    """ "llmserve/batch", with the model where one was measured: "llmserve/batch (tiny.gguf)"."""
    if not isinstance(item, dict):
        return str(item)
    model = item.get("model")
    return f"{item.get('short') or item.get('module')}/{item.get('stage')}" + (f" ({model})" if model else "")
