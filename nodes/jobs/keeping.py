"""What is written down of the guard's and the trees' news: each refusal once, each tree when it has changed, and not at every tick."""

from __future__ import annotations

import contextlib
import json
import sqlite3

from nodes.jobs.attempt import Attempt
from nodes.jobs.guard import Refusal
from nodes.jobs.jobqueue import Journal
from nodes.jobs.registry import Registry

__all__ = ["TreeKeeper", "once_each"]

KEEP_EVERY_S = 10.0
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


class TreeKeeper:
    """Keeps who is in each tree in the attempt's row: a restarted agent finds orphans by it, whatever they did to their environment."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._kept: dict[str, tuple[float, dict[int, int]]] = {}

    def keep(self, attempt: Attempt, now: float) -> None:
        """At the first sight of a tree, then where it has changed, at most every ten seconds."""
        at, before = self._kept.get(attempt.attempt_id, (float("-inf"), {}))
        tree = attempt.known
        if tree == before or now - at < KEEP_EVERY_S:
            return
        self._kept[attempt.attempt_id] = (now, tree)
        with contextlib.suppress(sqlite3.Error):
            self._registry.change_attempt(attempt.attempt_id, tree=json.dumps(tree))

    def forget(self, attempt_id: str) -> None:
        self._kept.pop(attempt_id, None)
