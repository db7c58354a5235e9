"""Phases of the protected programs in the agent: which are on, journaled as they change; and how fast their pauses were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodes.agent.at_once import Paused
from nodes.journal import Journal
from nodes.sources.hub import SourceHub
from nodes.sources.views import PhaseUpdate
from policies.caps import Caps, Reserve
from policies.section import Rule, Section
from policies.sources.latency import KEPT as LATENCIES_KEPT
from policies.sources.latency import Latencies
from policies.views import PhaseView

__all__ = ["Phases"]

NOTHING: Mapping[int, Paused] = {}


class Phases:
    """Attributes:
    latencies: by (rule, phase), of the newest pauses.
    """

    def __init__(self, journal: Journal, hub: SourceHub) -> None:
        self._journal = journal
        self._hub = hub
        self._section = Section()
        self._judged: dict[tuple[str, int], bool] = {}
        self._on: dict[str, set[int]] = {}
        self._begun: dict[str, int] = {}
        self.latencies: dict[tuple[str, int], Latencies] = {}

    def configure(self, section: Section) -> None:
        self._section = section
        self._judged.clear()

    def remember_latencies(self) -> None:
        """Those of the newest phase changes, as an earlier agent journaled them."""
        for data in reversed(self._journal.newest_data("PROTECTION_PHASE_ON", LATENCIES_KEPT)):
            if isinstance(data.get("latency_ms"), float) and isinstance(data.get("phase"), int):
                kept = self.latencies.setdefault((str(data.get("rule")), data["phase"]), Latencies())
                kept.add(data["latency_ms"])

    def views(
        self, rule: Rule, how: str, limits: Mapping[tuple[str, int | None], tuple[Caps, Reserve]]
    ) -> tuple[PhaseView, ...]:
        """The rule's phases for a judgement. Between ticks only those of an ``immediate`` rule are looked at anew."""
        found = []
        for index, during in enumerate(rule.during):
            phase = self._hub.phase(rule.id, index)
            key = (rule.id, index)
            on = phase.state == "on"
            if how == "tick" or rule.immediate or key not in self._judged:
                if on and key not in self._judged:
                    # on from the first sight of it; changes are journaled as they are read
                    self._journal.write(
                        "PROTECTION_PHASE_ON", {"rule": rule.id, "phase": index, "how": "start", "why": phase.why}
                    )
                self._judged[key] = on
            cap, reserve = limits[key]
            found.append(
                PhaseView(
                    index,
                    self._judged[key],
                    during.pause_fleet.scope if during.pause_fleet else None,
                    phase.readable,
                    evict=during.evict.scope if during.evict else None,
                    lower=during.lower_fleet.scope if during.lower_fleet else None,
                    cap=cap,
                    reserve=reserve,
                    soon=phase.state == "soon",
                )
            )
        self._on[rule.id] = {view.index for view in found if view.on}
        return tuple(found)

    def on(self, rule: str) -> set[int]:
        """Indices of the rule's phases that the last judgement took as on."""
        return self._on.get(rule, set())

    def note(self, updates: Sequence[PhaseUpdate], paused: Mapping[int, Paused] = NOTHING) -> None:
        """Journal each change of a phase, short ones between two judgements too.

        ``paused``: what was stopped at once, by the index of the update that asked for it.
        """
        for at, update in enumerate(updates):
            was_on, is_on = update.old == "on", update.new == "on"
            if was_on == is_on:
                continue
            if is_on:
                self._begun[update.rule_id] = self._begun.get(update.rule_id, 0) + 1
            self._journal.write(
                "PROTECTION_PHASE_ON" if is_on else "PROTECTION_PHASE_OFF",
                {
                    "rule": update.rule_id,
                    "phase": update.index,
                    "how": update.how,
                    "path": update.path,
                    "why": update.why,
                    "code": update.code,
                }
                | self._latency((update.rule_id, update.index), paused.get(at)),
            )

    def _latency(self, phase: tuple[str, int], paused: Paused | None) -> dict[str, Any]:
        if paused is None:
            return {}
        if paused.latency_ms is not None:
            self.latencies.setdefault(phase, Latencies()).add(paused.latency_ms)
        latency_ms = None if paused.latency_ms is None else round(paused.latency_ms, 3)
        return {"paused": list(paused.attempts), "paused_to": paused.to, "latency_ms": latency_ms}

    def begun(self, rule: str) -> int:
        """How many phases of the rule have begun since the agent started."""
        return self._begun.get(rule, 0)

    def names_on(self, rule: str) -> tuple[str, ...]:
        """Phases of the rule that are on. Read here and now, not at the last tick."""
        wanted = self._section.rule(rule)
        names = []
        for index in range(len(wanted.during) if wanted else 0):
            phase = self._hub.phase(rule, index)
            if phase.state == "on":
                names.append(f"phase {index + 1} of rule {rule}" + ("" if phase.readable else " (unreadable)"))
        return tuple(names)
