"""The agent: reads signals, judges with pure functions, acts, journals. One tick every two seconds, and on events between.

What is decided stands in ``policies``; here is only the carrying out. ``evaluate`` is level-triggered: it compares what each
unit should do with what it does, so a missed moment is repaired by the next look.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nodes.agent.at_once import AtOnce
from nodes.agent.certificates import KeptCertificates
from nodes.agent.governing import Governing, model_of
from nodes.agent.gpus import Gpus
from nodes.agent.harm import FleetNow
from nodes.agent.observe import Observer
from nodes.agent.runs import ActiveRun, Runs
from nodes.agent.sections import Scope, Sections
from nodes.capacity import usable_cores
from nodes.client import node_dir
from nodes.clock import boottime_s, monotonic_s
from nodes.feeds import feed_payload
from nodes.identity import ProcessId
from nodes.jobs import Attempt, Job, JobManager, Workloads
from nodes.journal import Journal
from nodes.meters.cpu import CpuMeter, Unreadable
from nodes.meters.device import DeviceMeters
from nodes.modules import ModuleStore
from nodes.sources.hub import SourceHub
from nodes.sources.probe import Owner
from nodes.sources.views import PhaseUpdate, ProgressView
from policies.admission import Room, Taken, admission
from policies.harness.conditions import Conditions
from policies.manifest import Gpu
from policies.refusal import Refused
from policies.section import Section
from policies.section.effective import for_sources
from policies.units import Desired, NodeView, Reason, Unit, caps_in_force, desired, duties, is_lowered

if TYPE_CHECKING:
    from nodes.sources.helper_rows import Row

__all__ = ["TICK_S", "Agent", "TestedUnit", "covered_s"]

log = logging.getLogger(__name__)

TICK_S = 2.0
OWNER_FACT = "section_owner_uid"
# A held unit's last kernels have ended by then; a share above this in so many samples in a row is no pause.
HELD_SETTLES_S, HELD_SHARE, HELD_SAMPLES = 10.0, 0.1, 3
CPU_METER = "cpu: user and kernel time of the process tree"
How = Literal["tick", "event", "poll"]


@dataclass(frozen=True, slots=True)
class TestedUnit:
    """What a window's dose needs to know of a unit under test. ``busy_s``: metered device seconds since it started;
    ``device``: it is device work.
    """

    module: str
    stage: str
    cores: float
    duty: float | None
    busy_s: float | Unreadable
    digest: str | None
    device: bool = True


def covered_s(spans: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Seconds of [begin, end] that at least one of the spans covers."""
    total, at = 0.0, begin_s
    for start, stop in sorted(spans):
        low, high = max(start, at), min(stop, end_s)
        if high > low:
            total, at = total + high - low, high
    return total


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
        self.jobs = JobManager(self.dir, self.journal.db, self.modules, self._note, monotonic_s)
        self.owner = self._owner(serves_owners=owner_socket is not None)
        self.hub = SourceHub(monotonic_s, helper_socket=None if owner_socket is None else str(owner_socket))
        self.workloads = Workloads(self.jobs, self.modules, self._note)
        self.hub.configure(for_sources(self.section), self.owner)
        self.observer = Observer(self.journal, self.hub)
        self.observer.home = self.owner.home
        self.at_once = AtOnce(self.jobs, self.unit)
        self.meter = CpuMeter()
        meters = DeviceMeters(self._note, machine_memory=self.observer.machine_memory)
        self.gpus = Gpus(meters, self.jobs.attempts, self.jobs.tree, lambda a: self._uses_gpu(a.module, a.stage))
        self.observer.devices, self.observer.read_devices = meters, self.gpus.read
        self.shares: dict[str, float | Unreadable] = {}
        self._going_on: dict[str, int] = {}
        self._metered_s = monotonic_s()
        self.runs = Runs(self.journal)
        self.certificates = KeptCertificates(self.journal, self.dir / "key")
        self.governing = Governing(self, pace)
        self.slots = usable_cores()
        self._put_on: dict[int, str | None] = {}
        self.at_once.configure(self.section)
        self.view = NodeView(
            admits=False, admits_why="the agent has not judged every rule yet", admits_code="AGENT_STARTING"
        )
        self._pulse = asyncio.Event()
        self.tick_late_s = 0.0
        self.ticked_s = self.started_s

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
        self.observer.remember_latencies()
        self.runs.interrupt_stale()
        self.journal.write("AGENT_STARTED", {"pid": os.getpid(), "section_version": self.section_version})

    def tick(self) -> None:
        now_s = monotonic_s()
        gone = self.runs.release_if_gone()
        if gone is not None:
            self.end_feed(gone.run)
        active = self.runs.active
        if active is not None and active.resting:
            # A self-cost run's OFF window: everything but the progress source rests.
            self.observer.note_phases(self.hub.poll("tick"))
            self.jobs.tick(now_s)
            self.ticked_s = now_s
            self.pulse()
            return
        self.take_phases(self.hub.poll("tick"))
        self.observer.fleet_now = self._fleet_now()
        self.observer.refresh(now_s, self.trees())
        self.take_phases(self.hub.look_at_programs(self.observer.table.snapshot(), self.observer.fleet))
        self._read_meter(now_s)
        if active is not None and active.part == "grant" and active.spec.feed is not None:
            self.feed(active)
        self.evaluate("tick")
        self.jobs.tick(now_s)
        self.ticked_s = now_s
        self.pulse()

    def _fleet_now(self) -> FleetNow:
        """Whether any fleet work ran since the last tick (one that is not seen held may run), and whether other work wants to.

        With ``gpu_jobs = "always"`` no rule holds device work, so it is none of the work that a rule's baseline is without.
        """
        free = self.section.node.gpu_jobs == "always"
        attempts = [a for a in self.jobs.attempts() if not (free and self._device_work(a.module, a.stage))]
        ended = [a for a in self.jobs.ended_since(self.ticked_s) if not (free and self._device_work(a.module, a.stage))]
        wanted = any(not self._device_work(a.module, a.stage) for a in attempts)
        return FleetNow(
            ran=bool(ended) or any(a.state != "held" or not a.hold_confirmed for a in attempts),
            other_wanted=wanted or any(not self._device_work(job.module, job.stage) for job in self.jobs.waiting()),
            run_active=self.runs.active is not None,
        )

    def _read_meter(self, now_s: float) -> None:
        """Each unit's share of the device since the last tick, for people and for the duty's compliance."""
        attempts = {a.attempt_id: a for a in self.jobs.attempts()}
        span_s = now_s - self._metered_s
        if span_s < self.tick_s / 2.0:
            return  # asked between two ticks: the share of a moment says nothing
        self._metered_s = now_s
        readings = self.meter.read(now_s, {name: self.jobs.tree(name) for name in attempts})
        self.shares = {
            name: busy if isinstance(busy, Unreadable) else busy / (span_s * attempts[name].cores)
            for name, busy in readings.items()
        }
        self.shares |= {
            name: self.gpus.share(name) for name, each in attempts.items() if self.on_gpu(each.module, each.stage)
        }
        self.governing.metered()
        self._end_what_no_pause_holds(now_s)

    def _end_what_no_pause_holds(self, now_s: float) -> None:
        """Stop a unit that is held and goes on using the GPU: its CPU time alone does not show that."""
        going: dict[str, int] = {}
        for attempt in self.jobs.attempts():
            since_s, share = attempt.held_since_mono_s, self.shares.get(attempt.attempt_id)
            if attempt.state != "held" or since_s is None or now_s - since_s <= HELD_SETTLES_S:
                continue
            if isinstance(share, float) and share > HELD_SHARE and self.on_gpu(attempt.module, attempt.stage):
                going[attempt.attempt_id] = self._going_on.get(attempt.attempt_id, 0) + 1
                if going[attempt.attempt_id] == HELD_SAMPLES:
                    facts = {"job": attempt.job_id, "attempt": attempt.attempt_id, "device_share": round(share, 3)}
                    self.journal.write("JOB_NOT_HELD", facts)
                    self.jobs.stop(attempt.attempt_id, "held, and still using the GPU", requeue=True, fault=False)
        self._going_on = going

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
        self.pulse()

    def on_source_event(self) -> None:
        """The watcher woke us: read what changed; a phase of an ``immediate`` rule acts now, the rest waits for the tick."""
        with self.journal.together():
            self._act_on(self.hub.poll("event"))
        self.pulse()

    def on_helper_report(self, home: str, rows: Sequence[Row]) -> None:
        """The session helper in ``home`` reports: its phases act like those that the watcher saw."""
        with self.journal.together():
            self._act_on(self.hub.take_report(home, rows))
        self.pulse()

    def _act_on(self, updates: Sequence[PhaseUpdate]) -> None:
        if not updates:
            return
        self.take_phases(updates, every_rule=False)
        immediate = {rule.id for rule in self.section.rules if rule.immediate}
        if any(update.rule_id in immediate for update in updates):
            self.evaluate("event")

    def sources(self) -> list[dict[str, Any]]:
        """A row a source, as the verb ``sources`` gives them."""
        rows = self.hub.describe()
        for row in rows:
            kept = self.observer.latencies.get((row["rule"], row["index"])) if row["role"] == "phase" else None
            if kept is not None:
                row |= {"latency_p50_ms": kept.quantile_ms(0.5), "latency_p99_ms": kept.quantile_ms(0.99)}
        return rows

    def take_phases(self, updates: Sequence[PhaseUpdate], *, every_rule: bool = True) -> None:
        """Stop what phases that just began pause, then say so."""
        paused = self.at_once.pause(updates, every_rule=every_rule)
        self.observer.note_phases(updates, paused)
        jobs = {attempt.attempt_id: attempt.job_id for attempt in self.jobs.attempts()} if paused else {}
        for each in paused.values():
            for name in each.held:
                self.journal.write("PROTECTION_PAUSE", {"attempt": name, "job": jobs.get(name), "why": [each.why]})

    def evaluate(self, how: How) -> None:
        """Judge every unit and every waiting job, and carry it out."""
        now_s = monotonic_s()
        run = self.runs.active
        seen = self.observer.node_view(self.section, how, now_s, run.view() if run is not None else None)
        self.view = self.governing.applied(seen, how)
        self._carry_out()
        self._evict_for_memory()
        if self._admit():
            # A newcomer takes its share from the others at once, not at the next tick.
            self._carry_out()
        self.at_once.prepare()

    def _carry_out(self) -> None:
        """Bring each unit to what it should do. Pauses first, all of one reason together: they are what cannot wait."""
        live = {attempt.attempt_id: attempt for attempt in self.jobs.attempts() if attempt.state != "stopping"}
        wanted = [each for each in desired([self.unit(a) for a in live.values()], self.view) if each.attempt in live]
        pauses: dict[tuple[str, bool], list[str]] = {}
        for each in wanted:
            attempt = live[each.attempt]
            if each.action == "pause" and (attempt.state != "held" or attempt.hold_unlimited != each.unlimited):
                why = "; ".join(reason.why for reason in each.reasons)
                pauses.setdefault((why, each.unlimited), []).append(each.attempt)
        newly_held = [name for names in pauses.values() for name in names if live[name].state != "held"]
        for (why, unlimited), names in pauses.items():
            self.jobs.hold_all(names, why, unlimited=unlimited)
        for each in wanted:
            self._carry_out_one(live[each.attempt], each, each.attempt in newly_held)

    def _carry_out_one(self, attempt: Attempt, wanted: Desired, newly_held: bool) -> None:
        facts = {"attempt": attempt.attempt_id, "job": attempt.job_id, "why": [reason.why for reason in wanted.reasons]}
        if wanted.action == "evict":
            self.journal.write("PROTECTION_EVICT", facts)
            requeue = attempt.feed_of is None
            self.jobs.stop(attempt.attempt_id, wanted.reasons[0].why, requeue=requeue, fault=False)
        elif wanted.action == "pause":
            if newly_held:
                self.journal.write("PROTECTION_PAUSE", facts)
        else:
            if attempt.duty != wanted.duty:
                self.jobs.set_duty(attempt.attempt_id, wanted.duty)
            self._limit(attempt, wanted)
            if attempt.state == "held":
                self.journal.write("PROTECTION_RESUME", facts | {"duty": wanted.duty})
                self.jobs.release(attempt.attempt_id)

    def _limit(self, attempt: Attempt, wanted: Desired) -> None:
        """Its threads and its scheduling class; both are left as they are while it is held or stopped."""
        if attempt.threads != wanted.threads:
            self.jobs.set_threads(attempt.attempt_id, wanted.threads)
        if attempt.lowered != wanted.lowered:
            self.journal.write("PROTECTION_LOWERED" if wanted.lowered else "PROTECTION_RAISED",
                               {"attempt": attempt.attempt_id, "job": attempt.job_id})  # fmt: skip
            self.jobs.set_lowered(attempt.attempt_id, wanted.lowered)

    def _evict_for_memory(self) -> None:
        victim = self.observer.take_memory_victim()
        for attempt in self.jobs.attempts():
            if attempt.attempt_id == victim and attempt.state != "stopping":
                self.journal.write("PROTECTION_EVICT", {"attempt": victim, "why": ["memory is very short"]})
                self.jobs.stop(victim, "memory is very short", requeue=True, fault=False)

    def _admit(self) -> bool:
        """Start what may start, oldest first; keep for the rest why it waits. Whether anything was started."""
        before = len(self.jobs.attempts())
        for job, left_s in self.jobs.backing_off():
            self.jobs.note_waiting(
                job.job, "JOB_BACKOFF", f"its last attempt failed; the next one may begin in {left_s:.0f} s"
            )
        for job in self.jobs.waiting():
            why = self.why_waiting(job)
            if why:
                first = why[0]
                remedy = next((reason.remedy for reason in why if reason.remedy), None)
                self.jobs.note_waiting(job.job, first.code, "; ".join(reason.why for reason in why), remedy)
                continue
            device = self._put_on.pop(job.job, None)
            unit = replace(self.unit_of_job(job), devices=None if device is None else frozenset({device}))
            others = [self.unit(attempt) for attempt in self.jobs.attempts()]
            try:
                started = self.jobs.start(
                    job.job,
                    device_env=self.gpus.environment(device),
                    duty=duties([*others, unit], self.view).get(unit.attempt),
                    threads=caps_in_force(self.view).threads,
                )
            except Refused as refused:
                self.jobs.note_waiting(job.job, refused.code, refused.why, refused.remedy)
            else:
                if is_lowered(unit, self.view):
                    self.jobs.set_lowered(started.attempt_id, True)
        return len(self.jobs.attempts()) > before

    def why_waiting(self, job: Job) -> list[Reason]:
        """Everything that keeps a waiting job from starting now; empty: it may start."""
        ready, why = self.modules.ready(job.module)
        if not ready:
            return [Reason("MODULE_NOT_READY", why, f"cotenant module doctor {job.short}")]
        unit, room, declared = self.unit_of_job(job), self._room(), self._declared_bytes(job)
        if not unit.gpu:
            return list(admission(unit, self.view, room, declared))
        found = self.gpus.place(
            unit,
            self._gpu_of(job),
            self.section.node.memory.soft_free_pct,
            lambda placed: admission(placed, self.view, room, declared),
        )
        self._put_on[job.job] = found.device
        return list(found.reasons)

    def _gpu_of(self, job: Job) -> Gpu:
        found = self.modules.get(job.module)
        return Gpu() if found is None or found.manifest is None else found.manifest.gpu_of(job.stage)

    def _room(self) -> Room:
        """What the node has for fleet work, and what is taken of it."""
        taken = tuple(
            Taken(self.unit(a), a.mem_gb * 1e9, self.observer.footprints.get(a.attempt_id))
            for a in self.jobs.attempts()
        )
        return Room(
            self.slots,
            float(usable_cores()),
            taken,
            self.observer.memory.pools,
            self.section.node.memory.soft_free_pct,
            self.observer.programs_hold_bytes,
        )

    def _declared_bytes(self, job: Job) -> float:
        module = self.modules.get(job.module)
        stage = module.manifest.stage(job.stage) if module is not None and module.manifest is not None else None
        return stage.requires.resources.mem_gb * 1e9 if stage is not None else 0.0

    def prepare_modules(self) -> None:
        """Add the bundles that come with the product. Blocks for as long as their doctors take: call it in a thread."""
        for name in self.modules.pending():
            try:
                self.modules.prepare(name)
            except Refused as refused:
                log.warning("module %s: %s", name, refused.why)

    def begin_shutdown(self) -> None:
        """Nothing is admitted any more; the run's block is cut; every attempt is stopped within its grace and requeued."""
        if self.runs.active is not None:
            self.runs.active.ending = "cut"
        self.jobs.shutdown(monotonic_s())

    def trees(self) -> dict[str, list[ProcessId]]:
        """Processes of the spawn registry by attempt: they match no rule, ever."""
        return {attempt.attempt_id: self.jobs.tree(attempt.attempt_id) for attempt in self.jobs.attempts()}

    # -- what units are ---------------------------------------------------------------------------------------------

    def is_device(self, gpu_use: str) -> bool:
        """Whether a module's work counts as device work: it uses the GPU, or the CPU is the duty device."""
        return gpu_use != "none" or self.section.node.duty_device == "cpu"

    def unit(self, attempt: Attempt) -> Unit:
        work = self.governing.work_of_attempt(attempt)
        return Unit(
            attempt.attempt_id,
            attempt.job_id,
            attempt.module,
            attempt.stage,
            self._device_work(attempt.module, attempt.stage),
            "cooperative_throttle" in attempt.capabilities,
            attempt.feed_of,
            cores=attempt.cores,
            gpu=self._uses_gpu(attempt.module, attempt.stage),
            digest=work.digest,
            model=work.model,
            devices=self.gpus.devices_of(attempt) if self._uses_gpu(attempt.module, attempt.stage) else None,
        )

    def unit_of_job(self, job: Job) -> Unit:
        module = self.modules.get(job.module)
        throttles = (
            module is not None
            and module.manifest is not None
            and "cooperative_throttle" in module.manifest.ways_of(job.stage)
        )
        stage = module.manifest.stage(job.stage) if module is not None and module.manifest is not None else None
        return Unit(
            "",
            job.job,
            job.module,
            job.stage,
            self._device_work(job.module, job.stage),
            throttles,
            job.feed_of,
            cores=stage.requires.resources.cpu if stage is not None else 1.0,
            gpu=self._uses_gpu(job.module, job.stage),
            digest=None if module is None else module.digest,
            model=model_of(job.payload),
        )

    def _uses_gpu(self, module: str, stage: str) -> bool:
        """Whether the module's work needs a GPU; of one that is gone or broken that cannot be told, so it counts as such."""
        found = self.modules.get(module)
        return found is None or found.manifest is None or found.manifest.gpu_of(stage).use != "none"

    def on_gpu(self, module: str, stage: str) -> bool:
        """Whether a unit's share is counted on a GPU: it uses one, and that is the duty device."""
        return self.section.node.duty_device == "gpu" and self._uses_gpu(module, stage)

    def meter_words(self, work: Sequence[tuple[str, str]]) -> str:
        """What the dose of work (module, stage) is metered with."""
        found = {self.gpus.meters.words() if self.on_gpu(*each) else CPU_METER for each in work}
        return "; ".join(sorted(found)) or CPU_METER

    def _device_work(self, module: str, stage: str) -> bool:
        """Work of a module that is gone or broken counts as device work: the stricter of the two."""
        found = self.modules.get(module)
        return found is None or found.manifest is None or self.is_device(found.manifest.gpu_of(stage).use)

    def tested(self, run: ActiveRun) -> list[Attempt]:
        view = run.view()
        return [attempt for attempt in self.jobs.attempts() if view.tests(self.unit(attempt))]

    # -- what a block asks ------------------------------------------------------------------------------------------

    def conditions(self, run: ActiveRun) -> Conditions:
        view = self.progress(run.spec.rule)
        return Conditions(
            program=self.observer.program(run.spec.rule),
            phases_on=self.observer.phases_on(run.spec.rule),
            phases_begun=self.observer.phases_begun(run.spec.rule),
            asleep_s=boottime_s() - monotonic_s(),
            power=self.observer.power,
            memory_hard=self.observer.memory_level == "hard",
            owner_pause=self.section.node.pause,
            source_why=None if view.readable else view.why,
        )

    def progress(self, rule: str) -> ProgressView:
        return self.hub.progress(rule)

    def sources_keep_since(self, rule: str, since_s: float | None) -> None:
        if self.hub.has_progress(rule):
            self.hub.progress(rule).track.keep_since(since_s)

    def work_runs(self, run: ActiveRun) -> bool:
        """Whether the work under test runs: some unit of it is not held and has written its first phase."""
        return any(a.state == "running" and a.first_phase_mono_s is not None for a in self.tested(run))

    def work_held(self, run: ActiveRun) -> bool:
        """Whether nothing of the work under test can run: each unit is seen held, or gone."""
        return all(a.state == "held" and a.hold_confirmed for a in self.tested(run))

    def why_not_running(self, run: ActiveRun) -> str:
        view = run.view()
        for job in self.jobs.waiting():
            if view.tests(self.unit_of_job(job)):
                return job.reason or "it waits"
        return "none of it is queued" if not self.tested(run) else "it has not written its first phase"

    def stop_tested_work(self, run: ActiveRun, why: str) -> None:
        for attempt in self.tested(run):
            if attempt.state != "stopping":
                self.jobs.stop(attempt.attempt_id, why, requeue=attempt.feed_of is None, fault=False)

    def feed(self, run: ActiveRun) -> None:
        """See that a unit of the fed stage is there: one lives or waits, else one is queued."""
        if any(a.feed_of == run.run and a.state != "stopping" for a in self.jobs.attempts()):
            self.evaluate("tick")
            return
        if not any(job.feed_of == run.run for job in self.jobs.waiting()):
            module, stage, payload = feed_payload(self.modules, str(run.spec.feed))
            self.jobs.submit(module, stage, payload, feed_of=run.run)
        self.evaluate("tick")

    def end_feed(self, run: str) -> None:
        for attempt in self.jobs.attempts():
            if attempt.feed_of == run and attempt.state != "stopping":
                self.jobs.stop(attempt.attempt_id, "the run it fed has ended", requeue=False, fault=False)
        for job in self.jobs.waiting():
            if job.feed_of == run:
                self.jobs.cancel(job.job)

    def work_ran_s(self, run: ActiveRun, begin_s: float, end_s: float) -> float:
        """Seconds of the stretch in which some unit under test ran; two at once count once."""
        view, spans = run.view(), []
        for attempt in [*self.jobs.attempts(), *self.jobs.ended_since(begin_s)]:
            begun = attempt.first_phase_mono_s
            if begun is not None and view.tests(self.unit(attempt)):
                spans += [(max(start, begun), end_s if end is None else end) for start, end in attempt.transitions]
        return covered_s(spans, begin_s, end_s)

    def program_devices(self, rule: str) -> frozenset[str] | None:
        """The GPUs that the rule's program uses, or may use; None: it may be any."""
        return next((each.devices for each in self.view.rules if each.id == rule), None) or None

    def tests_device_work(self, run: ActiveRun) -> bool:
        """Whether some of the work under test is device work: then the dose is what that held of the device."""
        work = self.runs.record(run.run).get("work") or ()
        return any(self._device_work(str(item["module"]), str(item["stage"])) for item in work)

    def busy_totals(
        self, run: ActiveRun, since_s: float | None = None, only: frozenset[str] | None = None
    ) -> dict[str, TestedUnit]:
        """Metered seconds so far of each unit under test, by attempt; ``since_s``: also of those that ended since;
        ``only``: of GPUs, these.
        """
        tested = self.tested(run)
        totals = dict(self.meter.total({a.attempt_id: self.jobs.tree(a.attempt_id) for a in tested}))
        on_gpu = [a.attempt_id for a in tested if self.on_gpu(a.module, a.stage)]
        if on_gpu:
            self.gpus.read_now()
            totals |= {name: self.gpus.total(name, since_s, only) for name in on_gpu}
        found = {a.attempt_id: self._tested_unit(a, totals[a.attempt_id]) for a in tested}
        if since_s is not None:
            view = run.view()
            for attempt in self.jobs.ended_since(since_s):
                if view.tests(self.unit(attempt)):
                    busy: float | Unreadable = Unreadable("it ended unseen") if attempt.cpu_s is None else attempt.cpu_s
                    if self.on_gpu(attempt.module, attempt.stage):
                        busy = self.gpus.total(attempt.attempt_id, since_s, only)
                    found[attempt.attempt_id] = self._tested_unit(attempt, busy)
        return found

    def _tested_unit(self, attempt: Attempt, busy_s: float | Unreadable) -> TestedUnit:
        bundle = self.jobs.registry.bundle_of(attempt.attempt_id)
        digest = None if bundle is None else Path(bundle).name
        cores = 1.0 if self.on_gpu(attempt.module, attempt.stage) else attempt.cores  # of a GPU a unit has one whole
        device = self._device_work(attempt.module, attempt.stage)
        return TestedUnit(attempt.module, attempt.stage, cores, attempt.duty, busy_s, digest, device)

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
