"""The verbs of the socket (``docs/architecture.md`` lists them): thin, each checks its input and asks the agent."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nodes.agent.certify import Certifier
from nodes.agent.core import Agent
from nodes.agent.explain import explain, unknown_sections
from nodes.agent.measure import Measurer
from nodes.agent.plan import Planner
from nodes.agent.preview import preview
from nodes.agent.sections import checked_scope
from nodes.agent.subject import Subject
from nodes.clock import monotonic_s
from nodes.identity import ProcessId, boot_id, liveness, own_id
from nodes.jobs import Job
from nodes.jobs.registry import EVERY
from nodes.machine import read_machine
from nodes.meters.reading import Unreadable
from nodes.rpc import Peer, Verb
from nodes.sources.probe import Owner
from policies.doctor import Gpu, judge_machine, lacking
from policies.harness.kept import run_row
from policies.harness.rows import Order
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from policies.section import SectionErrors, digest
from policies.version import AGENT_PROTOCOL, VERSION

__all__ = ["Verbs"]

EVENTS_BYTES = 1 << 19
# In ``status``; ``job_list`` has all.
WAITING_SHOWN = 200


class Verbs:
    """One method a verb; ``table`` is what the server serves."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._adding = 0
        subject = Subject(agent)
        self.planner = Planner(agent, subject)
        self.measurer = Measurer(agent, self.planner, subject)
        self.certifier = Certifier(agent, subject)

    def table(self) -> dict[str, Verb]:
        measure, certify = self.measurer, self.certifier
        return {
            "hello": self.hello,
            "status": self.status,
            "section_show": self.section_show,
            "section_versions": self.section_versions,
            "section_preview": self.section_preview,
            "section_set": self._section_set,
            "doctor": self.doctor,
            "sources": self.agent.sources,
            "duty": self.agent.governing.view,
            "modules": self.modules,
            "module_add": self.module_add,
            "module_doctor": self.module_doctor,
            "job_submit": self.job_submit,
            "job_list": self.job_list,
            "job_show": self.job_show,
            "job_events": self.job_events,
            "job_cancel": self.job_cancel,
            "explain": self.explain,
            "workload_start": self.workload_start,
            "workload_stop": self.workload_stop,
            "workload_list": self.workload_list,
            "timeline": self.timeline,
            "admit_flow": self.admit_flow,
            "sweep_begin": self.sweep_begin,
            "sweep_end": self.sweep_end,
            "run_plan": self.run_plan,
            "run_begin": self.run_begin,
            "run_reference": measure.reference,
            "run_block": self.run_block,
            "run_look": measure.look,
            "run_status": self.run_status,
            "run_end": self.run_end,
            "run_abort": self.run_abort,
            "run_show": self.run_show,
            "run_list": self.run_list,
            "certificate_offer": certify.offer,
            "certificates": certify.listed,
        }

    # -- the node ---------------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        me = own_id()
        return {
            "node": self.agent.node,
            "version": VERSION,
            "protocol": AGENT_PROTOCOL,
            "boot_id": boot_id(),
            "pid": me.pid,
            "start_ticks": me.start_ticks,
            "home": str(self.agent.home),
            "section_version": self.agent.section_version,
            "uptime_s": round(monotonic_s() - self.agent.started_s, 1),
        }

    def status(self) -> dict[str, Any]:
        agent = self.agent
        node = agent.section.node
        return self.hello() | {
            "mode": node.mode,
            "pause": agent.sections.owner_pause,
            "unknown_sections": unknown_sections(agent),
            "gpu_jobs": node.gpu_jobs,
            "duty_device": node.duty_device,
            "rules": agent.observer.describe(),
            "sources": agent.sources(),
            "jobs": self._open_jobs(),
            "workloads": self.workload_list(),
            "run": self.run_status(),
            "duty": agent.governing.view(),
            "memory": agent.observer.memory.describe(),
            "devices": agent.gpus.describe(),
            "journal": {"last_seq": agent.journal.last_seq(), "lost": agent.journal.lost},
            "modules": self.modules(),
            "tick_late_s": round(agent.tick_late_s, 3),
        }

    async def doctor(self) -> dict[str, Any]:
        """What the machine has and lacks, tried with this agent's own rights; some seconds, off the loop."""
        programs, unreadable = self.agent.observer.program_pids()
        gpus = [Gpu(device.name, device.kind, why) for device, why in self.agent.gpus.meters.whys()]
        facts = await asyncio.to_thread(read_machine, programs=programs, unreadable=unreadable, gpus=gpus or None)
        checks = judge_machine(facts)
        return {"node": self.agent.node, "checks": [check.as_dict() for check in checks], "lacking": lacking(checks)}

    def timeline(
        self, after_seq: int = 0, limit: int = 500, code: str | None = None, before_seq: int | None = None
    ) -> dict[str, Any]:
        _check_limit(limit)
        return {
            "entries": self.agent.journal.entries(after_seq, limit, code, before_seq),
            "last_seq": self.agent.journal.last_seq(),
        }

    # -- the section ------------------------------------------------------------------------------------------------

    def section_show(self, version: int | None = None, scope: str = "node") -> dict[str, Any]:
        """The section as it was set; ``in_force_digest`` is of both scopes together, as a run's record has it."""
        shown = self.agent.sections.show(version, checked_scope(scope))
        return shown | {"in_force_digest": digest(self.agent.section_text)}

    def section_versions(self) -> list[dict[str, Any]]:
        return self.agent.sections.versions()

    def section_preview(self, text: str, scope: str = "node") -> dict[str, Any]:
        return preview(self.agent, text, checked_scope(scope))

    def _section_set(self, text: str, by: str, scope: str = "node") -> dict[str, Any]:
        return self.section_set(text, by, scope=scope)

    def section_set(self, text: str, by: str, *, owner: Owner | None = None, scope: str = "node") -> dict[str, Any]:
        active = self.agent.runs.active
        if active is not None:
            raise Refused(
                "RUN_LOCKED",
                "the protection section",
                f"run {active.run} is measuring under the section in force",
                f"wait, or: cotenant protection ab abort {active.run}",
            )
        self.agent.runs.check_unreserved()
        where = checked_scope(scope)
        try:
            changes = [change.words for change in self.agent.sections.changes(text, where)]
            version = self.agent.set_section(text, by, owner, where)
        except SectionErrors as errors:
            self.agent.journal.write(
                "PROTECTION_CONFIG_ERROR", {"by": by, "scope": where, "errors": [str(e) for e in errors.errors][:20]}
            )
            raise Refused(
                "SECTION_INVALID",
                "the protection section",
                "; ".join(str(error) for error in errors.errors),
                "correct it; the section in force is unchanged",
                {"errors": [error.as_dict() for error in errors.errors]},
            ) from errors
        return {"version": version, "changes": changes, "scope": where, "lost": self.agent.sections.lost}

    # -- modules and jobs -------------------------------------------------------------------------------------------

    def modules(self) -> list[dict[str, Any]]:
        return [module.as_dict() for module in self.agent.modules.list()]

    async def module_add(self, path: str, now: bool = False) -> dict[str, Any]:
        """``now``: a person insists on it in spite of what holds fleet work; while a run measures nobody can."""
        gpu = await asyncio.to_thread(self.agent.modules.uses_gpu, Path(path))
        # A bundle that changes between two windows would certify work that was not measured.
        self.agent.runs.check_free()
        if not now:
            remedy = f"add it when that is over; or all the same: cotenant module add {path} --now"
            self._check_held(f"bundle {path}", remedy, gpu=gpu)
        self._adding += 1
        try:
            state = await asyncio.to_thread(self.agent.modules.add, Path(path), insists=now)
        finally:
            self._adding -= 1
        if state.unheard:
            raise Refused("MODULE_NOT_ADDED", f"bundle {path}", state.why, f"cotenant module add {path}")
        found = state.as_dict()
        self.agent.journal.write("MODULE_ADDED", {key: found[key] for key in ("module", "digest", "state", "why")})
        self.agent.evaluate("tick")
        return found

    async def module_doctor(self, module: str, now: bool = False) -> dict[str, Any]:
        """``now``: a person insists on it in spite of what holds fleet work; while a run measures nobody can."""
        self.agent.runs.check_free()
        if not now:
            remedy = f"ask when that is over; or all the same: cotenant module doctor {module} --now"
            self._check_held(f"the doctor of {module}", remedy, gpu=self.agent.modules.uses_gpu(module))
        self._adding += now  # one that insists is not stopped, so no run may begin beside it
        try:
            report = await asyncio.to_thread(self.agent.modules.doctor, module, insists=now)
        finally:
            self._adding -= now
        self.agent.evaluate("tick")
        return report.as_dict()

    def _check_held(self, what: str, remedy: str, *, gpu: bool) -> None:
        """A build or a doctor that was asked for is refused rather than kept waiting for nobody knows how long."""
        why = self.agent.modules.builds.held(gpu=gpu)
        if why is not None:
            raise Refused("MODULE_HELD", what, why, remedy)

    def job_submit(
        self,
        module: str,
        stage: str | None = None,
        payload: Any = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        if key is not None and not 1 <= len(key) <= 200:
            raise Refused("BAD_PARAMETER", "key", "it is a text of 1 to 200 characters", "give another one")
        job = self.agent.jobs.submit(
            module, stage, payload if payload is not None else {}, timeout_s=timeout_s, key=key
        )
        self.agent.evaluate("event")
        return self._job(self.agent.jobs.job(job.job))

    def _job(self, job: Job) -> dict[str, Any]:
        record = self.agent.jobs.record(job)
        live = next((a for a in self.agent.jobs.attempts() if a.job_id == job.job), None)
        share = None if live is None else self.agent.shares.get(live.attempt_id)
        return record | {
            "share": share if isinstance(share, float) else None,
            "share_why": share.why if isinstance(share, Unreadable) else None,
        }

    def job_list(self, state: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Newest first. With ``state`` the newest so many in that state, however many others came after them."""
        _check_limit(limit)
        registry = self.agent.jobs.registry
        if state is None:
            return [self._job(job) for job in registry.jobs(limit=limit)]
        kept = registry.jobs(state, limit) if state in ("waiting", "ended") else registry.jobs("running", EVERY)
        return [job for job in map(self._job, kept) if job["state"] == state][:limit]

    def _open_jobs(self) -> list[dict[str, Any]]:
        """Newest first: all that run, and of those that wait the newest ones."""
        registry = self.agent.jobs.registry
        found = [*registry.jobs("running", EVERY), *registry.jobs("waiting", WAITING_SHOWN)]
        return [self._job(job) for job in sorted(found, key=lambda job: job.job, reverse=True)]

    def _number(self, job: int | None, key: str | None) -> int:
        """Of a job that is named by its number, or by the key that it was submitted with."""
        if (job is None) == (key is None):
            raise Refused("BAD_PARAMETER", "job", "a job is named by its number or by its key", "give one of the two")
        if job is not None:
            return job
        found = self.agent.jobs.registry.job_of_key(str(key))
        if found is None:
            raise Refused("JOB_UNKNOWN", f"job with key {key!r}", "there is no such job", "cotenant job list")
        return found.job

    def job_show(self, job: int | None = None, key: str | None = None) -> dict[str, Any]:
        job = self._number(job, key)
        metered = self._job(self.agent.jobs.job(job))
        return self.agent.jobs.show(job) | {key: metered[key] for key in ("share", "share_why")}

    def job_events(self, job: int, after: int = 0) -> dict[str, Any]:
        if after < 0:
            raise Refused("BAD_PARAMETER", f"after {after}", "it is a place that an earlier answer named", "begin at 0")
        return self.agent.jobs.events(job, after, EVENTS_BYTES)

    def job_cancel(self, job: int | None = None, key: str | None = None) -> dict[str, Any]:
        return self._job(self.agent.jobs.cancel(self._number(job, key)))

    def explain(self, job: int | None = None) -> dict[str, Any]:
        return explain(self.agent, job)

    def workload_start(self, module: str, service: str | None = None) -> dict[str, Any]:
        job = self.agent.workloads.start(module, service)
        self.agent.evaluate("event")
        return self._workload(self.agent.jobs.job(job.job))

    def workload_stop(self, module: str, service: str | None = None) -> dict[str, Any]:
        return self._workload(self.agent.workloads.stop(module, service))

    def workload_list(self) -> list[dict[str, Any]]:
        return [self._workload(job) for job in self.agent.jobs.registry.workloads()]

    def _workload(self, job: Job) -> dict[str, Any]:
        return self.agent.workloads.record(job) | {"share": self._job(job)["share"]}

    # -- harness runs -----------------------------------------------------------------------------------------------

    def admit_flow(self, flow: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Whether a flow may start on the node now: not while a window is counted (its start would disturb both arms)."""
        self.agent.runs.check_admits_flow(flow)
        return {}

    def sweep_begin(self, peer: Peer, sweep: str, holder: dict[str, Any]) -> dict[str, Any]:
        """Reserve the node for the levels of a sweep, as long as the asking process lives."""
        self.agent.runs.reserve(sweep, _holder(peer, holder))
        return {}

    def sweep_end(self, peer: Peer, holder: dict[str, Any]) -> dict[str, Any]:
        self.agent.runs.unreserve(_holder(peer, holder))
        return {}

    async def run_plan(self, spec: dict[str, Any]) -> dict[str, Any]:
        return await self.planner.plan(_spec(spec))

    async def run_begin(
        self,
        peer: Peer,
        run: str,
        spec: dict[str, Any],
        holder: dict[str, Any],
        reviewed_by: str,
        flow_run_id: str | None = None,
        sweep: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        self._check_not_adding(run)
        who = _holder(peer, holder)
        # asked again when everything was waited for: an addition that began meanwhile is stopped by no hold if a person insists on it
        free = partial(self._check_not_adding, run)
        return await self.measurer.begin(run, _spec(spec), who, reviewed_by, flow_run_id, sweep, free=free)

    def _check_not_adding(self, run: str) -> None:
        if self._adding:
            raise Refused(
                "MODULE_BUILDING",
                f"run {run}",
                "a module is being added or asked, which would disturb both windows",
                "start it when that is done: cotenant module list",
            )

    async def run_block(self, peer: Peer, run: str, number: int, order: Order) -> dict[str, Any]:
        return await self.measurer.block(run, number, order, peer)

    def run_status(self, run: str | None = None) -> dict[str, Any] | None:
        return self.measurer.status(run)

    def run_end(
        self, run: str, ending: str, reason: str | None = None, verdict: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return self.certifier.end(run, ending, reason, verdict)

    def run_abort(self, run: str) -> dict[str, Any]:
        record = self.agent.runs.record(run)
        if record["state"] == "ended":
            raise Refused(
                "RUN_ENDED", f"run {run}", f"it ended already: {record['ending']}", f"cotenant protection ab show {run}"
            )
        return self.certifier.end(run, "aborted", "aborted by the owner", None)

    def run_show(self, run: str) -> dict[str, Any]:
        return self.agent.runs.record(run)

    def run_list(self, limit: int = 50) -> list[dict[str, Any]]:
        _check_limit(limit)
        return [run_row(record) for record in self.agent.journal.runs(limit)]


def _holder(peer: Peer, raw: dict[str, Any]) -> ProcessId:
    try:
        who = ProcessId.from_dict(raw)
    except (KeyError, TypeError, ValueError):
        raise Refused(
            "RUN_BAD_HOLDER", "the holder", "it is no {pid, start_ticks, boot_id}", "give all three"
        ) from None
    if who.pid != peer.pid or liveness(who) != "alive":
        raise Refused(
            "RUN_BAD_HOLDER",
            f"process {who.pid}",
            "a run is held by the process that asks, so that hold and grant end with it",
            "give the identity of the calling process",
        )
    return who


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= 5000:
        raise Refused("BAD_PARAMETER", f"limit {limit}", "it is between 1 and 5000", "ask for fewer at a time")


def _spec(raw: dict[str, Any]) -> RunSpec:
    try:
        return RunSpec.model_validate(raw).checked()
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "the run's parameters"
        raise Refused("RUN_BAD_PARAMETER", name, first["msg"], "see cotenant protection ab start --help") from error
