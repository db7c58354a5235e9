"""What must stay as it was while a block is measured. A change leaves the block out; it is never counted.

Source: ``harness.md`` ("Left out and repeated"). Heat is not among them: if fleet work makes the machine throttle, that
slowdown counts against it.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.harness.rows import LeftOut
from policies.rules import PidStart

__all__ = ["SUSPEND_S", "Conditions", "disturbances"]

# Boottime running this far ahead of monotonic means that the machine slept.
SUSPEND_S = 1.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """One instant. ``program``: (pid, start ticks) of the matched processes that no matched process started.

    ``phases_begun`` counts phases that began since the agent started, so that one that came and went is seen as well.
    ``power`` and ``source_why`` None: nothing known about power; the source reads.
    """

    program: frozenset[PidStart]
    phases_on: tuple[str, ...]
    phases_begun: int
    asleep_s: float
    power: str | None
    memory_hard: bool
    owner_pause: bool
    source_why: str | None


def disturbances(before: Conditions, now: Conditions) -> tuple[tuple[LeftOut, str], ...]:
    """Everything that spoils a block begun under ``before``, with words for the report; empty: undisturbed.

    A process that is gone is a death even when another took its place: a restarted program died first.
    """
    found: list[tuple[LeftOut, str]] = []
    gone, came = before.program - now.program, now.program - before.program
    if gone:
        pids = ", ".join(str(pid) for pid, _ in sorted(gone))
        found.append(
            ("program_died", f"process {pids} ended" + (f", process {min(came)[0]} took its place" if came else ""))
        )
    elif came:
        found.append(("program_restarted", f"process {min(came)[0]} started"))
    if now.memory_hard:
        found.append(("memory_guard", "memory was very short"))
    if now.source_why is not None:
        found.append(("source_unreadable", now.source_why))
    if now.asleep_s - before.asleep_s > SUSPEND_S:
        found.append(("suspend", f"the machine slept for {now.asleep_s - before.asleep_s:.0f} s"))
    if before.power is not None and now.power is not None and before.power != now.power:
        found.append(("power_source", f"{before.power} → {now.power}"))
    if now.phases_on:
        found.append(("phase", f"{', '.join(now.phases_on)} is on"))
    elif now.phases_begun != before.phases_begun:
        found.append(("phase", "a phase came and went"))
    if now.owner_pause:
        found.append(("owner_pause", "the owner paused all fleet work"))
    return tuple(found)
