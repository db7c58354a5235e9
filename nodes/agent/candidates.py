"""What of a node's fleet work a run can have under test: stages of its ready modules, and the workloads that are started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodes.jobs.registry import EVERY
from policies.work import WorkSelector
from policies.workloads import is_workload, stage_of

if TYPE_CHECKING:
    from nodes.agent.core import Agent
    from nodes.modules import ModuleState

__all__ = ["candidates"]


def candidates(agent: Agent, selector: WorkSelector) -> list[dict[str, Any]]:
    """Each stage or workload that is meant, with the bundle it would run from, its ways, and how much of it is queued and runs.

    A workload is there once it is started; one that is not is listed only where it is named.
    """
    registry = agent.jobs.registry
    # of those that have not ended all: any number of others may have come since
    jobs = [*registry.jobs("waiting", EVERY), *registry.jobs("running", EVERY)]
    jobs = [job for job in jobs if job.feed_of is None] + registry.workloads()
    found: list[dict[str, Any]] = []
    for module in agent.modules.list():
        if module.state != "ready" or module.manifest is None:
            continue
        for stage in [*module.stages, *map(stage_of, module.manifest.named_services)]:
            gpu_use = module.manifest.gpu_of(stage).use
            if not selector.selects(module.module, stage, device=agent.units.is_device(gpu_use)):
                continue
            states = [job.state for job in jobs if (job.module, job.stage) == (module.module, stage)]
            if is_workload(stage) and not states and not _names(selector, module, stage):
                continue
            found.append(
                {
                    "module": module.module,
                    "short": module.short,
                    "version": module.version,
                    "digest": module.digest,
                    "stage": stage,
                    "gpu_use": gpu_use,
                    "capabilities": sorted(module.manifest.ways_of(stage)),
                    "queued": states.count("waiting"),
                    "running": sum(state != "waiting" for state in states),
                }
            )
    return found


def _names(selector: WorkSelector, module: ModuleState, stage: str) -> bool:
    return selector.text in (f"{module.short}/{stage}", f"{module.module}/{stage}")
