"""Jobs of a node as rows: queued, waiting with a reason, known by number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Protocol

from nodes.jobs.registry import Job, Registry
from nodes.jobs.starting import ModuleLike
from policies.refusal import Refused
from policies.workloads import is_workload

__all__ = ["JobQueue", "Journal", "Modules"]

Journal = Callable[[str, dict[str, Any]], None]
_FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class Modules(Protocol):
    def get(self, name: str) -> ModuleLike | None: ...
    def ready(self, name: str) -> tuple[bool, str]: ...


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

    def note_waiting(self, job_id: int, code: str | None, reason: str | None, remedy: str | None = None) -> None:
        """Keep why a job waits, for people. Journaled when it changes; figures in the reason that move are no change."""
        job = self.job(job_id)
        if job.state == "waiting" and (job.code, _without_figures(job.reason)) != (code, _without_figures(reason)):
            self.registry.change_job(job_id, code=code, reason=reason, remedy=remedy)
            if code is not None:
                self._journal("JOB_WAITING", {"job": job_id, "code": code, "reason": reason})


def _without_figures(reason: str | None) -> str | None:
    return None if reason is None else _FIGURE.sub("#", reason)
