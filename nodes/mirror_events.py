"""What the mirror sends for a journal entry, and what of it nobody has seen on the server yet: pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from policies.plain_text import plain

__all__ = ["Entry", "Sent", "event_id", "event_of"]

Entry = dict[str, Any]


def event_id(node: str, seq: int) -> UUID:
    """The same entry gives the same id, whoever sends it."""
    return uuid5(NAMESPACE_URL, f"cotenant:{node}:{seq}")


def event_of(node: str, entry: Entry) -> dict[str, Any]:
    """Fields of the Prefect event for one journal entry: ``RUN_ENDED`` of node ``a`` is ``cotenant.run.ended``."""
    payload = {
        "seq": entry["seq"],
        "code": entry["code"],
        "severity": entry.get("severity"),
        "message": entry.get("message"),
        "data": entry.get("data") or {},
    }
    return {
        "id": str(event_id(node, int(entry["seq"]))),
        "event": "cotenant." + str(entry["code"]).lower().replace("_", "."),
        "occurred": datetime.fromisoformat(str(entry["at"])),
        "resource": {"prefect.resource.id": f"cotenant.node.{node}", "prefect.resource.name": node},
        # entries of before are not written plainly, and what a server on PostgreSQL cannot keep takes the rest with it
        "payload": plain(payload),
    }


@dataclass(frozen=True, slots=True)
class Sent:
    """Events that the server took: when, the mark before them, and the entries not seen there yet, as runs ``(first, last)``.

    All of them are looked up: a server whose database is away for a moment may drop one batch of its own out of what it took.
    """

    at_s: float
    before: int
    runs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, at_s: float, before: int, seqs: Iterable[int]) -> Sent:
        return cls(at_s, before, _joined((seq, seq) for seq in seqs))

    def and_then(self, later: Sent) -> Sent:
        """Both as one, which has come when both have: what is not there of either is sent again from the earlier on."""
        return Sent(later.at_s, self.before, _joined((*self.runs, *later.runs)))

    def next(self, count: int) -> list[int]:
        """The first so many."""
        return list(itertools.islice((seq for first, last in self.runs for seq in range(first, last + 1)), count))

    def beyond(self, seq: int) -> Sent:
        """What is left when all up to this one has been seen."""
        left = ((max(first, seq + 1), last) for first, last in self.runs if last > seq)
        return Sent(self.at_s, self.before, tuple(left))


def _joined(runs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for first, last in runs:
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return tuple(found)
