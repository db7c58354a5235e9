"""A run's record as it was kept, which may be damaged or of another version: what of it can be told all the same.

Whoever looks through the runs of a node asks here, so that one record that cannot be understood costs no other run anything.
What it may have shown is decided in ``policies.certificate.repetition``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from policies.harness.spec import RunSpec
from policies.instants import aware_utc

__all__ = ["DAMAGED", "WHY_DAMAGED", "asked_of", "came_when", "is_damaged", "run_row"]

# What a record raises that is of another version, or damaged.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError)
WHY_DAMAGED = "its record is damaged or of another version"

Record = Mapping[str, Any]
# What a list of runs names of each; of a damaged record what is of another type is None, as if it were not there.
_OF_A_ROW: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(
        ("ending", "reason", "ended_at", "certificate_refused_for", "flow_run_id", "section_digest"), (str,)
    ),
    **dict.fromkeys(("certificate", "sweep"), (dict,)),
    "driven_by": (list,),
}
_OF_ITS_SPEC: dict[str, tuple[type, ...]] = {"rule": (str,), "work": (str,), "duty": (int, float), "kind": (str,)}


def asked_of(record: Record) -> Mapping[str, Any]:
    """What the run was asked to do, in whatever state that is; empty where nothing of it is left."""
    spec = record.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def came_when(
    record: Record, keys: Sequence[str] = ("came_at", "ended_at", "driven_at", "started_at")
) -> datetime | None:
    """The first of these times of the record that is one, in UTC; None: none is."""
    for key in keys:
        try:
            return aware_utc(datetime.fromisoformat(str(record.get(key))))
        except ValueError:
            continue
    return None


def is_damaged(record: Record) -> bool:
    """Whether it cannot be told what the run was asked to do, or how and when it ended."""
    try:
        RunSpec.model_validate(record.get("spec"))
    except ValueError:
        return True
    if record.get("state") != "ended":
        return record.get("state") != "open"
    return not isinstance(record.get("ending"), str) or came_when(record, ("ended_at",)) is None


def run_row(record: Record) -> dict[str, Any]:
    """A run in a list of many, each key always there; ``damaged`` where not all of what it says can be believed."""
    asked = asked_of(record)
    return (
        {key: record[key] for key in ("run", "state", "started_at")}
        | {key: _of_type(record.get(key), types) for key, types in _OF_A_ROW.items()}
        | {key: _of_type(asked.get(key), types) for key, types in _OF_ITS_SPEC.items()}
        | {"damaged": is_damaged(record)}
    )


def _of_type(value: object, types: tuple[type, ...]) -> object:
    return value if isinstance(value, types) else None
