"""The agent: reads signals, judges with pure functions, acts, journals. One tick every two seconds, and on events between.

What is decided stands in ``policies``; here is only the carrying out. ``evaluate`` is level-triggered: it compares what each
unit should do with what it does, so a missed moment is repaired by the next look.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nodes.agent.admitting import Admitting
from nodes.agent.aftermath import Aftermath
from nodes.agent.at_once import AtOnce
from nodes.agent.certificates import KeptCertificates
from nodes.agent.enforcing import Enforcing
from nodes.agent.governing import Governing
from nodes.agent.gpus import Gpus
from nodes.agent.harm import FleetNow
from nodes.agent.memory_claims import MemoryClaims
from nodes.agent.observe import Observer
from nodes.agent.revoking import settle
from nodes.agent.runs import ActiveRun, Runs
from nodes.agent.sections import Scope, Sections
from nodes.agent.seen_on_gpu import SeenOnGpu
from nodes.agent.under_test import UnderTest
from nodes.agent.units import Units
from nodes.capacity import usable_cores
from nodes.client import node_dir
from nodes.clock import boottime_s, monotonic_s
from nodes.identity import ProcessId
from nodes.jobs import Attempt, JobManager, Workloads
from nodes.journal import Journal
from nodes.meters.cpu import CpuMeter
from nodes.meters.device import DeviceMeters
from nodes.meters.reading import Unreadable
from nodes.modules import ModuleStore
from nodes.sources.hub import SourceHub
from nodes.sources.probe import Owner
from nodes.sources.views import PhaseUpdate, ProgressView
from policies.build_holds import build_holds
from policies.harness.conditions import Conditions
from policies.refusal import Refused
from policies.section import Section
from policies.section.effective import for_sources
from policies.views import NodeView

if TYPE_CHECKING:
    from nodes.sources.helper_rows import Row

__all__ = ["TICK_S", "Agent"]

log = logging.getLogger(__name__)

TICK_S = 2.0
# A build that is ended for want of memory waits until there is some again; one that takes it all itself is not begun for ever.
PREPARE_TRIES = 3
OWNER_FACT = "section_owner_uid"
How = Literal["tick", "event", "poll"]


class Agent:
    """State and effects of one node's agent. ``home`` is COTENANT_HOME; everything of the node lies under ``self.dir``."""

    def __init__(
        self, home: Path, node: str, builtin_modules: Path, pace: float = 1.0, owner_socket: Path | None = None
    ) -> None:
        self.home, self.node = home, node
        self.tick_s = TICK_S / pace
        self.dir = node_dir(home, node)
        self.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.journal = Journal(self.dir / "journal.sqlite")
        self.started_s = monotonic_s()
        self.sections = Sections(self.journal)
        self.modules = ModuleStore(self.dir, builtin_modules)
        self.jobs = JobManager(
            self.dir, self.journal.db, self.modules, self._note, monotonic_s,
            off_gpu=lambda attempt: self.enforcing.off_gpu(attempt),
        )  # fmt: skip
        self.owner = self._owner(serves_owners=owner_socket is not None)
        self.hub = SourceHub(monotonic_s, helper_socket=None if owner_socket is None else str(owner_socket))
        self.workloads = Workloads(self.jobs, self.modules, self._note)
        self.hub.configure(for_sources(self.section), self.owner)
        self.observer = Observer(self.journal, self.hub)
        self.observer.home = self.owner.home
        self.units = Units(self)
        self.enforcing = Enforcing(self)
        self.admitting = Admitting(self)
        self.claims = MemoryClaims(self)
        self.under_test = UnderTest(self)
        self.at_once = AtOnce(self.jobs, self.units.of_attempt, self.hub)
        self.meter = CpuMeter(in_group=self._cpu_s_in_group)
        meters = DeviceMeters(self._note, machine_memory=self.observer.memory.machine)
        self.gpus = Gpus(
            meters,
            self.jobs.attempts,
            self.jobs.tree,
            self.units.attempt_uses_gpu,
            note=self._note,
            seen=SeenOnGpu(self.journal),
            digest_of=self.jobs.registry.digest_of,
        )
        self.observer.on_device.meters, self.observer.read_devices = meters, self.gpus.read
        self.shares: dict[str, float | Unreadable] = {}
        self.ended_unread: list[tuple[Attempt, float]] = []
        self._had_share: set[str] = set()
        self._metered_s = monotonic_s()
        self.runs = Runs(self.journal)
        self.aftermath = Aftermath(self)
        # Of runs that nobody drives any more: how they ended could not be kept yet. Until it is, nothing is certified.
        self.unsettled: set[str] = set()
        self.certificates = KeptCertificates(self.journal, self.dir / "key")
        self.governing = Governing(self, pace)
        self.slots = usable_cores()
        self.at_once.configure(self.section)
        self.view = NodeView(
            admits=False, admits_why="the agent has not judged every rule yet", admits_code="AGENT_STARTING"
        )
        self._pulse = asyncio.Event()
        self.tick_late_s = 0.0
        self.ticked_s = self.started_s

    def _cpu_s_in_group(self, attempt_id: str) -> float | None:
        group = self.jobs.attempt(attempt_id).group
        return None if group is None else group.cpu_s()

    def _note(self, code: str, data: dict[str, Any]) -> None:
        self.journal.write(code, data)

    # -- the protection section -------------------------------------------------------------------------------------

    @property
    def section(self) -> Section:
        """What is in force: the stricter of the node's own section and the fleet's."""
        return self.sections.in_force

    @property
    def section_version(self) -> int:
        return self.sections.version

    @property
    def section_text(self) -> str:
        return self.sections.text

    def set_section(self, text: str, by: str, owner: Owner | None = None, scope: Scope = "node") -> int:
        """Validate and put in force. Raises ``SectionErrors`` and changes nothing when it is not valid.

        ``owner``: whose section it is from now on, where a system service learned that; else it stays whose it is.
        """
        version = self.sections.set(text, by, scope)
        if owner is not None and scope == "node":
            self.owner = owner
            self.journal.set_fact(OWNER_FACT, owner.uid)
        self.observer.home = self.owner.home
        self.hub.configure(for_sources(self.section), self.owner)
        self.observer.configure(self.section)
        self.at_once.configure(self.section)
        rules = [rule.id for rule in self.section.rules]
        self.journal.write("PROTECTION_CONFIG", {"version": version, "scope": scope, "by": by, "rules": rules})
        self.evaluate("tick")
        return version

    # -- the loop's steps -------------------------------------------------------------------------------------------

    def _owner(self, *, serves_owners: bool) -> Owner:
        """Whose section it is: this account's, or for a system service the account's that set it."""
        uid = self.journal.fact(OWNER_FACT) if serves_owners else None
        return Owner.of(uid) if isinstance(uid, int) else Owner(os.geteuid(), str(Path.home()))

    def start(self) -> None:
        """Adopt what an earlier agent left running, held, before anything else; it is judged by the first tick."""
        self.observer.configure(self.section)
        for attempt in self.jobs.adopt():
            self.journal.write("AGENT_ADOPTED", {"attempt": attempt.attempt_id, "job": attempt.job_id})
        self.observer.phases.remember_latencies()
        try:
            self.runs.interrupt_stale()
        except sqlite3.Error as error:
            log.error("runs that nobody drives any more cannot be ended, the next start tries it again: %s", error)
        for run in self.runs.left_open():
            settle(self, run)
            self.runs.remember_left(run)
        self.journal.write("AGENT_STARTED", {"pid": os.getpid(), "section_version": self.section_version})

    def tick(self) -> None:
        now_s = monotonic_s()
        self.at_once.notice()
        gone = self.runs.release_if_gone()
        if gone is not None and gone.measuring is None:  # else its block is cut first
            self.unsettled.add(gone.run)
        self.aftermath.step(now_s)
        for run in tuple(self.unsettled):
            settle(self, run)
        active = self.runs.active
        if active is not None and active.resting:
            # A self-cost run's OFF window: everything but the progress source rests, and what must never rest: memory
            # that runs out takes the program with it.
            self.observer.phases.note(self.hub.poll("tick"))
            self.observer.memory.read(now_s, self.trees(), self.section.node.memory)
            self.enforcing.evict_for_memory()
            self._hold_builds()
            self.jobs.tick(now_s)
            self._ticked(now_s)
            return
        self.take_phases(self.hub.poll("tick"))
        self.observer.fleet_now = self._fleet_now()
        self.observer.refresh(now_s, self.trees())
        self.take_phases(self.hub.look_at_programs(self.observer.table.snapshot(), self.observer.fleet))
        self._read_meter(now_s)
        if active is not None and active.part == "grant" and active.spec.feed is not None:
            self.under_test.feed(active)
        self.evaluate("tick")
        self.claims.step(now_s)
        self.jobs.tick(now_s)
        self.at_once.prepare()
        self._ticked(now_s)

    def _ticked(self, now_s: float) -> None:
        self.ticked_s = now_s
        self.modules.builds.judged(now_s)
        self.pulse()

    def _fleet_now(self) -> FleetNow:
        """Whether any fleet work ran since the last tick (one that is not seen held may run), and whether other work wants to.

        With ``gpu_jobs = "always"`` no rule holds device work, so it is none of the work that a rule's baseline is without.
        """
        free = self.section.node.gpu_jobs == "always"
        attempts = [a for a in self.jobs.attempts() if not (free and self.units.attempt_is_device(a))]
        ended = [a for a in self.jobs.ended_since(self.ticked_s) if not (free and self.units.attempt_is_device(a))]
        wanted = any(not self.units.attempt_is_device(a) for a in attempts)
        return FleetNow(
            ran=bool(ended) or any(a.state != "held" or not a.hold_confirmed for a in attempts),
            other_wanted=wanted
            or any(not self.units.device_work(*kind) for kind in {(j.module, j.stage) for j in self.jobs.waiting()}),
            run_active=self.runs.active is not None,
        )

    def _read_meter(self, now_s: float) -> None:
        """Each unit's share of the device since the last tick, for people and for the duty's compliance."""
        attempts = {a.attempt_id: a for a in self.jobs.attempts()}
        span_s = now_s - self._metered_s
        if span_s < self.tick_s / 2.0:
            return  # asked between two ticks: the share of a moment says nothing
        since_s, self._metered_s = self._metered_s, now_s
        self.ended_unread = self._ended_unread(since_s, span_s)
        readings = self.meter.read({name: self.jobs.tree(name) for name in attempts})
        self.shares = {
            name: busy if isinstance(busy, Unreadable) else busy / (span_s * attempts[name].cores)
            for name, busy in readings.items()
        }
        self.shares |= {
            name: self.gpus.share(name) for name, each in attempts.items() if self.units.attempt_on_gpu(each)
        }
        self._had_share = {
            name for name, share in self.shares.items() if isinstance(share, float) or name in self._had_share
        }
        self.governing.metered()
        self.enforcing.end_what_no_pause_holds(now_s)

    def share_age_s(self, attempt: Attempt) -> float:
        """How old what its share was read from is (monotonic seconds)."""
        now_s = monotonic_s()
        on_gpu = self.units.attempt_on_gpu(attempt)
        return max(now_s - self._metered_s, self.gpus.share_age_s(attempt.attempt_id, now_s) if on_gpu else 0.0)

    def _ended_unread(self, since_s: float, span_s: float) -> list[tuple[Attempt, float]]:
        """Units that ended since then and never had a share: each with its share of these ``span_s`` seconds of the device."""
        found = []
        for attempt in self.jobs.ended_since(since_s):
            name = attempt.attempt_id
            on_gpu = self.units.attempt_on_gpu(attempt)
            busy_s = self.gpus.total(name, None) if on_gpu else attempt.cpu_s
            wall_s = max(0.01, (attempt.ended_mono_s or since_s) - attempt.spawned_mono_s)
            if name not in self._had_share and isinstance(busy_s, float):
                cores = 1.0 if on_gpu else attempt.cores
                found.append((attempt, busy_s / (wall_s * cores) * min(1.0, wall_s / span_s)))
        return found

    def step_jobs(self) -> None:
        """Between ticks: graces, confirmations and ends of attempts. Only while the ticks themselves succeed: the bytes that
        keep launchers from holding their runners must not go on when nobody judges any more.
        """
        if not self.jobs.attempts() or monotonic_s() - self.ticked_s > 2 * TICK_S:
            return
        before = [attempt.attempt_id for attempt in self.jobs.attempts()]
        self.jobs.tick(monotonic_s())
        if before != [attempt.attempt_id for attempt in self.jobs.attempts()]:
            self.evaluate("event")
        self.at_once.prepare()
        self.pulse()

    def on_source_event(self) -> None:
        """The watcher woke us: read what changed; a phase of an ``immediate`` rule acts now, the rest waits for the tick."""
        self._act_on(lambda: self.hub.poll("event"))

    def on_helper_report(self, home: str, rows: Sequence[Row]) -> None:
        """The session helper in ``home`` reports: its phases act like those that the watcher saw."""
        self._act_on(lambda: self.hub.take_report(home, rows))

    def _act_on(self, read: Callable[[], Sequence[PhaseUpdate]]) -> None:
        with self.journal.together():
            braked = self.at_once.notice()
            updates = read()
            if updates:
                self.take_phases(updates, every_rule=False)
            immediate = {rule.id for rule in self.section.rules if rule.immediate}
            # what was stopped ahead of the reading is judged in any case: it may have to go on
            if braked or any(update.rule_id in immediate for update in updates):
                self.evaluate("event")
        self.pulse()

    def sources(self) -> list[dict[str, Any]]:
        """A row a source, as the verb ``sources`` gives them."""
        rows = self.hub.describe()
        for row in rows:
            kept = self.observer.phases.latencies.get((row["rule"], row["index"])) if row["role"] == "phase" else None
            if kept is not None:
                row |= {"latency_p50_ms": kept.quantile_ms(0.5), "latency_p99_ms": kept.quantile_ms(0.99)}
        return rows

    def take_phases(self, updates: Sequence[PhaseUpdate], *, every_rule: bool = True) -> None:
        """Stop what phases that just began pause, then say so."""
        paused = self.at_once.pause(updates, every_rule=every_rule)
        self.observer.phases.note(updates, paused)
        jobs = {attempt.attempt_id: attempt.job_id for attempt in self.jobs.attempts()} if paused else {}
        for each in paused.values():
            for name in each.held:
                self.journal.write("PROTECTION_PAUSE", {"attempt": name, "job": jobs.get(name), "why": [each.why]})

    def evaluate(self, how: How) -> None:
        """Judge every unit and every waiting job, and carry it out."""
        now_s = monotonic_s()
        run = self.runs.active
        seen = self.observer.node_view(self.section, how, now_s, run.view() if run is not None else None)
        self.view = self.governing.applied(self.sections.said_in(seen), how)
        self._hold_builds()
        self.enforcing.carry_out()
        self.enforcing.evict_for_memory()
        if self.admitting.admit():
            # A newcomer takes its share from the others at once, not at the next tick.
            self.enforcing.carry_out()
        self.at_once.prepare()

    def _hold_builds(self) -> None:
        off_gpu, on_gpu = ("; ".join(each.why for each in build_holds(self.view, gpu=gpu)) for gpu in (False, True))
        self.modules.builds.hold(off_gpu or None, on_gpu=on_gpu or None, short_of_memory=self.observer.memory.shortage)

    def prepare_modules(self) -> None:
        """Add the bundles that come with the product. Blocks for as long as their doctors take, and while something holds them
        (then ``modules`` says what): call it in a thread.
        """
        for name in self.modules.pending():
            for _ in range(PREPARE_TRIES):
                try:
                    state = self.modules.prepare(name)
                except Refused as refused:
                    log.warning("module %s: %s", name, refused.why)
                    break
                if self.modules.builds.is_over:
                    return
                if state is None or not state.unheard:
                    break

    def begin_shutdown(self) -> None:
        """Nothing is admitted any more; the run's block is cut; every attempt is stopped within its grace and requeued; builds end."""
        if self.runs.active is not None:
            self.runs.active.ending = "cut"
        self.jobs.shutdown(monotonic_s())
        self.at_once.prepare()
        self.modules.builds.end()
        self.certificates.ages.keep()

    def trees(self) -> dict[str, list[ProcessId]]:
        """Processes of the spawn registry by attempt: they match no rule, ever."""
        return {attempt.attempt_id: self.jobs.tree(attempt.attempt_id) for attempt in self.jobs.attempts()}

    # -- what a block asks ------------------------------------------------------------------------------------------

    def conditions(self, run: ActiveRun) -> Conditions:
        view = self.progress(run.spec.rule)
        return Conditions(
            program=self.observer.program(run.spec.rule),
            phases_on=self.observer.phases.names_on(run.spec.rule),
            phases_begun=self.observer.phases.begun(run.spec.rule),
            asleep_s=boottime_s() - monotonic_s(),
            power=self.observer.power,
            memory_hard=self.observer.memory.level == "hard",
            owner_pause=self.section.node.pause,
            source_why=None if view.readable else view.why,
        )

    def progress(self, rule: str) -> ProgressView:
        return self.hub.progress(rule)

    def sources_keep_since(self, rule: str, since_s: float | None) -> None:
        if self.hub.has_progress(rule):
            self.hub.progress(rule).track.keep_since(since_s)

    def program_devices(self, rule: str) -> frozenset[str] | None:
        """The GPUs that the rule's program uses, or may use; None: it may be any."""
        return next((each.devices for each in self.view.rules if each.id == rule), None) or None

    def program_seen_on(self, rule: str, since_s: float) -> frozenset[str]:
        """The devices that the rule's program was seen to use at some time since then ("cpu": the CPU as duty device).

        A tick earlier counts as well: what is read at a tick is of the time since the one before, and a short window holds few.
        """
        return self.observer.on_device.seen_on(rule, since_s - self.tick_s)

    # -- pulses -----------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return monotonic_s()

    def pulse(self) -> None:
        """Wake whoever waits for something to change."""
        self._pulse.set()

    async def next_pulse(self, at_most_s: float) -> None:
        self._pulse.clear()
        try:
            await asyncio.wait_for(self._pulse.wait(), max(0.0, min(at_most_s, TICK_S)))
        except TimeoutError:
            pass
