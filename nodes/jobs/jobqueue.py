"""Jobs of a node as rows: queued, waiting with a reason, known by number."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from nodes.jobs.registry import Job, Registry
from nodes.jobs.starting import ModuleLike
from policies.refusal import Refused
from policies.workloads import is_workload

__all__ = ["JobQueue", "Journal", "Modules", "Note"]

Journal = Callable[[str, dict[str, Any]], None]
_FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


# So many jobs that come to wait for one reason at one moment are journaled each by itself, more of them as one entry.
TOLD_APART = 20


class Note(NamedTuple):
    """Why a job waits. ``job`` as it was read in this look."""

    job: Job
    code: str
    reason: str
    remedy: str | None = None


class Modules(Protocol):
    def get(self, name: str) -> ModuleLike | None: ...
    def ready(self, name: str) -> tuple[bool, str]: ...
    def check(self, name: str | None = None) -> None: ...


class JobQueue:
    """The jobs of a node, whether a process runs for them or not."""

    def __init__(self, registry: Registry, modules: Modules, journal: Journal, clock: Callable[[], float]) -> None:
        self.registry = registry
        self._modules = modules
        self._journal = journal
        self._clock = clock
        self._retry_at: dict[int, float] = {}

    def submit(
        self,
        module: str,
        stage: str | None,
        payload: Any,
        *,
        timeout_s: float | None = None,
        feed_of: str | None = None,
        key: str | None = None,
        workload: bool = False,
    ) -> Job:
        """Queue a job; ``stage`` None is the module's default stage.

        Args:
            key: whoever asks again with the same key gets the job that it made, however it stands by now.

        Raises:
            Refused: no such module or stage, or a payload that is no JSON.
        """
        if key is not None and (known := self.registry.job_of_key(key)) is not None:
            return known
        found = self._modules.get(module)
        if found is None or found.manifest is None:
            why = "there is no such module on this node" if found is None else "its manifest is broken"
            raise Refused("JOB_NO_MODULE", f"module {module!r}", why, "cotenant module list")
        manifest = found.manifest
        wanted = manifest.stage(stage)
        if wanted is None or is_workload(wanted.name) != workload:
            names = ", ".join(item.name for item in manifest.stages)
            raise Refused(
                "JOB_NO_STAGE", f"stage {stage!r}", f"{manifest.short} has the stages {names}", "name one of them"
            )
        if timeout_s is not None and not 0.0 < timeout_s < float("inf"):
            raise Refused(
                "JOB_BAD_TIMEOUT", f"timeout {timeout_s}", "must be above 0 seconds", "leave it out for the stage's own"
            )
        try:
            json.dumps(payload, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise Refused("JOB_BAD_PAYLOAD", "payload", f"is no JSON: {error}", "give JSON values only") from None
        job = self.registry.add_job(
            manifest.module.id,
            manifest.short,
            wanted.name,
            payload,
            timeout_s if timeout_s is not None else wanted.timeout_s,
            wanted.retry.max_attempts,
            feed_of,
            key,
        )
        self._journal("JOB_QUEUED", {"job": job.job, "module": job.module, "stage": job.stage, "feed_of": feed_of})
        return job

    def waiting(self) -> list[Job]:
        """Jobs that may be started now, oldest first (one that waits out a retry's backoff is not among them)."""
        now = self._clock()
        return [job for job in self.registry.waiting() if self._retry_at.get(job.job, now) <= now]

    def backing_off(self) -> list[tuple[Job, float]]:
        """Jobs that wait out a retry's backoff, and the seconds that are left."""
        if not self._retry_at:
            return []
        now = self._clock()
        return [(job, at - now) for job in self.registry.waiting() if (at := self._retry_at.get(job.job, now)) > now]

    def job(self, job_id: int) -> Job:
        found = self.registry.job(job_id)
        if found is None:
            raise Refused("JOB_UNKNOWN", f"job {job_id}", "there is no such job", "cotenant job list")
        return found

    def note_waiting(self, notes: Sequence[Note]) -> None:
        """Keep why jobs wait, for people. Journaled where it changes; figures in a reason that move are no change.

        Many that come to wait for the same reason at once are told as one: ``jobs`` says how many, ``job`` is the oldest.
        """
        changed = [note for note in notes if self._is_news(note)]
        if not changed:
            return
        try:
            self.registry.note_waiting((note.job.job, note.code, note.reason, note.remedy) for note in changed)
        except sqlite3.Error:
            return  # a full disk: the next look tells it, and what else is to be done now must not wait for that
        by_reason: dict[tuple[str, str], list[int]] = {}
        for note in changed:
            by_reason.setdefault((note.code, note.reason), []).append(note.job.job)
        for (code, reason), jobs in by_reason.items():
            for job in jobs if len(jobs) <= TOLD_APART else jobs[:1]:
                more = {} if len(jobs) <= TOLD_APART else {"jobs": len(jobs)}
                self._journal("JOB_WAITING", {"job": job, "code": code, "reason": reason, **more})

    def _is_news(self, note: Note) -> bool:
        job = note.job
        if job.code == note.code and (
            job.reason == note.reason or _without_figures(job.reason) == _without_figures(note.reason)
        ):
            return False
        return self.registry.waits(job.job)


@lru_cache(maxsize=64)
def _without_figures(reason: str | None) -> str | None:
    return None if reason is None else _FIGURE.sub("#", reason)
