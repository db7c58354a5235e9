"""The nodes of a fleet as server and store know them: who has a worker online, and how fresh the mirror is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotenant.settings import Settings

__all__ = ["fleet_nodes"]


def fleet_nodes(in_force: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """A row a node that has a queue or a mirror, and what could not be asked.

    ``worker``: online, offline or unknown; ``mirrored_at``: when its journal was copied last, None where never.
    """
    from cotenant.cli import fleet_link
    from cotenant.cli.failures import Unreachable
    from cotenant.cli.runs import of_store

    rows: dict[str, dict[str, Any]] = {}
    said: list[str] = []

    def row(name: str) -> dict[str, Any]:
        return rows.setdefault(
            name, {"node": name, "worker": "unknown", "last_seen": None, "mirrored_at": None, "last_seq": None}
        )

    try:
        url = fleet_link.connect(in_force).url
        from cotenant import fleet

        for name, worker in fleet.workers(url).items():
            row(name).update(worker)
    except Unreachable as silent:
        said.append(f"whose worker is online is unknown: {silent}")
    try:
        from cotenant import store

        for each in of_store(in_force, store.list_nodes) or []:
            row(each["node"]).update(mirrored_at=each["mirrored_at"], last_seq=each["last_seq"])
    except Unreachable as silent:
        said.append(f"how fresh the mirror is is unknown: {silent}")
    return [rows[name] for name in sorted(rows)], said
