"""Phases while a program of the owner's runs. What the process table says once a tick is all that they need."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nodes.sources.views import PhaseUpdate, PhaseView
from policies.rules import Group, ProcInfo, expand_home
from policies.section.sources import ExecPhase
from policies.sources.meaning import PhaseState
from policies.sources.program_phase import program_of

__all__ = ["ProgramPhase", "ProgramPhases"]


class ProgramPhase:
    """One ``on_exec`` block. On until the processes were looked at for the first time."""

    def __init__(self, rule_id: str, index: int, source: ExecPhase, owner_uid: int, owner_home: str) -> None:
        self.rule_id, self.index, self.source = rule_id, index, source
        self.owner_uid = owner_uid
        self._on_exec = source.on_exec.model_copy(update={"match": expand_home(source.on_exec.match, owner_home)})
        self.found: Group | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.rule_id, self.index

    @property
    def words(self) -> str:
        """The match, for people."""
        given = self.source.on_exec.match.model_dump(exclude_none=True)
        return ", ".join(f"{key} {value}" for key, value in given.items())

    @property
    def state(self) -> PhaseState:
        return "on" if self.found is None or self.found.present else "off"

    @property
    def why(self) -> str:
        if self.found is None:
            return "the processes were not looked at yet"
        if self.found.present and not self.found.running:
            return "whether one of its processes runs cannot be told, so it counts as on"
        return ""

    def look(self, procs: Collection[ProcInfo], fleet: Collection[int]) -> tuple[PhaseState, PhaseState]:
        """The state before and after."""
        before = self.state
        self.found = program_of(self._on_exec, procs, self.owner_uid, fleet)
        return before, self.state

    def view(self) -> PhaseView:
        told = self.found is not None and (self.found.running or not self.found.present)
        code = "" if told else "PROTECTION_UNREADABLE"
        remedy = "" if told else "run the agent as root, or as the account of the program"
        return PhaseView(self.state, told, self.why, code, remedy, self.words, self.source.kind)


class ProgramPhases:
    """All of a section. A look that finds nothing new costs nothing."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, int], ProgramPhase] = {}
        self._seen: tuple[Mapping[int, ProcInfo], frozenset[int]] | None = None

    def configure(self, phases: list[ProgramPhase]) -> None:
        self.by_key = {phase.key: phase for phase in phases}
        self._seen = None

    def look(self, snapshot: Mapping[int, ProcInfo], fleet: Collection[int], now_s: float) -> list[PhaseUpdate]:
        """``snapshot``: the process table's, the same object as long as nothing changed."""
        if not self.by_key or (
            self._seen is not None and self._seen[0] is snapshot and self._seen[1] == frozenset(fleet)
        ):
            return []
        self._seen = snapshot, frozenset(fleet)
        updates = []
        for phase in self.by_key.values():
            before, after = phase.look(snapshot.values(), fleet)
            if before != after:
                code = "" if phase.view().readable else "PROTECTION_UNREADABLE"
                updates.append(
                    PhaseUpdate(phase.rule_id, phase.index, before, after, "tick", None, None, None, phase.why, code)
                )
        return updates
