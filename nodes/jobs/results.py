"""From the files an attempt left to the rows that record its end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nodes.clock import utc_iso
from nodes.jobs.attempt import Attempt
from nodes.jobs.registry import Job
from nodes.jobs.runnerfiles import open_regular
from nodes.jobs.workdir import AttemptDir, newest_lines
from policies.jobs import ExitFacts, Stop, Verdict, backoff_s, judge_exit
from policies.workloads import is_workload, judge_workload_exit

__all__ = ["Ending", "conclude", "events_from", "give_earlier_events", "newest_events", "put_events_away"]

RESUME_BYTES_MAX = 256 << 20
# Of jobs that have ended, so many keep their events for whoever collects them.
EVENTS_OF_JOBS_KEPT = 100
LINE_BYTES_MAX = 16 << 20
COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Ending:
    """What is written when an attempt has ended."""

    facts: ExitFacts
    verdict: Verdict
    attempt_change: dict[str, Any]
    job_change: dict[str, Any]
    cpu_s: float | None
    backoff_s: float


def newest_events(attempt: Attempt) -> list[str]:
    return newest_lines(attempt.folder.work / "events.ndjson")


def conclude(attempt: Attempt, job: Job, told: Mapping[str, Any] | None, now: float, node_dir: Path) -> Ending:
    """Judge the end of an attempt.

    Args:
        told: the launcher's ``exit.json``; None where the launcher was lost.
    """
    left = attempt.folder.outcome(job.short)
    facts = ExitFacts(
        exit_code=told.get("exit_code") if told else None,
        signal=told.get("signal") if told else None,
        result=left.state,
        failure=left.failure,
        stop=_who_stopped(attempt, told),
        result_why=left.why,
        by_nudge=told is not None and told.get("signal") == signal.SIGUSR1,
    )
    if is_workload(job.stage):
        verdict, soft_retries = judge_workload_exit(facts, ran_s=attempt.unheld_s(now), restarts=job.soft_retries)
    else:
        verdict = judge_exit(
            facts, counted_before=job.counted, max_attempts=job.max_attempts, soft_retries=job.soft_retries
        )
        again = verdict.next == "requeue" and verdict.wait and not verdict.counts
        soft_retries = job.soft_retries + 1 if again else 0
    requeued = verdict.next == "requeue"
    if "resumable" in attempt.capabilities and job.feed_of is None:
        _keep_events(node_dir / "jobs", job.job, attempt.folder)
    result = left.result if verdict.outcome == "done" and job.feed_of is None else None
    if result is not None:
        _keep_artifacts(result, attempt.folder, node_dir / "artifacts" / str(job.job))
    ended_at = utc_iso()
    cpu_s = told.get("cpu_s") if told else None
    attempt_change = {
        "ended_at": ended_at,
        "exit_code": facts.exit_code,
        "exit_signal": facts.signal,
        "ended_by": facts.stop.by if facts.stop is not None else ("launcher lost" if told is None else "itself"),
        "verdict": verdict.reason,
        "cpu_s": cpu_s,
        "ran_s": attempt.unheld_s(now),
        "events": json.dumps(newest_events(attempt)),
    }
    outcome = "thrown_away" if verdict.outcome == "done" and job.feed_of is not None else verdict.outcome
    failure = None if verdict.outcome == "done" else left.failure_document
    job_change = {
        "state": "waiting" if requeued else "ended",
        "outcome": outcome,
        # until it is judged anew: a job that waits has a code and a reason at any moment
        "code": "JOB_REQUEUED" if requeued else None,
        "reason": verdict.reason,
        "remedy": None,
        "attempt": None if requeued else attempt.attempt_id,
        "counted": job.counted + (1 if verdict.counts else 0),
        "soft_retries": soft_retries,
        "ended_at": None if requeued else ended_at,
        "result": json.dumps(result) if result is not None else None,
        "failure": json.dumps(failure) if failure is not None else None,
    }
    return Ending(facts, verdict, attempt_change, job_change, cpu_s, backoff_s(max(soft_retries, job.counted + 1)))


def _who_stopped(attempt: Attempt, told: Mapping[str, Any] | None) -> Stop | None:
    if attempt.stopping is not None:
        return attempt.stopping
    if told and told.get("ended_by"):
        return Stop(str(told["ended_by"]), requeue=True, fault=False, by="launcher")
    return None


def _keep_artifacts(result: Mapping[str, Any], folder: AttemptDir, place: Path) -> None:
    """Hard links, so that a crash before the rows are committed leaves the work directory whole."""
    for artifact in result.get("artifacts") or []:
        for file in artifact["files"]:
            local = file.get("local", file.get("path"))
            target = place / local
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileExistsError):
                os.link(folder.work / local, target)


def _resume_path(jobs_dir: Path, job: int) -> Path:
    return jobs_dir / f"resume-{job}.ndjson"


def _keep_events(jobs_dir: Path, job: int, folder: AttemptDir) -> None:
    """Add this attempt's events to those of earlier ones; a last line without its end is dropped."""
    source = folder.work / "events.ndjson"
    if not source.is_file() or source.is_symlink():
        return
    earlier = folder.work / "resume.ndjson"
    temporary = _resume_path(jobs_dir, job).with_suffix(".tmp")
    with open(temporary, "wb+") as out:
        for path in (earlier, source):
            if path.is_file() and not path.is_symlink():
                _append(out, path)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, _resume_path(jobs_dir, job))


def _append(out: BinaryIO, path: Path) -> None:
    """The file's whole lines, some at a time, as it may be larger than the agent should ever be; up to the limit."""
    whole = out.tell()
    with open(path, "rb") as file:
        while (room := RESUME_BYTES_MAX - out.tell()) > 0 and (data := file.read(min(room, COPY_BYTES))):
            if (end := data.rfind(b"\n")) >= 0:
                whole = out.tell() + end + 1
            out.write(data)
    out.truncate(whole)
    out.seek(whole)


def give_earlier_events(jobs_dir: Path, job: int, folder: AttemptDir) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(_resume_path(jobs_dir, job), folder.work / "resume.ndjson")


def _ended_path(node_dir: Path, job: int) -> Path:
    return node_dir / "events" / f"{job}.ndjson"


def put_events_away(node_dir: Path, job: int) -> None:
    """The events of a job that has ended, where they stay until those of many that ended later have come."""
    source, target = _resume_path(node_dir / "jobs", job), _ended_path(node_dir, job)
    if not source.exists():
        return
    try:
        target.parent.mkdir(exist_ok=True, mode=0o700)
        os.replace(source, target)
        # from now on: its last line may be much older
        os.utime(target)
    except OSError:
        return  # it stays where it is, and is read there
    # A job with a low number may end after many with higher ones; and what was put here just now stays, whatever the clock says.
    others = (path for path in target.parent.glob("*.ndjson") if path.stem.isdigit() and path != target)
    for path in sorted(others, key=_put_at)[: 1 - EVENTS_OF_JOBS_KEPT]:
        with contextlib.suppress(OSError):
            path.unlink()


def _put_at(path: Path) -> tuple[int, int]:
    try:
        return path.stat().st_mtime_ns, int(path.stem)
    except OSError:
        return 0, int(path.stem)


def events_from(node_dir: Path, job: int, live: Attempt | None, after: int, limit_bytes: int) -> tuple[list[str], int]:
    """Whole lines from byte ``after`` of all that the job's attempts wrote, in a row, and the place behind the last of them.

    Earlier attempts' lines are kept whole, so places stay good through requeues and restarts. At least one line comes
    where there is one, however long (up to ``LINE_BYTES_MAX``; a longer one is left out).
    """
    if live is not None:
        parts = [live.folder.work / "resume.ndjson", live.folder.work / "events.ndjson"]
    else:
        ended = _ended_path(node_dir, job)
        parts = [ended if ended.is_file() else _resume_path(node_dir / "jobs", job)]
    base = 0
    for path in parts:
        size = _size(path)
        if after < base + size:
            lines, read = _whole_lines(path, after - base, limit_bytes)
            if read:
                return lines, after + read
        base += size
    return [], after


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() and not path.is_symlink() else 0
    except OSError:
        return 0


def _whole_lines(path: Path, at: int, limit_bytes: int) -> tuple[list[str], int]:
    opened = open_regular(path)
    if opened is None:
        return [], 0
    with opened as file:
        file.seek(at)
        data = file.read(limit_bytes)
        if b"\n" not in data and len(data) == limit_bytes:
            data += file.read(LINE_BYTES_MAX)
            end = data.find(b"\n")
            if end < 0:
                return [], len(data)  # no line that anybody could use
            data = data[: end + 1]
    whole = data[: data.rfind(b"\n") + 1]
    return [line.decode("utf-8", "replace") for line in whole.split(b"\n")[:-1]], len(whole)
