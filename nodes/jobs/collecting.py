"""When an attempt has ended, and how its end is recorded once, whatever the disk does."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from nodes.jobs import results
from nodes.jobs.adoption import carriers, session_mates
from nodes.jobs.attempt import Attempt
from nodes.jobs.guard import Guard
from nodes.jobs.jobqueue import Journal
from nodes.jobs.registry import Job, Registry
from nodes.jobs.runnerfiles import read_document

__all__ = ["Collector"]


class Collector:
    """Looks for ends and records them: rows first, then the journal, then the folder goes."""

    def __init__(self, node_dir: Path, registry: Registry, guard: Guard, journal: Journal) -> None:
        self._node_dir = node_dir
        self._registry = registry
        self._guard = guard
        self._journal = journal
        self._unrecorded: set[str] = set()

    def collect(self, attempt: Attempt, job: Job, now: float) -> results.Ending | None:
        """Record the attempt's end where it is known and can be recorded; None where it goes on or the next tick must try."""
        path = attempt.folder.root / "exit.json"
        # Once it was taken for lost, what is left is killed by us: an end that is told after that is our own doing.
        told = None if attempt.launcher_lost else read_document(path)
        if told is None and not attempt.launcher_lost:
            if not attempt.launcher_gone():
                return None
            told = read_document(path)  # it may have written it just before it went
        if told is None:
            if not attempt.launcher_lost:
                attempt.launcher_lost = True
                self._journal("JOB_LAUNCHER_LOST", {"job": attempt.job_id, "attempt": attempt.attempt_id})
            strangers = carriers(self._guard, attempt.attempt_id, attempt.folder.work)
            strangers += session_mates(self._guard, attempt.attempt_id, attempt.known)
            if not attempt.kill_leftovers(strangers):
                return None
        try:
            ending = results.conclude(attempt, job, told, now, self._node_dir)
            self._registry.end_attempt(attempt.attempt_id, job.job, ending.attempt_change, ending.job_change)
        except (sqlite3.Error, OSError, ValueError) as error:
            # one attempt's end must not keep the others from being stepped;
            # the work directory stays until the end is recorded; the next tick tries again
            if attempt.attempt_id not in self._unrecorded:
                self._unrecorded.add(attempt.attempt_id)
                self._journal("JOURNAL_LOST", {"job": attempt.job_id, "attempt": attempt.attempt_id, "why": str(error)})
            return None

        self._unrecorded.discard(attempt.attempt_id)
        self._told(attempt, job, ending, now)
        return ending

    def _told(self, attempt: Attempt, job: Job, ending: results.Ending, now: float) -> None:
        """The end is recorded: say it, and clear away."""
        verdict = ending.verdict
        attempt.ended_mono_s = now
        attempt.cpu_s = ending.cpu_s
        attempt.close_span(now)
        attempt.close()
        facts = {
            "job": job.job,
            "attempt": attempt.attempt_id,
            "exit": ending.facts.exit_code,
            "signal": ending.facts.signal,
            "outcome": verdict.outcome,
            "fault": verdict.fault,
            "reason": verdict.reason,
            "ended_by": ending.facts.stop.by if ending.facts.stop is not None else None,
        }
        self._journal("JOB_ENDED", facts)
        if verdict.next == "requeue":
            self._journal(
                "JOB_REQUEUED",
                {"job": job.job, "reason": verdict.reason, "fault": verdict.fault, "counts": verdict.counts},
            )
        else:
            results.put_events_away(self._node_dir, job.job)
        self._guard.forget(attempt.attempt_id)
        attempt.folder.remove()
