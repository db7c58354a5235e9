"""The verb ``explain``: why a job, or everything on the node, runs or waits. Judged now, not remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodes.jobs import Attempt, Job
from policies.codes import CODES
from policies.explain import in_words, limits_in_words, node_state, reason_rows
from policies.refusal import Refused
from policies.units import desired
from policies.views import Reason

if TYPE_CHECKING:
    from nodes.agent.core import Agent

__all__ = ["explain", "unknown_sections"]


def explain(agent: Agent, job: int | None = None) -> dict[str, Any]:
    """Of one job, or of the node with every job that has not ended.

    Raises:
        Refused: JOB_UNKNOWN.
    """
    live = {attempt.job_id: attempt for attempt in agent.jobs.attempts()}
    if job is not None:
        return _job(agent, agent.jobs.job(job), live)
    node = agent.section.node
    return {
        "node": agent.node,
        "mode": node.mode,
        "pause": agent.sections.owner_pause,
        "unknown_sections": unknown_sections(agent),
        "gpu_jobs": node.gpu_jobs,
        "admits": agent.view.admits,
        "admits_why": agent.view.admits_why,
        "memory": agent.observer.memory.describe(),
        "rules": node_state(agent.view),
        "limits": limits_in_words(agent.view),
        "run": agent.runs.active.run if agent.runs.active is not None else None,
        "flows": _flows(agent),
        "jobs": [_job(agent, each, live) for each in agent.jobs.registry.open_jobs()],
    }


def unknown_sections(agent: Agent) -> list[dict[str, Any]]:
    """Why all fleet work is held for a section that was lost or cannot be read, each with what to do."""
    return reason_rows(agent.sections.unknown, {"NODE": agent.node})


def _flows(agent: Agent) -> dict[str, Any] | None:
    """Why no flow run starts on the node now, as its worker is told and says in ``AwaitingNode``; None where one may."""
    try:
        agent.runs.check_admits_flow("of anybody")
    except Refused as refused:
        return {"code": refused.code, "why": refused.why, "remedy": refused.remedy}
    return None


def _job(agent: Agent, job: Job, live: dict[int, Attempt]) -> dict[str, Any]:
    attempt = live.get(job.job)
    record = agent.jobs.record(job)
    reasons = _reasons(agent, job, attempt)
    names = {"NODE": agent.node, "JOB": str(job.job), "MODULE": job.short}
    rows = reason_rows(reasons, names)
    lowered = attempt is not None and attempt.lowered
    threads = attempt.threads if attempt is not None else None
    return {
        "job": job.job,
        "module": job.module,
        "stage": job.stage,
        "state": record["state"],
        "attempt": job.attempt if attempt is not None else None,
        "outcome": job.outcome,
        "reasons": rows,
        "lowered": lowered,
        "threads": threads,
        "duty": attempt.duty if attempt is not None else None,
        "words": in_words(record["state"], rows, lowered, threads),
    }


def _reasons(agent: Agent, job: Job, attempt: Attempt | None) -> list[Reason]:
    if attempt is not None:
        units = [agent.units.of_attempt(each) for each in agent.jobs.attempts() if each.state != "stopping"]
        wanted = next((each for each in desired(units, agent.view) if each.attempt == attempt.attempt_id), None)
        if attempt.stopping is not None:
            return [Reason("JOB_STOPPING", attempt.stopping.reason)]
        if attempt.state == "held" and (wanted is None or not wanted.reasons):
            # held by what an earlier agent or its launcher did, and not let go yet
            return [Reason("PROTECTION_PAUSE", attempt.hold_reason or "it was held")]
        over = agent.claims.words(attempt.attempt_id)
        reasons = list(wanted.reasons) if wanted is not None else []
        return reasons + ([] if over is None else [Reason("JOB_MEMORY_OVERRUN", over)])
    if job.state != "waiting":
        return [Reason("JOB_ENDED", job.reason or str(job.outcome))] if job.state == "ended" else []
    for waiting, left_s in agent.jobs.backing_off():
        if waiting.job == job.job:
            return [Reason("JOB_BACKOFF", f"its last attempt failed; the next one may begin in {left_s:.0f} s")]
    why = agent.admitting.why_waiting(job)
    if not why:
        # nothing keeps it from starting but what its last try was refused for, or that it was put back a moment ago
        code = job.code if job.code is not None and job.code in CODES else "JOB_WAITING"
        return [Reason(code, job.reason or "nothing keeps it: it starts at the next look", job.remedy or "")]
    return why
