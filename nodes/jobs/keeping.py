"""What is written down as it happens, and not at every tick: each refusal once, each tree when it has changed, the time that ran."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable

from nodes.jobs.attempt import Attempt
from nodes.jobs.guard import Refusal
from nodes.jobs.jobqueue import Journal
from nodes.jobs.registry import Registry

__all__ = ["AttemptKeeper", "once_each"]

KEEP_EVERY_S = 10.0
RAN_EVERY_S = 30.0
REFUSALS_MAX = 1000


def once_each(journal: Journal) -> Refusal:
    """Journal a refused act on a process once, however often it is tried."""
    seen: set[tuple[int, int | None, str]] = set()

    def refused(pid: int, start_ticks: int | None, sig: int, why: str) -> None:
        if len(seen) >= REFUSALS_MAX:
            seen.clear()
        if (pid, start_ticks, why) not in seen:
            seen.add((pid, start_ticks, why))
            journal("S16_GUARD", {"pid": pid, "start_ticks": start_ticks, "signal": sig, "why": why})

    return refused


class AttemptKeeper:
    """Keeps in the attempt's row what a restarted agent must know.

    Who is in its tree: orphans are found by it, whatever they did to their environment, and may be ended for it. So none is written
    down that ``owns``, the guard's word, does not hold for: what a runner says of itself is no proof. And how long it ran and was not
    held: only that counts against ``timeout_s``.
    """

    def __init__(self, registry: Registry, owns: Callable[[int, int], bool]) -> None:
        self._registry = registry
        self._owns = owns
        self._kept: dict[str, tuple[float, dict[int, int], float]] = {}

    def keep(self, attempt: Attempt, now: float) -> None:
        """At the first sight, then where the tree has changed or half a minute ran, at most every ten seconds."""
        at, before, ran_before_s = self._kept.get(attempt.attempt_id, (float("-inf"), {}, 0.0))
        if now - at < KEEP_EVERY_S:
            return
        tree = {pid: start_ticks for pid, start_ticks in attempt.known.items() if self._owns(pid, start_ticks)}
        ran_s = attempt.unheld_s(now)
        stopped = ran_s > ran_before_s and attempt.state == "held"
        if tree == before and ran_s - ran_before_s < RAN_EVERY_S and not stopped:
            return
        self._kept[attempt.attempt_id] = (now, tree, ran_s)
        with contextlib.suppress(sqlite3.Error):
            self._registry.change_attempt(attempt.attempt_id, tree=json.dumps(tree), ran_s=ran_s)

    def forget(self, attempt_id: str) -> None:
        self._kept.pop(attempt_id, None)
