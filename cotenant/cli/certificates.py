"""``protection certificates check``: what expires soon or does not hold any more, and what renews it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cotenant.cli.result import Exit, OperationError, OperationResult

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from cotenant.settings import Settings

__all__ = ["check", "last_known", "of_the_fleet"]


def check(in_force: Settings) -> OperationResult:
    """Every node of this machine: exit code 0 where nothing needs attention, 1 where something does, 3 where one is silent."""
    from datetime import UTC, datetime

    from cotenant.cli.agents import Agent, local_nodes
    from cotenant.cli.failures import Unreachable
    from policies.certificate.expiry import due

    found: list[dict[str, Any]] = []
    silent: list[OperationError] = []
    for node in local_nodes(in_force.home) or [in_force.node]:
        try:
            rows = Agent(in_force, node).ask("certificates", _timeout_s=120.0)
        except Unreachable as error:
            silent.append(error.error)
            continue
        found += [each.as_dict() for each in due(rows, datetime.now(UTC))]
    code = Exit.UNREACHABLE if silent else Exit.OTHER_ANSWER if found else Exit.DONE
    # Of a node that did not answer nothing is known: then an empty list is no good news.
    return OperationResult(found, exit_code=code, errors=silent, view=None if silent and not found else _view)


def of_the_fleet(in_force: Settings, node: str | None) -> OperationResult:
    """Every node's certificates as far as the store knows them. Whether one holds now only its node's agent can say."""
    from datetime import UTC, datetime

    from cotenant import store
    from cotenant.cli.runs import NO_STORE, of_store

    rows = of_store(in_force, lambda engine: store.list_certificates(engine, node))
    if rows is None:
        return OperationResult([], messages=[NO_STORE], view=_fleet_view)
    now = datetime.now(UTC)
    rows = [row | {"state": last_known(row, now)} for row in rows]
    note = (
        "as far as each node's journal was copied; what holds now its node says: cotenant protection certificates NODE"
    )
    return OperationResult(rows, messages=[note], view=_fleet_view)


def last_known(row: dict[str, Any], now: datetime) -> str:
    """``issued``, ``expired`` by its date, or what the node last said of it: ``stale since 2026-11-29T18:43:53Z``."""
    from datetime import datetime

    from cotenant.cli.render import when

    if told := row["told"]:
        return f"{told['code'].removeprefix('CERT_').lower()} since {when(told['at'])}"
    return "expired" if datetime.fromisoformat(row["expires_at"]) <= now else "issued"


def _fleet_view(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table, when

    if not rows:
        yield "no certificates in the store yet"
        return
    columns = ("node", "rule", "work_asked", "certified_duty", "state", "issued_at", "expires_at", "run")
    yield table(
        [name.removesuffix("_at").replace("_", " ") for name in columns],
        ([when(row.get(name)) if name.endswith("_at") else row.get(name) for name in columns] for row in rows),
    )


def _view(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    if not rows:
        yield "no certificate expires soon or is stale"
        return
    columns = ("node", "rule", "work", "certified_duty", "state", "days_left", "why", "renew")
    yield table(
        [name.replace("_", " ") for name in columns], ([row[name] for name in columns] for row in rows), keep=("renew",)
    )
