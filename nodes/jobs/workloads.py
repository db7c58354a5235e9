"""Workloads of a node: started once, kept going until they are stopped."""

from __future__ import annotations

from typing import Any

from nodes.jobs.jobqueue import Journal, Modules
from nodes.jobs.manager import JobManager
from nodes.jobs.registry import Job
from policies.refusal import Refused
from policies.workloads import stage_of, workload_name

__all__ = ["Workloads"]


class Workloads:
    """Each workload is a unit in the spawn registry that is queued anew whenever it ends (``policies.workloads``)."""

    def __init__(self, jobs: JobManager, modules: Modules, journal: Journal) -> None:
        self._jobs = jobs
        self._modules = modules
        self._journal = journal

    def start(self, module: str, service: str | None = None) -> Job:
        """The workload's unit: the one there is, or a new one that is admitted like a job.

        Raises:
            Refused: no such module, it has no services, or several and none is named.
        """
        found = self._modules.get(module)
        manifest = None if found is None else found.manifest
        if manifest is None:
            why = "there is no such module on this node" if found is None else "its manifest is broken"
            raise Refused("JOB_NO_MODULE", f"module {module!r}", why, "cotenant module list")
        names = list(manifest.named_services)
        if not names:
            raise Refused("WORKLOAD_NONE", f"module {module!r}", "it has no [[services]]", "cotenant module list")
        if service is None and len(names) > 1:
            raise Refused("WORKLOAD_WHICH", f"module {module!r}", f"it has {', '.join(names)}", "name one: MODULE/NAME")
        name = service if service is not None else names[0]
        if name not in names:
            raise Refused(
                "WORKLOAD_UNKNOWN", f"workload {module}/{name}", f"there is none; it has {', '.join(names)}", "name one"
            )
        for job in self._jobs.registry.workloads():
            if (job.module, job.stage) == (manifest.module.id, stage_of(name)):
                return job
        job = self._jobs.submit(manifest.module.id, stage_of(name), {}, workload=True)
        self._journal("WORKLOAD_STARTED", {"job": job.job, "module": job.module, "workload": name})
        return job

    def stop(self, module: str, service: str | None = None) -> Job:
        """End it within its grace; it is not started again.

        Raises:
            Refused: none of that name is started, or several of the module are and none is named.
        """
        named = [
            job
            for job in self._jobs.registry.workloads()
            if module in (job.module, job.short) and service in (None, workload_name(job.stage))
        ]
        what = module if service is None else f"{module}/{service}"
        if not named:
            raise Refused("WORKLOAD_UNKNOWN", f"workload {what}", "it is not started", "cotenant workload list")
        if len(named) > 1:
            several = ", ".join(workload_name(job.stage) for job in named)
            raise Refused("WORKLOAD_WHICH", f"workload {what}", f"{several} are started", "name one: MODULE/NAME")
        self._journal("WORKLOAD_STOPPED", {"job": named[0].job, "module": named[0].module})
        return self._jobs.cancel(named[0].job, "the workload was stopped")

    def record(self, job: Job) -> dict[str, Any]:
        """The job's record, ``workload`` (MODULE/NAME) and its ``restarts`` in a row."""
        shown = self._jobs.record(job)
        return {**shown, "workload": f"{job.short}/{workload_name(job.stage)}", "restarts": job.soft_retries}
