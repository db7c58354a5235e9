"""What the agent sees of the protected programs and the machine, made into the views that the pure judgements take."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from nodes.agent.device_uses import DeviceUses
from nodes.agent.harm import FleetNow, HarmWatch
from nodes.agent.memory_watch import MemoryWatch
from nodes.agent.phases import Phases
from nodes.agent.program_use import footprint_bytes, held_bytes
from nodes.agent.rule_memory import RuleMemory, rule_digest
from nodes.clock import boottime_s, monotonic_s
from nodes.identity import ProcessId
from nodes.jobs.proctree import CLOCK_TICKS
from nodes.journal import Journal
from nodes.power import power_source
from nodes.processes import ProcessTable
from nodes.sources.hub import SourceHub
from policies.caps import Caps, Reserve, caps_of, reserve_of
from policies.condition import ProgramUse, condition_holds, enter_after_s, needs
from policies.rules import (
    Group,
    PidStart,
    ProcInfo,
    RuleEvent,
    RuleState,
    Verdicts,
    expand_home,
    groups,
    start_rule,
    step_rule,
)
from policies.section import Rule, Section, timing
from policies.section.models import Timing
from policies.views import NodeView, RuleView, RunView

__all__ = ["Observer"]

# Two ticks.
STALE_AFTER_S = 4.0
# Of each rule, so that a program of many processes takes no other's end out of sight.
ROOTS_CLOSELY = 8

# Takes the time, pids of protected programs and processes by attempt; answers with the devices that fleet work may have been
# on since it was last asked (None: any).
DeviceReader = Callable[[float, set[int], Mapping[str, Sequence[ProcessId]]], Collection[str] | None]


class Observer:
    """Refreshed once a tick; every judgement of that tick sees the same instant."""

    def __init__(self, journal: Journal, hub: SourceHub) -> None:
        self.journal = journal
        self.hub = hub
        self.table = ProcessTable()
        self.on_device = DeviceUses(self.table)
        self.power = power_source()
        self.memory = MemoryWatch(journal)
        self._groups: dict[str, Group] = {}
        self._states: dict[str, RuleState] = {}
        self._remembered = RuleMemory(journal)
        self._digests: dict[str, str] = {}
        self.phases = Phases(journal, hub)
        self._sources_ok: dict[str, bool] = {}
        self.home = str(Path.home())
        self._fleet: set[int] = {os.getpid()}
        self._section = Section()
        self._rules: tuple[Rule, ...] = ()
        self._timing: dict[str, Timing] = {}
        self._verdicts = Verdicts()
        self._matched: tuple[Mapping[int, ProcInfo], tuple[Rule, ...]] | None = None
        self._limits: dict[tuple[str, int | None], tuple[Caps, Reserve]] = {}
        self.harm = HarmWatch(
            journal, hub, lambda _rule, found: self.on_device.share(found, monotonic_s()), self._harm_pause
        )
        self.fleet_now = FleetNow()
        self.programs_hold_bytes = 0
        self.read_devices: DeviceReader | None = None
        self._refreshed_s: float | None = None
        self.stale_after_s = STALE_AFTER_S

    def configure(self, section: Section) -> None:
        """A new section: rules that stay keep their timing; the rest starts anew, protected at once where it runs."""
        before = {rule.id: rule for rule in self._rules}
        other_device = section.node.duty_device != self._section.node.duty_device
        self._section = section
        self._rules = tuple(
            rule.model_copy(update={"match": expand_home(rule.match, self.home)}) for rule in section.rules
        )
        # A rule that changed is another rule: what it protects now is judged from the start. So is one whose ``~`` is now
        # another home, and with another duty device every rule: what was read of the one says nothing of the other.
        kept = {rule.id for rule in self._rules if before.get(rule.id) == rule and not other_device}
        self.on_device.configure(kept, on_cpu=section.node.duty_device == "cpu")
        for table in (self._states, self._groups, self._sources_ok):
            for name in [name for name in table if name not in kept]:
                del table[name]
        self._timing = {rule.id: timing(rule, section.node.defaults) for rule in section.rules}
        self._digests = {rule.id: rule_digest(rule, section.node.duty_device) for rule in self._rules}
        self._matched = None
        self.phases.configure(section)
        self.harm.forget_but(kept)
        self._limits = {}
        for rule in self._rules:
            for index, acts in [(None, rule), *enumerate(rule.during)]:
                by = f"rule {rule.id}" if index is None else f"phase {index + 1} of rule {rule.id}"
                self._limits[rule.id, index] = (caps_of(acts.cap_fleet, by), reserve_of(acts.reserve, by))

    # -- reading ----------------------------------------------------------------------------------------------------

    def refresh(self, now_s: float, trees: Mapping[str, Sequence[ProcessId]]) -> None:
        """Read processes, memory and power; step every rule's timing. ``trees``: the processes of each attempt."""
        protected = (self._roots(rule.id)[:ROOTS_CLOSELY] for rule in self._rules if not rule.ignore)
        self.table.refresh(now_s, [proc.pid for roots in protected for proc in roots])
        self._match({who.pid for tree in trees.values() for who in tree} | {os.getpid()})
        fleet_on = None if self.read_devices is None else self.read_devices(now_s, self._metered_pids(), trees)
        for rule in self._rules:
            self.on_device.read(rule.id, self._groups[rule.id], now_s, fleet_on)
            self._step_rule(rule, self._groups[rule.id], now_s)
            self._say_source(rule)
        self._step_harm(now_s)
        self._keep_timing()
        self._read_reserved()
        self.power = power_source()
        self.memory.read(now_s, trees, self._section.node.memory)
        self._refreshed_s = now_s

    def _roots(self, rule: str) -> tuple[ProcInfo, ...]:
        found = self._groups.get(rule)
        return found.roots if found is not None else ()

    def _match(self, fleet: set[int]) -> None:
        """Rules against processes, only where one of them is not as it was: most looks find nothing new."""
        seen = (self.table.snapshot(), self._rules)
        if (
            self._matched is not None
            and fleet == self._fleet
            and all(a is b for a, b in zip(seen, self._matched, strict=True))
        ):
            return
        self._groups = groups(self._rules, tuple(seen[0].values()), fleet, self._verdicts)
        self._fleet, self._matched = fleet, seen

    def _step_rule(self, rule: Rule, found: Group, now_s: float) -> None:
        state = self._states.get(rule.id)
        events: Sequence[RuleEvent]
        times, holds = self._timing[rule.id], self._holds(rule, found, now_s)
        enter_s = enter_after_s(rule, times)
        if state is None and not rule.ignore:
            state = self._remembered.take(rule.id, self._digests[rule.id], now_s, times.cooldown)
            enter_s = 0.0  # as at any start: a program that runs already is protected at once
        if state is None:
            state, events = start_rule(holds, now_s)
        else:
            state, events = step_rule(state, holds, now_s, enter_s, times.exit_after_s, times.cooldown)
        self._states[rule.id] = state
        for event in events:
            if not rule.ignore:
                self.journal.write(
                    event.code, {"rule": rule.id, "pids": [p.pid for p in found.roots], "wait_s": event.wait_s}
                )

    def _holds(self, rule: Rule, found: Group, now_s: float) -> bool:
        """Whether the rule's condition holds. What its program uses is read only where the condition asks for it."""
        cores, footprint, share = needs(rule.active_when) if found.present else (False, False, False)
        pids = [p.pid for p in found.holding]
        # beside fleet work too little may be starvation: then what it uses is unknown, and unknown holds
        told = share and not self.on_device.gpus(rule.id, now_s).doubted
        use = ProgramUse(
            self.table.cpu_cores_used(pids, now_s) if cores else None,
            footprint_bytes(pids) if footprint else None,
            self.on_device.busy(found, now_s) if told else None,
        )
        if (holds := condition_holds(rule, found.present, use)) or not (cores or share):
            return holds
        # A program that fleet work starves uses too little of the CPU to be seen: what it waited for counts as well.
        wanted = self.on_device.wanted_cores(rule.id, found, now_s) or 0.0
        return condition_holds(
            rule,
            found.present,
            replace(
                use,
                cores=max(use.cores or 0.0, wanted),
                device_share=max(use.device_share or 0.0, wanted) if self.on_device.on_cpu else use.device_share,
            ),
        )

    def _metered_pids(self) -> set[int]:
        """Processes whose GPU time is of interest: of every rule, where the GPU is what a duty counts on."""
        if self.on_device.on_cpu:
            return set()
        rules = (rule for rule in self._rules if not rule.ignore)
        return {proc.pid for rule in rules for proc in self._groups[rule.id].holding}

    def _step_harm(self, now_s: float) -> None:
        if self._section.node.mode == "fleet_first":
            self.harm.rest()
            return
        for rule in self._rules:
            state = self._states[rule.id]
            on = self.phases.on(rule.id)
            self.harm.step(rule, self._groups[rule.id], state.active, on, self.fleet_now, self._timing[rule.id], now_s)

    def _harm_pause(self, rule: Rule, key: str, now_s: float) -> RuleState | None:
        cooldown = self._timing[rule.id].cooldown
        return self._remembered.take(f"harm of {key}", self._digests[rule.id], now_s, cooldown)

    def _keep_timing(self) -> None:
        """Before anything is let go by it: what a rule holds outlives this process."""
        rules = {rule.id: self._digests[rule.id] for rule in self._rules if not rule.ignore}
        timings = [(name, digest, self._states[name]) for name, digest in rules.items()]
        harm = [(f"harm of {key}", rules[rule], pause) for rule, key, pause in self.harm.pauses()]
        self._remembered.keep([*timings, *harm])

    def _read_reserved(self) -> None:
        """What programs hold already of what is reserved for them."""
        total = 0.0
        for rule in self._rules:
            reserve = self._limits[rule.id, None][1]
            if reserve.mem_bytes and self._states[rule.id].active:
                total += min(reserve.mem_bytes, held_bytes(self._groups[rule.id].members))
        self.programs_hold_bytes = int(total)

    def _say_source(self, rule: Rule) -> None:
        if not self.hub.has_progress(rule.id):
            return
        if self._sources_ok.get(rule.id) != self.hub.readable(rule.id):
            view = self.hub.progress(rule.id)
            self._sources_ok[rule.id] = view.readable
            code = "PROTECTION_SOURCE_OK" if view.readable else view.code or "PROTECTION_SOURCE_UNREADABLE"
            self.journal.write(code, {"rule": rule.id, "path": str(view.path), "why": view.why})

    @property
    def fleet(self) -> set[int]:
        """Pids of the spawn registry and of this process, as of the last refresh."""
        return self._fleet

    # -- views ------------------------------------------------------------------------------------------------------

    def node_view(
        self, section: Section, how: Literal["tick", "event", "poll"], now_s: float, run: RunView | None
    ) -> NodeView:
        """The node at this instant. Between ticks only phases of ``immediate`` rules are looked at anew."""
        rules = []
        for rule in section.rules:
            if rule.ignore:
                continue
            state = self._states.get(rule.id)
            reaction, stall = self.harm.reaction(rule, stall=False), self.harm.reaction(rule, stall=True)
            cap, reserve = self._limits[rule.id, None]
            phases = self.phases.views(rule, how, self._limits)
            metrics = {rule.protect.metric} if rule.protect is not None else set()
            metrics |= {
                during.protect.metric
                for index, during in enumerate(rule.during)
                if during.protect is not None and index in self.phases.on(rule.id)
            }
            rules.append(
                RuleView(
                    id=rule.id,
                    # A rule that was never judged counts as holding.
                    active=state is None or state.active,
                    holding=state is None or state.holds,
                    uses_device=self.on_device.uses(rule.id, now_s),
                    device_doubt=self.on_device.gpus(rule.id, now_s).why,
                    devices=self.on_device.gpus(rule.id, now_s).devices,
                    protects_progress="progress_rate" in metrics,
                    protects_share="gpu_share" in metrics,
                    protects_stall="cpu_stall" in metrics,
                    pause=rule.pause_fleet.scope if rule.pause_fleet else None,
                    evict=rule.evict.scope if rule.evict else None,
                    phases=phases,
                    reaction=reaction.level if reaction is not None else None,
                    reaction_why=reaction.why if reaction is not None else "",
                    reaction_code=reaction.code if reaction is not None else "PROTECTION_BASELINE",
                    stall=stall.level if stall is not None else None,
                    stall_why=stall.why if stall is not None else "",
                    stall_code=stall.code if stall is not None else "PROTECTION_BASELINE",
                    measures=reaction is not None and reaction.measures,
                    lower=rule.lower_fleet.scope if rule.lower_fleet else None,
                    cap=cap,
                    reserve=reserve,
                )
            )
        node = section.node
        return NodeView(
            mode=node.mode,
            pause=node.pause,
            gpu_jobs=node.gpu_jobs,
            duty_device=node.duty_device,
            rules=tuple(rules),
            run=run,
            **self._admits(now_s),
        )

    def _admits(self, now_s: float) -> dict[str, Any]:
        """Whether anything may start or be let go: not on a look that is older than two ticks, since ticks that fail look at
        nothing, and what started between them would start beside a program that nobody sees.
        """
        if self._refreshed_s is None or now_s - self._refreshed_s > self.stale_after_s:
            ago = "yet" if self._refreshed_s is None else f"in the last {now_s - self._refreshed_s:.0f} s"
            why = f"the programs and the machine were not looked at {ago}: the agent's ticks are late or fail"
            return {"admits": False, "admits_why": why, "admits_code": "AGENT_BLIND", "fresh": False}
        return {"admits": self.memory.admits, "admits_why": self.memory.why}

    # -- for a run --------------------------------------------------------------------------------------------------

    def program(self, rule: str) -> frozenset[PidStart]:
        return frozenset(p.pid_start for p in self._roots(rule))

    def members(self, rule: str, older_s: float) -> frozenset[PidStart]:
        """The program's processes with all below them that are so old: what comes and goes is no worker of it."""
        found = self._groups.get(rule)
        before_ticks = (boottime_s() - older_s) * CLOCK_TICKS
        return frozenset(
            p.pid_start
            for p in (() if found is None else found.members)
            if p.start_ticks is not None and p.start_ticks <= before_ticks
        )

    def processes(self, rule: str) -> list[dict[str, Any]]:
        """The program's own processes, for people and for the fingerprint."""
        return [self._words(p) for p in self._roots(rule)]

    def program_unknown(self, rule: str) -> bool:
        """Some process may be the program and cannot be judged: what runs cannot be told, whatever else is known to run."""
        found = self._groups.get(rule)
        return found is None or bool(found.doubted)

    def program_pids(self) -> tuple[set[int], set[int]]:
        """(processes that certainly are protected programs, processes that may be one and cannot be judged)."""
        found = [self._groups[rule.id] for rule in self._rules if not rule.ignore and rule.id in self._groups]
        return {p.pid for group in found for p in group.members}, {p.pid for group in found for p in group.unreadable}

    @staticmethod
    def _words(proc: ProcInfo) -> dict[str, Any]:
        return {
            "pid": proc.pid,
            "start_ticks": proc.start_ticks,
            "name": proc.name,
            "exe": proc.exe,
            "argv": None if proc.argv is None else list(proc.argv),
        }

    def matches(self, section: Section) -> list[dict[str, Any]]:
        """For ``preview``: what each rule of a section would match now."""
        rules = [rule.model_copy(update={"match": expand_home(rule.match, self.home)}) for rule in section.rules]
        found = groups(rules, tuple(self.table.snapshot().values()), self._fleet)
        return [
            {
                "rule": name,
                "processes": [self._words(p) for p in group.roots],
                "members": len(group.members),
                "unreadable": [self._words(p) for p in group.unreadable],
            }
            for name, group in found.items()
        ]

    # -- for people -------------------------------------------------------------------------------------------------

    def describe(self) -> list[dict[str, Any]]:
        now_s = monotonic_s()
        return [
            {
                "id": rule.id,
                "active": state.active,
                "holds": state.holds,
                "resumes_in_s": None if state.resume_at_s is None else max(0.0, state.resume_at_s - now_s),
                "processes": self.processes(rule.id),
                "unreadable": len(self._groups[rule.id].unreadable),
                "uses_device": self.on_device.uses(rule.id, now_s),
                "device_doubt": self.on_device.gpus(rule.id, now_s).why,
                "devices": sorted(self.on_device.gpus(rule.id, now_s).devices or ()),
                "other_work": (told := self.harm.describe(rule)).get("level"),
                "reaction": told,
            }
            for rule in self._rules
            if (state := self._states.get(rule.id)) is not None and rule.id in self._groups
        ]
