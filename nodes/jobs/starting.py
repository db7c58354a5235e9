"""From a waiting job to a launcher: what is written before any process exists, and how the launcher is started."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from nodes.clock import utc_iso
from nodes.identity import boot_id
from nodes.jobs.attempt import Attempt
from nodes.jobs.cgroup import make_group
from nodes.jobs.guard import Guard
from nodes.jobs.lowering import Lowering
from nodes.jobs.registry import Job
from nodes.jobs.results import give_earlier_events
from nodes.jobs.runnerfiles import write_document
from nodes.jobs.workdir import AttemptDir, limits, runner_environment, spec_document
from policies.manifest import Manifest, Stage
from policies.workloads import is_workload, workload_name

__all__ = ["ModuleLike", "Watch", "new_attempt", "prepare", "row_of", "spawn"]

LAUNCHER = Path(__file__).with_name("launcher.py")


class ModuleLike(Protocol):
    """What is asked of a module by whoever starts a process of it: a job's attempt, or its doctor."""

    @property
    def short(self) -> str: ...
    @property
    def manifest(self) -> Manifest | None: ...
    @property
    def bundle(self) -> Path | None: ...
    @property
    def data(self) -> Path: ...
    @property
    def search(self) -> str: ...
    @property
    def variables(self) -> Mapping[str, str]: ...
    def command(self) -> list[str]: ...
    def service_command(self, name: str) -> list[str]: ...


class Watch(Protocol):
    """How long the launcher waits for its agent, in seconds."""

    @property
    def silence_s(self) -> float: ...
    @property
    def adopt_s(self) -> float: ...


def new_attempt(
    job: Job,
    manifest: Manifest,
    stage: Stage,
    jobs_dir: Path,
    guard: Guard,
    now: float,
    *,
    places: list[str],
    duty: float | None,
    threads: int | None,
) -> Attempt:
    """The next attempt of a job, as its module's manifest says; of it only its cgroup exists, where one could be made.

    Args:
        places: folders in which a cgroup may be tried.
    """
    number = job.attempts + 1
    attempt_id = f"{job.job}-{number}-{secrets.token_hex(4)}"
    return Attempt(
        attempt_id=attempt_id,
        number=number,
        job_id=job.job,
        module=job.module,
        short=job.short,
        stage=job.stage,
        capabilities=manifest.ways_of(job.stage),
        cores=stage.requires.resources.cpu,
        mem_gb=stage.requires.resources.mem_gb,
        stop_grace_s=manifest.grace_of(job.stage),
        timeout_s=job.timeout_s,
        feed_of=job.feed_of,
        gpu=manifest.gpu_of(job.stage).use != "none",
        folder=AttemptDir(jobs_dir / attempt_id),
        system=guard,
        lowering=Lowering(guard.owns),
        group=make_group(attempt_id, places),
        spawned_mono_s=now,
        duty=duty,
        threads=threads,
    )


def row_of(attempt: Attempt, bundle: Path, model_file: str | None) -> dict[str, Any]:
    """The attempt's row in the spawn registry. ``model_file``: what identifies its model's file; None: it has none."""
    return {
        "attempt": attempt.attempt_id,
        "job": attempt.job_id,
        "number": attempt.number,
        "bundle": str(bundle),
        "model_file": model_file or "",  # NULL is a row from before it was kept
        "capabilities": json.dumps(sorted(attempt.capabilities)),
        "cores": attempt.cores,
        "mem_gb": attempt.mem_gb,
        "stop_grace_s": attempt.stop_grace_s,
        "boot_id": boot_id(),
        "duty": attempt.duty,
        "cgroup": attempt.group.path if attempt.group is not None else None,
        "started_at": utc_iso(),
    }


def prepare(
    attempt: Attempt,
    job: Job,
    module: ModuleLike,
    version: str,
    watch: Watch,
    *,
    pause: bool,
    start_stopped: bool,
    device_env: Mapping[str, str],
) -> None:
    """Make the attempt's folder. The limits in force are in the control document, seq 1, before there is a process.

    Args:
        pause: the first document asks for a pause.
        start_stopped: the runner is stopped before its first instruction.
    """
    folder = attempt.folder
    control: dict[str, Any] = {"seq": 0}
    in_force = limits(attempt.duty, attempt.threads)
    if in_force or pause:
        control = {"seq": 1, "stop": False, "pause": pause, **in_force}
    spec = spec_document(
        short=job.short,
        module_id=job.module,
        module_version=version,
        stage=job.stage,
        payload=job.payload,
        resources={"cpu": attempt.cores, "mem_gb": attempt.mem_gb},
        timeout_s=job.timeout_s,
    )
    folder.make(spec, control, {})
    module.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    if "resumable" in attempt.capabilities:
        give_earlier_events(folder.root.parent, job.job, folder)
    work = str(folder.work)
    if is_workload(job.stage):
        argv = module.service_command(workload_name(job.stage))
    else:
        argv = [*module.command(), "run", "--spec", f"{work}/spec.json", "--workdir", work]
        argv += ["--out", f"{work}/result.json"]
        if "progress_events" in attempt.capabilities:
            argv += ["--events", f"{work}/events.ndjson"]
    env = runner_environment(
        short=job.short,
        module_data=module.data,
        tmp=folder.tmp,
        settings=folder.root / "settings.json",
        search=module.search,
        work=folder.work,
        attempt_id=attempt.attempt_id,
        device=device_env,
        module_env=module.variables,
    )
    launch = {
        "attempt_id": attempt.attempt_id,
        "argv": argv,
        "env": env,
        "cwd": work,
        "workdir": work,
        "capabilities": sorted(attempt.capabilities),
        "gpu": attempt.gpu,
        "stop_grace_s": attempt.stop_grace_s,
        "silence_s": watch.silence_s,
        "adopt_s": watch.adopt_s,
        "start_stopped": start_stopped,
        "cgroup": attempt.group.path if attempt.group is not None else None,
    }
    write_document(folder.root / "launch.json", launch)


def spawn(folder: Path, work: Path, attempt_id: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start the launcher in a session of its own; its process and our end of the FIFO.

    The launcher starts no runner before it has read a byte from the FIFO.
    """
    # both ends in one descriptor: opening never blocks, and writing to a dead launcher raises nothing
    pipe = os.open(folder / "alive", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(LAUNCHER), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"OARBANK_ATTEMPT_ID": attempt_id, "OARBANK_WORKDIR": str(work), "LANG": "C.UTF-8"},
        )
    except OSError:
        os.close(pipe)
        raise
    return process, pipe
