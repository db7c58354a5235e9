"""The harm that a run's journaled rows and looks show, whatever else is among them.

A row or look that cannot be understood (of another version, damaged, a slip of whoever sent it) says nothing: it hides nothing
of the others. So harm is looked for here in what is as it stands in the journal, piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from policies.harness.rows import BlockRow
from policies.harness.schedule import End, harm_in_blocks
from policies.harness.verdict import SLOWDOWN

__all__ = ["harm_shown", "understood"]

# Of a row whose windows cannot be understood this much is looked at all the same.
_WITHOUT_WINDOWS = ("run", "number", "order", "reason", "reason_arm", "reason_detail", "collapse", "extra")


def understood(raw: Iterable[Any]) -> list[BlockRow]:
    """The rows that can be; of one whose windows cannot, why it was left out."""
    found = []
    for each in raw:
        if not isinstance(each, Mapping):
            continue
        less = {name: each[name] for name in _WITHOUT_WINDOWS if name in each}
        for row in (each, less | {"state": "left_out"}):
            try:
                found.append(BlockRow.model_validate(row))
                break
            except ValidationError:
                continue
    return found


def harm_shown(spec: Any, rows: Iterable[Any], looks: Any) -> End | None:
    """How the run ends for what speaks against its work already; None: nothing does.

    Args:
        spec, rows, looks: as the journal has them, understood or not.
    """
    for look in looks if isinstance(looks, list) else ():
        if isinstance(look, Mapping) and look.get("verdict") == SLOWDOWN:
            return End(SLOWDOWN, f"the look at {look.get('n')} blocks shows the program slower with the work")
    kind = spec.get("kind") if isinstance(spec, Mapping) else None
    return harm_in_blocks(understood(rows), alone=kind == "null")
