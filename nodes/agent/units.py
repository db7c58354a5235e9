"""What units are: an attempt, or a job that waits, as the policies see it.

What a module's work needs stands in its manifest. Work of a module that is gone or broken counts as what is held most strictly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nodes.jobs import Attempt, Job
from nodes.model_files import model_file
from policies.views import Unit

if TYPE_CHECKING:
    from nodes.agent.core import Agent

__all__ = ["Units"]

CPU_METER = "cpu: user and kernel time of the process tree"


class Units:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def is_device(self, gpu_use: str) -> bool:
        """Whether a module's work counts as device work: it uses the GPU, or the CPU is the duty device."""
        return gpu_use != "none" or self._agent.section.node.duty_device == "cpu"

    def of_attempt(self, attempt: Attempt) -> Unit:
        work = self._agent.governing.work_of_attempt(attempt)
        return Unit(
            attempt.attempt_id,
            attempt.job_id,
            attempt.module,
            attempt.stage,
            self.attempt_is_device(attempt),
            "cooperative_throttle" in attempt.capabilities,
            attempt.feed_of,
            cores=attempt.cores,
            gpu=self.attempt_uses_gpu(attempt),
            digest=work.digest,
            model=work.model,
            model_file=work.model_file,
            devices=self._agent.gpus.devices_of(attempt) if self.attempt_uses_gpu(attempt) else None,
        )

    def of_job(self, job: Job) -> Unit:
        module = self._agent.modules.get(job.module)
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
            self.device_work(job.module, job.stage),
            throttles,
            job.feed_of,
            cores=stage.requires.resources.cpu if stage is not None else 1.0,
            gpu=self.uses_gpu(job.module, job.stage),
            digest=None if module is None else module.digest,
            model=job.model,
            model_file=None if module is None else model_file(module.data, job.model),
        )

    # Of an attempt its own manifest counts, too: the module may be another by now, and what runs is what was started.

    def attempt_uses_gpu(self, attempt: Attempt) -> bool:
        return self._started_for_gpu(attempt) or self.uses_gpu(attempt.module, attempt.stage)

    def _started_for_gpu(self, attempt: Attempt) -> bool:
        """By the manifest that it was started with, or it was seen there, it or another one of the same bundle."""
        digest = self._agent.governing.work_of_attempt(attempt).digest
        return attempt.gpu or self._agent.gpus.was_seen(attempt.module, attempt.stage, digest)

    def attempt_on_gpu(self, attempt: Attempt) -> bool:
        """Whether its share is counted on a GPU."""
        return self._agent.section.node.duty_device == "gpu" and self.attempt_uses_gpu(attempt)

    def attempt_is_device(self, attempt: Attempt) -> bool:
        return self._started_for_gpu(attempt) or self.device_work(attempt.module, attempt.stage)

    def uses_gpu(self, module: str, stage: str) -> bool:
        """Whether the module's work needs a GPU, or was seen on one; of one that is gone or broken that cannot be told, so it
        counts as such.
        """
        found = self._agent.modules.get(module)
        if self._agent.gpus.was_seen(module, stage, None if found is None else found.digest):
            return True
        return found is None or found.manifest is None or found.manifest.gpu_of(stage).use != "none"

    def on_gpu(self, module: str, stage: str) -> bool:
        """Whether a unit's share is counted on a GPU: it uses one, and that is the duty device."""
        return self._agent.section.node.duty_device == "gpu" and self.uses_gpu(module, stage)

    def meter_words(self, work: Sequence[tuple[str, str]]) -> str:
        """What the dose of work (module, stage) is metered with."""
        found = {self._agent.gpus.meters.words() if self.on_gpu(*each) else CPU_METER for each in work}
        return "; ".join(sorted(found)) or CPU_METER

    def device_work(self, module: str, stage: str) -> bool:
        """Work of a module that is gone or broken counts as device work: the stricter of the two."""
        found = self._agent.modules.get(module)
        if self._agent.gpus.was_seen(module, stage, None if found is None else found.digest):
            return True
        return found is None or found.manifest is None or self.is_device(found.manifest.gpu_of(stage).use)
