"""What must add up after a soak. Pure: what was counted goes in, what does not balance comes out in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Life", "Seen", "disagreements", "unbalanced"]

GROWTH_MAX_BYTES = 3 << 20
"""What a process of the agent may grow by after it has settled, whatever its life."""


@dataclass(slots=True)
class Life:
    """Resident bytes of one process of the agent: once it had settled, and when it was last seen."""

    settled_bytes: int
    last_bytes: int
    seen_s: float


@dataclass(slots=True)
class Seen:
    """``batches``: (prompts asked, status) of each. ``ran_paused_s``: CPU seconds of fleet work in the paused stretches, beyond
    what stopping takes; ``paused_s``: how long those were.
    """

    batches: Sequence[tuple[int, Mapping[str, Any]]] = ()
    attempts: Sequence[str] = ()
    run_lock: str | None = None
    left: Sequence[int] = ()
    lives: Sequence[Life] = ()
    paused_s: float = 0.0
    ran_paused_s: float = 0.0
    kills: Mapping[str, int] = field(default_factory=dict)
    journal: Sequence[Mapping[str, Any]] = ()
    store: Sequence[Mapping[str, Any]] = ()


def disagreements(journal: Sequence[Mapping[str, Any]], store: Sequence[Mapping[str, Any]]) -> list[str]:
    """Entry by entry, by sequence number: what one has and the other has not, or has otherwise."""
    ours, theirs = {each["seq"]: each for each in journal}, {each["seq"]: each for each in store}
    found = []
    if len(theirs) != len(store):
        found.append("the store has an entry twice")
    for what, missing in (
        ("the store lacks", ours.keys() - theirs.keys()),
        ("only the store has", theirs.keys() - ours.keys()),
    ):
        if missing:
            found.append(f"{what} {len(missing)} entries, first {min(missing)}")
    other = [
        seq for seq in ours.keys() & theirs.keys() if any(ours[seq][k] != theirs[seq][k] for k in ("code", "data"))
    ]
    if other:
        found.append(f"{len(other)} entries differ, first {min(other)}")
    return found


def unbalanced(seen: Seen) -> list[str]:
    """Everything that does not add up; empty: all does."""
    found = []
    if not seen.batches:
        found.append("no batch was queued: nothing was shown")
    for number, (asked, status) in enumerate(seen.batches, 1):
        if (status["done"], status["failed"], status["open"], status["repeated"]) != (asked, 0, 0, 0):
            found.append(f"batch {number}: {asked} prompts in, {dict(status)} out")
    if not seen.kills:
        found.append("nothing was killed: nothing was shown")
    if seen.attempts:
        found.append(f"attempts still live: {', '.join(seen.attempts)}")
    if seen.run_lock is not None:
        found.append(f"the run lock is held by {seen.run_lock}")
    if seen.left:
        found.append(f"processes left: {', '.join(map(str, seen.left))}")
    for life in seen.lives:
        if life.last_bytes - life.settled_bytes > GROWTH_MAX_BYTES:
            found.append(f"an agent grew from {life.settled_bytes} to {life.last_bytes} bytes in {life.seen_s:.0f} s")
    if seen.paused_s <= 0.0:
        found.append("no phase paused anything: nothing was shown")
    elif seen.ran_paused_s > 0.02 * seen.paused_s:
        found.append(f"fleet work used {seen.ran_paused_s:.1f} CPU seconds in {seen.paused_s:.0f} s of pauses")
    return found + disagreements(seen.journal, seen.store)
