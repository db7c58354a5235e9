"""A module on a node of the kit's own, and its runner as the agent starts, nudges, pauses and stops it.

The same code does it: bundle, environment and doctor by ``nodes.modules``, folder, environment and launcher by ``nodes.jobs.starting``,
documents and signals by ``nodes.jobs.attempt``. Only the queue and the journal are missing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotenant.conform.gpu import EVERY_S as GPU_EVERY_S
from cotenant.conform.gpu import GpuMeter
from cotenant.conform.meter import TreeMeter
from cotenant.conform.writes import Watch
from nodes.clock import utc_iso
from nodes.identity import identify
from nodes.jobs.attempt import Attempt
from nodes.jobs.cgroup import parents
from nodes.jobs.guard import Guard
from nodes.jobs.proctree import ProcSystem, signal_tree
from nodes.jobs.registry import Job
from nodes.jobs.runnerfiles import read_document, write_document
from nodes.jobs.starting import new_attempt, prepare, spawn
from nodes.jobs.workdir import Outcome, newest_lines
from nodes.modules import ModuleState, ModuleStore
from policies.jobs import Stop
from policies.manifest import Manifest

__all__ = ["Bench", "Run"]

LOOK_S = 0.02
METER_EVERY_S = 0.1
KILL_LIMIT_S = 30.0
# how long a process may outlive its runner before it counts as left behind
LINGER_S = 1.0
EVENTS_BYTES = 8 << 20


@dataclass
class Bench:
    """A node's home in ``root`` with one module in it."""

    root: Path
    silence_s: float = 60.0
    adopt_s: float = 60.0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        # a runner can fork a child that ends before a signal reaches it: nothing to tell anybody
        self.guard = Guard(ProcSystem(), lambda _pid, _ticks, _signal, _why: None)
        self.places = parents()
        self.store = ModuleStore(self.root / "node", self.root / "none")

    def add(self, bundle: Path) -> ModuleState:
        """Blocks: builds the environment and asks the doctor.

        Raises:
            Refused: there is no bundle there.
        """
        return self.store.add(bundle)

    def start(
        self,
        module: ModuleState,
        stage_name: str,
        payload: Any,
        *,
        place: str = "jobs",
        env: Mapping[str, str] | None = None,
        watched: bool = False,
    ) -> Run:
        """Start a runner.

        Args:
            place: the folder of work directories, for another length of path.
            env: variables changed against what the agent sets.
            watched: see which files it changes.

        Raises:
            OSError: it cannot be started.
        """
        manifest = module.manifest
        assert manifest is not None
        stage = manifest.stage(stage_name)
        assert stage is not None
        job = _job(next(self._numbers), manifest, stage_name, payload)
        jobs_dir = self.root / place
        jobs_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        attempt = new_attempt(
            job,
            manifest,
            stage,
            jobs_dir,
            self.guard,
            time.monotonic(),
            places=self.places,
            duty=None,
            threads=None,
        )
        prepare(
            attempt,
            job,
            module,
            manifest.module.version,
            self,
            pause=False,
            start_stopped=False,
            device_env=_device_env(),
        )
        watch = Watch([attempt.folder.work, attempt.folder.tmp, module.data]) if watched else None
        self._told_otherwise(attempt, env or {}, watch)
        run = Run(attempt, watch)
        run.begin(self.guard)
        return run

    def _told_otherwise(self, attempt: Attempt, env: Mapping[str, str], watch: Watch | None) -> None:
        path = attempt.folder.root / "launch.json"
        launch = read_document(path)
        assert launch is not None
        launch["env"].update(env)
        launch["linger_s"] = LINGER_S
        if watch is not None:
            launch["argv"] = watch.wrap(launch["argv"])
        write_document(path, launch)


class Run:
    """One runner from start to end. Times are monotonic seconds."""

    def __init__(self, attempt: Attempt, watch: Watch | None) -> None:
        self.attempt = attempt
        self.watch = watch
        self.meter = TreeMeter()
        self.sessions: set[str] = set()
        self.ended: dict[str, Any] | None = None
        self.answered_at: float | None = None
        self._metered_at = 0.0

    def begin(self, guard: Guard) -> None:
        folder = self.attempt.folder
        if self.watch is not None:
            self.watch.start()
        self.attempt.process, self.attempt.pipe = spawn(folder.root, folder.work, self.attempt.attempt_id)
        self.attempt.launcher = identify(self.attempt.process.pid)
        if self.attempt.launcher is None:
            raise OSError("the launcher ended at once")
        guard.register(self.attempt.attempt_id, self.attempt.launcher.pid, self.attempt.launcher.start_ticks)
        self.attempt.begin(time.monotonic(), held_reason=None)
        self.attempt.heartbeat()

    # -- looking --------------------------------------------------------------------------------------------------------

    def until(self, true: Callable[[], bool], limit_s: float) -> bool:
        """Look after the runner until ``true()`` or its end, at most ``limit_s``; whether it came true."""
        deadline = time.monotonic() + limit_s
        while not true():
            if self.ended is not None or time.monotonic() >= deadline:
                return true()
            self.look()
            time.sleep(LOOK_S)
        return True

    def for_s(self, seconds: float, gpu: GpuMeter | None = None) -> float:
        """Look after it for that long, or until its end; how long it was. ``gpu`` is read all along."""
        began = time.monotonic()
        while gpu is not None and self.ended is None and (left_s := began + seconds - time.monotonic()) > 0.0:
            self.until(lambda: False, min(left_s, GPU_EVERY_S))
            self.read_gpu(gpu)
        if gpu is None:
            self.until(lambda: False, seconds)
        return time.monotonic() - began

    def read_gpu(self, gpu: GpuMeter | None) -> None:
        if gpu is not None and self.ended is None:
            gpu.read([proc.pid for proc in self.attempt.members() if not proc.dead])

    def look(self) -> None:
        now = time.monotonic()
        self.attempt.step(now)
        self.attempt.heartbeat()
        if now - self._metered_at >= METER_EVERY_S:
            self.measure()
        if self.answered_at is None and self.answered:
            self.answered_at = time.monotonic()
        if self.ended is None:
            self.ended = read_document(self.attempt.folder.root / "exit.json")

    def measure(self) -> None:
        """A reading of the meter now."""
        self._metered_at = time.monotonic()
        tree = self.attempt.members()
        if any(not proc.dead for proc in tree):
            self.meter.read(tree)
        runner = next((proc for proc in tree if proc.pid == self.attempt.runner_pid), None)
        if runner is not None:
            home = runner.session
            self.sessions |= {f"process {proc.pid}" for proc in tree if proc.session != home and not proc.dead}

    def cores_used(self, seconds: float) -> tuple[float | None, float]:
        """``(cores, seconds)``: what the tree uses over about ``seconds`` from now; None where it could not be read."""
        readings = len(self.meter.at_s)
        self.measure()
        began = time.monotonic()
        self.for_s(seconds)
        if self.ended is None:
            self.measure()
        ended = self.meter.at_s[-1] if self.meter.at_s else began
        took_s = max(ended - began, LOOK_S)
        if len(self.meter.at_s) - readings < 2:
            return None, took_s
        return self.meter.used_s(began, ended) / took_s, took_s

    @property
    def begun(self) -> bool:
        """Whether it has written its first phase."""
        return (self.attempt.folder.work / "phase").exists()

    @property
    def answered(self) -> bool:
        """Whether there is a result or a failure."""
        work = self.attempt.folder.work
        return (work / "failure.json").exists() or (work / "result.json").exists()

    def outcome(self) -> Outcome:
        return self.attempt.folder.outcome(self.attempt.short)

    def reports(self) -> list[dict[str, Any]]:
        """The runner's ``gpu_duty`` metrics so far, oldest first."""
        found = []
        for line in newest_lines(self.attempt.folder.work / "events.ndjson", EVENTS_BYTES, 1_000_000):
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and (event.get("type"), event.get("name")) == ("metric", "gpu_duty"):
                    found.append(event)
        return found

    def last_words(self) -> str:
        """The end of what it wrote to standard error, in one line."""
        return " ".join(" ".join(newest_lines(self.attempt.folder.root / "stderr.log")).split())[-300:]

    # -- acting ---------------------------------------------------------------------------------------------------------

    def set_duty(self, duty: float | None) -> None:
        self.attempt.set_limits(duty=duty, threads=None)

    def pause(self) -> bool:
        """By document where it declares that it pauses itself, though the agent would freeze one that also declares that."""
        if "cooperative_pause" in self.attempt.capabilities:
            self.attempt.capabilities -= {"freeze_ok"}
        return self.attempt.hold("conformance", time.monotonic(), unlimited=True)

    def release(self) -> None:
        self.attempt.release(time.monotonic())

    def stop(self) -> float:
        """Ask it to stop, as the agent does; the moment of the nudge."""
        now = time.monotonic()
        self.attempt.stop(Stop("conformance: stop", requeue=False, fault=False), now)
        return now

    def finish(self) -> None:
        """End it if it is still there, collect its launcher, and keep the folder until ``remove``."""
        if self.ended is None and self.attempt.stopping is None:
            self.stop()
            if "cancellable" in self.attempt.capabilities:
                self.until(lambda: self.ended is not None, self.attempt.stop_grace_s + 1.0)
        self.look()
        deadline = time.monotonic() + KILL_LIMIT_S
        while self.ended is None and time.monotonic() < deadline:
            signal_tree(self.attempt.system, self.attempt.members(), signal.SIGKILL)
            self.look()
            time.sleep(LOOK_S)
        self.attempt.close()
        process = self.attempt.process
        if process is not None:
            with contextlib.suppress(Exception):
                process.wait(KILL_LIMIT_S)
            if process.poll() is None:
                process.kill()
                process.wait()
        if self.watch is not None:
            self.watch.close()

    def remove(self) -> None:
        if self.attempt.group is not None:
            self.attempt.group.remove()
        self.attempt.folder.remove()

    @property
    def lingered_s(self) -> float:
        """How long the launcher waited for what the runner left behind, at most."""
        return LINGER_S if self.left else 0.0

    @property
    def left(self) -> list[str]:
        """Names of the processes that outlived the runner."""
        return [str(name) for name in (self.ended or {}).get("left") or []]


def _job(number: int, manifest: Manifest, stage: str, payload: Any) -> Job:
    found = manifest.stage(stage)
    assert found is not None
    return Job(
        job=number,
        module=manifest.module.id,
        short=manifest.short,
        stage=stage,
        payload=payload,
        timeout_s=found.timeout_s,
        max_attempts=1,
        feed_of=None,
        state="running",
        outcome=None,
        code=None,
        reason=None,
        remedy=None,
        attempt=None,
        attempts=0,
        counted=0,
        soft_retries=0,
        queued_at=utc_iso(),
        started_at=None,
        ended_at=None,
        result=None,
        failure=None,
    )


def _device_env() -> dict[str, str]:
    """``CUDA_VISIBLE_DEVICES`` as it is set here; the agent of a node sets its owner's."""
    return {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
