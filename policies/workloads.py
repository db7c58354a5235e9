"""Workloads: fleet processes that do not end by themselves (``[[services]]`` of a manifest), and what becomes of them when they do.

A workload is a unit like a job: it is admitted, given a duty, held, stopped and adopted by the same rules, under the stage name
``service:NAME``. Only its end means something else: it is started again, with a growing wait. Source: ``runner-protocol.md``.
"""

from __future__ import annotations

from policies.jobs import EXIT_NEVER, ExitFacts, Verdict

__all__ = ["PREFIX", "STEADY_S", "is_workload", "judge_workload_exit", "stage_of", "workload_name"]

PREFIX = "service:"
STEADY_S = 600.0
"""One that ran so long without a break begins again with the shortest wait."""


def is_workload(stage: str) -> bool:
    return stage.startswith(PREFIX)


def workload_name(stage: str) -> str:
    return stage.removeprefix(PREFIX)


def stage_of(name: str) -> str:
    return PREFIX + name


def judge_workload_exit(facts: ExitFacts, *, ran_s: float, restarts: int) -> tuple[Verdict, int]:
    """What follows an ended workload, and its restarts in a row (the next wait grows with them).

    Args:
        facts: how it ended.
        ran_s: how long it ran and was not held.
        restarts: restarts in a row before this end.
    """
    streak = 1 if ran_s >= STEADY_S else restarts + 1
    if facts.stop is not None:
        if not facts.stop.requeue:
            return Verdict("end", "cancelled", "none", False, facts.stop.reason), 0
        return Verdict("requeue", None, "none", False, facts.stop.reason, wait=True), streak
    told = facts.failure
    if told is not None and facts.exit_code == EXIT_NEVER:
        return Verdict("end", "failed", "job", True, told.reason), 0
    if facts.exit_code is None and facts.signal is None:
        reason = "nobody saw it end (launcher lost or machine restarted)"
    elif told is not None:
        reason = told.reason
    else:
        reason = f"crashed with signal {facts.signal}" if facts.signal is not None else f"exit {facts.exit_code}"
    return Verdict("requeue", None, "module", False, f"{reason}; it is started again", wait=True), streak
