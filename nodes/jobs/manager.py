"""Jobs on a node: queue, attempts, their ends. One caller, one thread: the agent's loop."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodes.clock import monotonic_s, utc_iso
from nodes.identity import ProcessId, boot_id, identify
from nodes.jobs import results
from nodes.jobs.adoption import reopen, revive, sweep
from nodes.jobs.attempt import Attempt, hold_way
from nodes.jobs.cgroup import Group, parents
from nodes.jobs.collecting import Collector
from nodes.jobs.guard import Guard
from nodes.jobs.hands import Hands
from nodes.jobs.jobqueue import Journal, Modules
from nodes.jobs.keeping import AttemptKeeper, once_each
from nodes.jobs.proctree import STOPPED, ProcSystem, System
from nodes.jobs.registry import Job, Registry
from nodes.jobs.starting import new_attempt, prepare, row_of, spawn
from nodes.model_files import model_file
from policies.jobs import Stop
from policies.refusal import Refused

__all__ = ["JobManager", "Journal", "Modules"]

log = logging.getLogger(__name__)

SILENCE_S = 10.0
ADOPT_S = 600.0
RECENT_KEPT = 256
START_RETRY_S = 30.0


class JobManager(Hands):
    """All jobs of a node.

    Args:
        node_dir: the node's home; work directories go under ``jobs/``.
        db: connection to ``journal.sqlite``; tables are made here.
        modules: where bundles are looked up.
        journal: takes a timeline code and its data.
        clock: monotonic seconds.
        system: the operating system, replaced in tests.
        places: folders in which an attempt's cgroup may be tried; None: look for them.
        device_env: ``CUDA_VISIBLE_DEVICES`` and kin for every runner.
        off_gpu: whether a held attempt is read to have left the GPU (``Attempt.step``).
    """

    def __init__(
        self,
        node_dir: Path,
        db: sqlite3.Connection,
        modules: Modules,
        journal: Journal,
        clock: Callable[[], float] = monotonic_s,
        *,
        system: System | None = None,
        places: list[str] | None = None,
        device_env: Mapping[str, str] | None = None,
        silence_s: float = SILENCE_S,
        adopt_s: float = ADOPT_S,
        off_gpu: Callable[[Attempt], bool | None] = lambda attempt: None,
    ) -> None:
        super().__init__(Registry(db), modules, journal, clock)
        self.node_dir = Path(node_dir)
        self.guard = Guard(system or ProcSystem(), once_each(journal))
        self._places = parents() if places is None else places
        self._keeper = AttemptKeeper(self.registry, self.guard.owns)
        self._device_env = dict(device_env or {})
        self.silence_s = silence_s
        self.adopt_s = adopt_s
        self._off_gpu = off_gpu
        self._recent: deque[Attempt] = deque(maxlen=RECENT_KEPT)
        self._unkillable: set[str] = set()
        self._zombies: list[subprocess.Popen[bytes]] = []
        self._groups: list[Group] = []
        """Of attempts that have ended; the kernel keeps a group for a moment after its last process."""
        self._jobs_dir = self.node_dir / "jobs"
        self._jobs_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._collector = Collector(self.node_dir, self.registry, self.guard, journal)

    # -- jobs -----------------------------------------------------------------------------------------------------------

    def record(self, job: Job) -> dict[str, Any]:
        """The job as the socket shows it, with what its live attempt does right now."""
        record = job.as_dict()
        attempt = next((item for item in self._live.values() if item.job_id == job.job), None)
        if attempt is not None:
            record["state"] = "running" if attempt.state == "starting" else attempt.state
            record["reason"] = attempt.hold_reason if attempt.stopping is None else attempt.stopping.reason
            record["duty"] = attempt.duty
        return record

    def show(self, job_id: int) -> dict[str, Any]:
        """Job, attempts, result, failure, newest events (of the running attempt where there is one)."""
        job = self.job(job_id)
        attempts = self.registry.attempts_of(job_id)
        events: list[str] = attempts[-1]["events"] if attempts else []
        live = self._live.get(job.attempt or "")
        if live is not None:
            events = results.newest_events(live)
        return {
            **self.record(job),
            "attempts": attempts,
            "result": job.result,
            "failure": job.failure,
            "events": events,
        }

    def events(self, job_id: int, after: int, limit_bytes: int) -> dict[str, Any]:
        """Whole lines of the job's events, all attempts in a row, from a place on: ``{lines, next, ended, key}``.

        ``next`` is the place to ask from again. Kept for modules that are ``resumable``; of a job that has ended, for a
        while (``results.EVENTS_OF_JOBS_KEPT``).
        """
        job = self.job(job_id)
        live = next((item for item in self._live.values() if item.job_id == job_id), None)
        lines, place = results.events_from(self.node_dir, job_id, live, after, limit_bytes)
        ended = job.state == "ended" and live is None
        return {"lines": lines, "next": place, "ended": ended, "key": job.key}

    def cancel(self, job_id: int, reason: str = "cancelled") -> Job:
        """End a job: at once where it waits, by stopping its attempt where it runs."""
        job = self.job(job_id)
        if job.state == "ended":
            return job
        live = next((item for item in self._live.values() if item.job_id == job_id), None)
        if live is not None:
            self.stop(live.attempt_id, reason, requeue=False, fault=False)
        else:
            self.registry.change_job(
                job_id, state="ended", outcome="cancelled", code=None, reason=reason, remedy=None, ended_at=utc_iso()
            )
            results.put_events_away(self.node_dir, job_id)
        self._journal("JOB_CANCELLED", {"job": job_id, "reason": reason})
        return self.job(job_id)

    # -- attempts -------------------------------------------------------------------------------------------------------

    def ended_since(self, mono_s: float) -> list[Attempt]:
        """Attempts that ended at or after that monotonic time (of the newest 256), with their ``cpu_s`` and stretches."""
        return [item for item in self._recent if item.ended_mono_s is not None and item.ended_mono_s >= mono_s]

    def tree(self, attempt_id: str) -> list[ProcessId]:
        """Every process of the attempt, launcher first; zombies that are not collected yet are among them."""
        me = boot_id()
        return [ProcessId(proc.pid, proc.start_ticks, me) for proc in self.attempt(attempt_id).tree()]

    def start(
        self,
        job_id: int,
        *,
        duty: float | None = None,
        held: bool = False,
        threads: int | None = None,
        device_env: Mapping[str, str] | None = None,
    ) -> Attempt:
        """Start a waiting job. Its limits stand in the control document before any process exists.

        Args:
            device_env: variables that name the devices it may use, beyond the node's own.
            held: it must not run yet: the pause stands in its first document, or it is stopped before its first instruction.

        Raises:
            Refused: the job does not wait, its module is not ready, it cannot be started held, or the disk refuses.
        """
        job = self.job(job_id)
        if job.state != "waiting":
            raise Refused("JOB_NOT_WAITING", f"job {job_id}", f"it is {job.state}", "cotenant job show")
        stuck = self.unkillable()
        if stuck:
            raise Refused(
                "JOB_UNKILLABLE",
                f"job {job_id}",
                f"a process of attempt {stuck[0].attempt_id} survives SIGKILL and still holds its memory",
                "find what it waits for (a driver, a network file system), or restart the machine",
            )
        self._modules.check(job.module)
        ready, why = self._modules.ready(job.module)
        module = self._modules.get(job.module)
        if not ready or module is None or module.manifest is None or module.bundle is None:
            raise Refused("MODULE_NOT_READY", f"module {job.module}", why, f"cotenant module doctor {job.short}")
        manifest = module.manifest
        stage = manifest.stage(job.stage)
        if stage is None:
            raise Refused("JOB_NO_STAGE", f"stage {job.stage}", "the module no longer has it", "cancel the job")
        way = hold_way(manifest.ways_of(job.stage))
        if held and way == "stop":
            raise Refused(
                "JOB_CANNOT_HOLD",
                f"job {job_id}",
                "its module can neither pause nor be frozen",
                "start it when it may run",
            )
        attempt = new_attempt(
            job,
            manifest,
            stage,
            self._jobs_dir,
            self.guard,
            self._clock(),
            places=self._places,
            duty=duty,
            threads=threads,
        )
        try:
            self.registry.add_attempt(row_of(attempt, module.bundle, model_file(module.data, job.model)))
        except sqlite3.Error as error:
            if attempt.group is not None:
                attempt.group.remove()
            self._retry_at[job.job] = self._clock() + START_RETRY_S
            raise Refused(
                "JOB_START_FAILED", f"job {job_id}", str(error), "free space under the node's home"
            ) from error
        self._live[attempt.attempt_id] = attempt
        try:
            prepare(
                attempt,
                job,
                module,
                manifest.module.version,
                self,
                pause=held and "cooperative_pause" in attempt.capabilities,
                start_stopped=held and way == "freeze",
                device_env=self._device_env | dict(device_env or {}),
            )
            self._spawn(attempt)
        except (OSError, ValueError, sqlite3.Error) as error:
            # the next tick records the end; without a byte from us the launcher, if there is one, starts nothing
            attempt.close()
            attempt.stopping = Stop(f"cannot be started: {error}", requeue=True, fault=False)
            self._retry_at[job.job] = self._clock() + START_RETRY_S
            raise Refused(
                "JOB_START_FAILED", f"job {job_id}", str(error), "free space under the node's home"
            ) from error
        attempt.begin(
            attempt.spawned_mono_s,
            held_reason="held at start" if held else None,
            stopped_at_start=held and way == "freeze",
        )
        self._journal(
            "JOB_STARTED",
            {
                "job": job.job,
                "attempt": attempt.attempt_id,
                "module": job.module,
                "stage": job.stage,
                "duty": duty,
                "held": held,
            },
        )
        return attempt

    def _spawn(self, attempt: Attempt) -> None:
        folder = attempt.folder
        attempt.process, attempt.pipe = spawn(folder.root, folder.work, attempt.attempt_id)
        attempt.launcher = identify(attempt.process.pid)
        if attempt.launcher is None:
            raise OSError("the launcher ended at once")
        self.guard.register(attempt.attempt_id, attempt.launcher.pid, attempt.launcher.start_ticks)
        self.registry.change_attempt(
            attempt.attempt_id, launcher_pid=attempt.launcher.pid, launcher_ticks=attempt.launcher.start_ticks
        )
        attempt.heartbeat()  # the launcher starts the runner at this byte: it stands in the registry now

    # -- tick -----------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Each attempt one step on, then its heartbeat: an attempt that cannot be looked after falls silent to its launcher,
        which then holds it, and never keeps the others from being looked after.
        """
        for attempt in list(self._live.values()):
            try:
                self._advance(attempt, now)
            except Exception:
                log.exception("attempt %s could not be looked after", attempt.attempt_id)
            else:
                attempt.heartbeat()
        self._zombies = [process for process in self._zombies if process.poll() is None]
        self._groups = [group for group in self._groups if not group.remove()]

    def _advance(self, attempt: Attempt, now: float) -> None:
        known = attempt.runner is not None
        notes = attempt.step(now, off_gpu=self._off_gpu(attempt))
        if attempt.runner is not None and not known:
            self._keep_runner(attempt)
        if "lost" in notes:
            self._journal(
                "PROTECTION_PAUSE",
                {"attempt": attempt.attempt_id, "cause": "agent silent", "state": attempt.state},
            )
        if "hold_failed" in notes:
            pids = [proc.pid for proc in attempt.members() if not proc.dead and proc.state not in STOPPED]
            self._journal("JOB_NOT_HELD", {"job": attempt.job_id, "attempt": attempt.attempt_id, "pids": pids})
            self.stop(attempt.attempt_id, attempt.not_held, requeue=True, fault=False)
        if "pause_limit" in notes:
            self.stop(attempt.attempt_id, "held for ten minutes", requeue=True, fault=False)
        if "timeout" in notes:
            self.stop(attempt.attempt_id, f"ran longer than {attempt.timeout_s:g} s", requeue=True, fault=True)
        if not attempt.unkillable:
            self._unkillable.discard(attempt.attempt_id)
        elif attempt.attempt_id not in self._unkillable:
            self._unkillable.add(attempt.attempt_id)
            pids = [proc.pid for proc in attempt.members() if not proc.dead]
            self._journal("JOB_UNKILLABLE", {"job": attempt.job_id, "attempt": attempt.attempt_id, "pids": pids})
        self.guard.learn(attempt.attempt_id, attempt.last_seen)
        self._keeper.keep(attempt, now)
        self._collect(attempt, now)

    def unkillable(self) -> list[Attempt]:
        """Attempts with a process that survives SIGKILL: they count in full, and nothing is admitted beside them."""
        return [attempt for attempt in self._live.values() if attempt.unkillable]

    def next_due_s(self) -> float:
        """Seconds until ``tick`` has something to do, at most 2."""
        return min((attempt.next_due_s() for attempt in self._live.values()), default=2.0)

    def _keep_runner(self, attempt: Attempt) -> None:
        assert attempt.runner is not None
        with contextlib.suppress(sqlite3.Error):
            self.registry.change_attempt(
                attempt.attempt_id, runner_pid=attempt.runner.pid, runner_ticks=attempt.runner.start_ticks
            )

    def _collect(self, attempt: Attempt, now: float) -> None:
        """Finish an attempt whose end is known."""
        ending = self._collector.collect(attempt, self.job(attempt.job_id), now)
        if ending is None:
            return
        self._live.pop(attempt.attempt_id, None)
        self._unkillable.discard(attempt.attempt_id)
        self._keeper.forget(attempt.attempt_id)
        self._recent.append(attempt)
        if attempt.process is not None:
            self._zombies.append(attempt.process)
        if attempt.group is not None and not attempt.group.remove():
            self._groups.append(attempt.group)
        if ending.verdict.next == "requeue" and ending.verdict.wait:
            self._retry_at[attempt.job_id] = now + ending.backoff_s
        elif ending.verdict.next == "end":
            self._retry_at.pop(attempt.job_id, None)

    # -- restart and end of the agent -----------------------------------------------------------------------------------

    def adopt(self) -> list[Attempt]:
        """Take over what an earlier agent left. Each attempt comes back held (one that cannot be held is stopped).

        Attempts whose processes are gone are recorded. Nothing may be started before this was called.
        """
        now = self._clock()
        rows = self.registry.open_attempts()
        taken = []
        for row in rows:
            attempt = revive(row, self.job(row.job), self._jobs_dir, self.guard, now)
            self._live[attempt.attempt_id] = attempt
            ended = (attempt.folder.root / "exit.json").exists()
            if ended or attempt.launcher_gone():
                self._collect(attempt, now)
                continue
            if not reopen(attempt):
                self.stop(attempt.attempt_id, "its pipe is gone", requeue=True, fault=False)
            attempt.adopted = True
            if attempt.stopping is not None:
                attempt.begin_stopping(attempt.stopping, now)
            attempt.step(now)
            if attempt.stopping is None:
                if attempt.hold_reason is None and not attempt.hold("adopted", now):
                    self.stop(attempt.attempt_id, "the agent restarted", requeue=True, fault=False)
                elif attempt.hold_reason is not None:
                    attempt.hold_reason = "adopted"
            taken.append(attempt)
            self._journal("JOB_ADOPTED", {"job": attempt.job_id, "attempt": attempt.attempt_id, "state": attempt.state})
        sweep(self._jobs_dir, {row.attempt for row in rows} | set(self._live))
        return [attempt for attempt in taken if attempt.attempt_id in self._live]

    def shutdown(self, now: float) -> None:
        """The agent ends in order: stop and requeue every attempt. Goes on in ``tick`` until ``attempts()`` is empty."""
        for attempt in self.attempts():
            self.stop(attempt.attempt_id, "the agent is ending", requeue=True, fault=False)
        self.tick(now)

    def drain(self, limit_s: float) -> bool:
        """Tick until no attempt is left, at most ``limit_s``; whether that was reached. Blocks."""
        deadline = time.monotonic() + limit_s
        while (self._live or self._groups) and time.monotonic() < deadline:
            self.tick(self._clock())
            time.sleep(0.02)
        return not self._live
