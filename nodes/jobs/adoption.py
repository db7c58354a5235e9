"""What a restarted agent finds: attempts by their rows and files, leftovers by their environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from nodes.identity import boot_id
from nodes.jobs.attempt import Attempt
from nodes.jobs.cgroup import Group
from nodes.jobs.guard import Guard
from nodes.jobs.lowering import Lowering
from nodes.jobs.proctree import Proc
from nodes.jobs.registry import AttemptRow, Job
from nodes.jobs.runnerfiles import read_document
from nodes.jobs.workdir import AttemptDir, told_process
from policies.jobs import Stop

__all__ = ["carriers", "reopen", "revive", "session_mates", "sweep"]


def revive(row: AttemptRow, job: Job, jobs_dir: Path, guard: Guard, now: float) -> Attempt:
    """The attempt of a row, as far as rows and files tell; whether its processes live is not looked at."""
    folder = AttemptDir(jobs_dir / row.attempt)
    named = told_process(folder.root, "runner", row.attempt)
    attempt = Attempt(
        attempt_id=row.attempt,
        number=row.number,
        job_id=row.job,
        module=job.module,
        short=job.short,
        stage=job.stage,
        capabilities=row.capabilities,
        cores=row.cores,
        mem_gb=row.mem_gb,
        stop_grace_s=row.stop_grace_s,
        timeout_s=job.timeout_s,
        feed_of=job.feed_of,
        gpu=(read_document(folder.root / "launch.json") or {}).get("gpu") is not False,
        folder=folder,
        system=guard,
        lowering=Lowering(guard.owns),
        group=_group(row),
        spawned_mono_s=now,
        duty=_duty(folder, row.duty),
        threads=_threads(folder),
        # a launcher that does not stand in its row was never given the word to start anything
        launcher=row.launcher,
        runner=row.runner or (named[0] if named is not None else None),
    )
    if row.launcher is not None and row.launcher.boot_id == boot_id():
        guard.register(row.attempt, row.launcher.pid, row.launcher.start_ticks)
        attempt.recall(row.tree)
        # We saw each of these below that launcher and wrote it down: what is left of them is ours also where launcher and guardian
        # are gone, and no parent leads to either any more.
        for pid, start_ticks in row.tree.items():
            guard.register(row.attempt, pid, start_ticks)
    started = (read_document(folder.root / "runner.json") or {}).get("mono_s")
    if row.boot_id == boot_id() and isinstance(started, (int, float)):
        attempt.spawned_mono_s = min(now, float(started))
    # what ran under earlier agents stands in the row; what was held under them counts for nothing
    attempt.ran_before_s = row.ran_s
    attempt.begin(now, held_reason=None)
    attempt.lowered = attempt.lowering.recognise(attempt.members())
    if row.stop is not None:
        attempt.stopping = Stop(row.stop["reason"], row.stop["requeue"], row.stop["fault"])
    return attempt


def _group(row: AttemptRow) -> Group | None:
    if row.cgroup is None or row.boot_id != boot_id():
        return None
    try:
        return Group(row.cgroup, row.attempt)
    except ValueError:
        return None


def _duty(folder: AttemptDir, kept: float | None) -> float | None:
    """What the runner was told: an agent that died between the document and its row leaves the row behind."""
    told = read_document(folder.control)
    if told is None:
        return kept
    duty = told.get("gpu_duty")
    return float(duty) if isinstance(duty, (int, float)) else None


def _threads(folder: AttemptDir) -> int | None:
    threads = (read_document(folder.control) or {}).get("threads")
    return threads if isinstance(threads, int) else None


def carriers(guard: Guard, attempt_id: str, work: Path) -> list[Proc]:
    """Processes of our own uid whose environment names this attempt and its work directory; the guard lets them be ended.

    Only the attempt's own processes were given both, so one that lost its parents is still known by them.
    """
    marks = {f"OARBANK_ATTEMPT_ID={attempt_id}".encode(), f"OARBANK_WORKDIR={work}".encode()}
    found = []
    for pid in _own_pids():
        with contextlib.suppress(OSError):
            before = guard.stat(pid)
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            now = guard.stat(pid)
            if before is None or now is None or now.start_ticks != before.start_ticks or not marks <= set(environ):
                continue
            guard.vouch(attempt_id, now)
            found.append(now)
    return found


def session_mates(guard: Guard, attempt_id: str, known: Mapping[int, int]) -> list[Proc]:
    """Live processes in a session with a live one of ``known`` (pid -> start ticks); the guard lets them be ended.

    Who came after the last look and lost its parents since is known by nothing else. A launcher is started in a session of its own,
    and a session is entered by birth alone: whoever is in one with a process of the attempt descends from that launcher.
    """
    holders: dict[int, Proc] = {}
    for pid, start_ticks in known.items():
        with contextlib.suppress(OSError):
            proc = guard.stat(pid)
            if proc is not None and proc.start_ticks == start_ticks and not proc.dead and guard.owns(pid, start_ticks):
                holders[proc.session] = proc
    # none can be in the agent's own; 0 is a session that cannot be seen from here
    holders.pop(os.getsid(0), None)
    holders.pop(0, None)
    found = []
    for pid in _own_pids() if holders else ():
        with contextlib.suppress(OSError):
            proc = guard.stat(pid)
            if proc is None or proc.dead or known.get(pid) == proc.start_ticks or proc.session not in holders:
                continue
            holder = holders[proc.session]
            still = guard.stat(holder.pid)  # while it lives there, the session's number is nobody else's
            if still is not None and (still.start_ticks, still.session) == (holder.start_ticks, proc.session):
                guard.vouch(attempt_id, proc)
                found.append(proc)
    return found


def _own_pids() -> Iterable[int]:
    uid, me = os.getuid(), os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != me:
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    yield int(name)


def reopen(attempt: Attempt) -> bool:
    """Take hold of the FIFO again and write the first byte; False where it is gone."""
    try:
        attempt.pipe = os.open(attempt.folder.fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    attempt.heartbeat()
    return True


def sweep(jobs_dir: Path, keep: set[str]) -> None:
    """Folders of attempts whose end is recorded: a crash may have come before they were deleted."""
    for folder in jobs_dir.iterdir():
        if folder.is_dir() and folder.name not in keep:
            AttemptDir(folder).remove()
