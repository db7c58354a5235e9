"""Starting the jobs that wait, oldest first; and for those that may not start, everything that keeps them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodes.capacity import usable_cores
from nodes.jobs import Job
from nodes.jobs.jobqueue import Note
from policies.admission import Room, Taken, admission
from policies.manifest import Gpu
from policies.refusal import Refused
from policies.units import caps_in_force, duties, is_lowered
from policies.views import Reason

if TYPE_CHECKING:
    from nodes.agent.core import Agent

__all__ = ["Admitting"]


class Admitting:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._put_on: dict[int, str | None] = {}

    def admit(self) -> bool:
        """Start what may start, oldest first; keep for the rest why it waits. Whether anything was started.

        Jobs of one kind are judged alike, so each kind is judged once until something is started: thousands may wait.
        """
        jobs = self._agent.jobs
        before = len(jobs.attempts())
        notes = [
            Note(job, "JOB_BACKOFF", f"its last attempt failed; the next one may begin in {left_s:.0f} s")
            for job, left_s in jobs.backing_off()
        ]
        judged: dict[tuple[str, str, str | None, str | None], Note] = {}
        for job in jobs.waiting():
            kind = (job.module, job.stage, job.feed_of, job.model)
            known = judged.get(kind)
            if known is None:
                known = self._start(job)
                if known is None:
                    judged.clear()  # what it took is not there for the others
                    continue
                judged[kind] = known
            notes.append(Note(job, *known[1:]))
        jobs.note_waiting(notes)
        return len(jobs.attempts()) > before

    def _start(self, job: Job) -> Note | None:
        """Start it, or why it waits."""
        why = self.why_waiting(job)
        if why:
            remedy = next((reason.remedy for reason in why if reason.remedy), None)
            return Note(job, why[0].code, "; ".join(reason.why for reason in why), remedy)
        device = self._put_on.pop(job.job, None)
        unit = replace(self._agent.units.of_job(job), devices=None if device is None else frozenset({device}))
        others = [self._agent.units.of_attempt(attempt) for attempt in self._agent.jobs.attempts()]
        try:
            started = self._agent.jobs.start(
                job.job,
                device_env=self._agent.gpus.environment(device),
                duty=duties([*others, unit], self._agent.view).get(unit.attempt),
                threads=caps_in_force(self._agent.view).threads,
            )
        except Refused as refused:
            return Note(job, refused.code, refused.why, refused.remedy)
        if is_lowered(unit, self._agent.view):
            self._agent.jobs.set_lowered(started.attempt_id, True)
        return None

    def why_waiting(self, job: Job) -> list[Reason]:
        """Everything that keeps a waiting job from starting now; empty: it may start."""
        ready, why = self._agent.modules.ready(job.module)
        if not ready:
            return [Reason("MODULE_NOT_READY", why, f"cotenant module doctor {job.short}")]
        unit, room, declared = self._agent.units.of_job(job), self.room(), self._declared_bytes(job)
        if not unit.gpu:
            return list(admission(unit, self._agent.view, room, declared))
        found = self._agent.gpus.place(
            unit,
            self._gpu_of(job),
            self._agent.section.node.memory.soft_free_pct,
            lambda placed: admission(placed, self._agent.view, room, declared),
        )
        self._put_on[job.job] = found.device
        return list(found.reasons)

    def _gpu_of(self, job: Job) -> Gpu:
        found = self._agent.modules.get(job.module)
        return Gpu() if found is None or found.manifest is None else found.manifest.gpu_of(job.stage)

    def room(self) -> Room:
        """What the node has for fleet work, and what is taken of it."""
        taken = tuple(
            Taken(
                self._agent.units.of_attempt(a),
                a.mem_gb * 1e9,
                self._agent.observer.memory.footprints.get(a.attempt_id),
                held=a.state == "held",
            )
            for a in self._agent.jobs.attempts()
        )
        return Room(
            self._agent.slots,
            float(usable_cores()),
            taken,
            self._agent.observer.memory.reading.pools,
            self._agent.section.node.memory.soft_free_pct,
            self._agent.observer.programs_hold_bytes,
        )

    def _declared_bytes(self, job: Job) -> float:
        module = self._agent.modules.get(job.module)
        stage = module.manifest.stage(job.stage) if module is not None and module.manifest is not None else None
        return stage.requires.resources.mem_gb * 1e9 if stage is not None else 0.0
