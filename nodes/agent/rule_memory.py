"""The timing of rules across a restart of the agent: what was held in a cooldown stays held in the next process."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from nodes.identity import boot_id
from nodes.journal import Journal
from policies.rule_restart import doubtful_timing, restarted_timing, timing_from, timing_kept
from policies.rules import RuleState
from policies.section import Rule
from policies.section.models import Cooldown

__all__ = ["RuleMemory", "rule_digest"]

log = logging.getLogger(__name__)

FACT = "rule_timing"


def rule_digest(rule: Rule, duty_device: str) -> str:
    """Of the rule as it applies here (``~`` expanded) and of the device that it is judged on: one that changed is another."""
    return hashlib.sha256(f"{duty_device}\n{rule.model_dump_json()}".encode()).hexdigest()


class RuleMemory:
    """Read once, at the first look; each timing is handed out once. Written when something happened."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._left: dict[str, Any] | None = None
        self._same_boot = False
        self._doubtful = False
        self._written: Any = None

    def take(self, key: str, digest: str, now_s: float, cooldown: Cooldown) -> RuleState | None:
        """What an earlier process left of this timing; None: nothing of this very rule."""
        left = self._read() if self._left is None else self._left
        if self._doubtful:
            return None if key in left else self._doubt(key, now_s)
        row = left.pop(key, None)
        if row is None:
            return None
        try:
            if row["digest"] != digest:
                return None
            return restarted_timing(timing_from(row), now_s, cooldown, same_boot=self._same_boot)
        except (KeyError, TypeError, ValueError) as error:
            log.warning("what the last agent left of rule %s cannot be read (%s): it counts as active", key, error)
            return doubtful_timing(now_s)

    def _doubt(self, key: str, now_s: float) -> RuleState:
        assert self._left is not None
        self._left[key] = None  # once: a rule that is set later begins as any other
        return doubtful_timing(now_s)

    def _read(self) -> dict[str, Any]:
        self._left = {}
        try:
            found = self._journal.fact(FACT)
            if found is not None:
                self._same_boot = found["boot_id"] == boot_id()
                self._left = dict(found["timing"])
        except (KeyError, TypeError, ValueError, sqlite3.Error) as error:
            log.warning("what the last agent left of its rules cannot be read (%s): each counts as active", error)
            self._doubtful = True
        return self._left

    def keep(self, timings: Iterable[tuple[str, str, RuleState]]) -> None:
        """Key, digest and state of each. A disk that is full costs the next process its memory, nothing else."""
        now: Mapping[str, Any] = {key: {"digest": digest} | timing_kept(state) for key, digest, state in timings}
        if now == self._written:
            return
        try:
            self._journal.set_fact(FACT, {"boot_id": boot_id(), "timing": now})
            self._written = now
        except sqlite3.Error as error:
            log.warning("the timing of the rules cannot be kept: %s", error)
