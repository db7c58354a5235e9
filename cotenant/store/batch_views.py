"""Batches of prompts as people, flows and the worker read them; nothing is changed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from cotenant.store.models import Batch, BatchJob, Prompt
from cotenant.store.session import reading
from policies.prompts import added, job_key, rates

__all__ = [
    "batch_jobs",
    "batch_of_flow_run",
    "batch_status",
    "list_batches",
    "open_batches",
    "prompt_rows",
    "same_batches",
]

ROWS_AT_ONCE = 1000


def same_batches(engine: Engine, node: str, digest: str) -> list[str]:
    """Batches of the same prompts with the same options, oldest first."""
    wanted = select(Batch.batch).where(Batch.node == node, Batch.digest == digest).order_by(Batch.created_at)
    with reading(engine) as session:
        return list(session.scalars(wanted))


def batch_status(engine: Engine, batch: str) -> dict[str, Any] | None:
    """``{batch, node, source, format, spec, state, …, total, open, done, failed, figures, repeated, job}`` or None.

    ``figures`` are sums over its jobs with the tokens a second of busy and of wall time; ``job`` is the agent's number of the
    job that has not ended, ``job_key`` what the agent knows it by.
    """
    with reading(engine) as session:
        found = session.get(Batch, batch)
        return None if found is None else _status(session, found)


def open_batches(engine: Engine, node: str) -> list[dict[str, Any]]:
    """``[{batch, flow_run_id, number, job, place}]`` of the node's batches that are a flow run's.

    ``number``, ``job`` (the agent's number) and ``place`` are of the batch's job that has not ended, or None.
    """
    wanted = (
        select(Batch.batch, Batch.flow_run_id, BatchJob.number, BatchJob.job, BatchJob.place)
        .outerjoin(BatchJob, (BatchJob.batch == Batch.batch) & (BatchJob.state == "open"))
        .where(Batch.node == node, Batch.state == "open", Batch.flow_run_id.is_not(None))
    )
    with reading(engine) as session:
        return [dict(row._mapping) for row in session.execute(wanted)]


def batch_of_flow_run(engine: Engine, flow_run_id: str) -> dict[str, Any] | None:
    """``{batch, answered_at}`` of the open batch that a flow run works on: when it last came further (aware), or None."""
    with reading(engine) as session:
        batch = session.scalar(select(Batch.batch).where(Batch.flow_run_id == flow_run_id, Batch.state == "open"))
        if batch is None:
            return None
        newest = select(Prompt.finished_at).where(Prompt.batch == batch, Prompt.finished_at.is_not(None))
        answered_at = session.scalar(newest.order_by(Prompt.finished_at.desc()).limit(1))
        return {"batch": batch, "answered_at": answered_at}


def list_batches(engine: Engine, node: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
    """Newest first."""
    wanted = select(Batch).order_by(Batch.created_at.desc()).limit(limit)
    if node is not None:
        wanted = wanted.where(Batch.node == node)
    with reading(engine) as session:
        return [_status(session, found) for found in session.scalars(wanted)]


def _status(session: Session, found: Batch) -> dict[str, Any]:
    counted = select(Prompt.state, func.count()).where(Prompt.batch == found.batch).group_by(Prompt.state)
    counts: dict[str, int] = {state: count for state, count in session.execute(counted)}  # noqa: C416 - rows, not pairs
    jobs = list(session.scalars(select(BatchJob).where(BatchJob.batch == found.batch).order_by(BatchJob.number)))
    figures: dict[str, Any] = {}
    for job in jobs:
        figures = added(added(figures, job.figures.get("before") or {}), job.figures.get("now") or {})
    return {
        "batch": found.batch,
        "node": found.node,
        "source": found.source,
        "format": found.format,
        "spec": found.spec,
        "state": found.state,
        "reason": found.reason,
        "flow_run_id": found.flow_run_id,
        "created_at": found.created_at.isoformat(),
        "ended_at": found.ended_at.isoformat() if found.ended_at else None,
        "total": sum(counts.values()),
        "open": counts.get("open", 0),
        "done": counts.get("done", 0),
        "failed": counts.get("failed", 0),
        "jobs": len(jobs),
        "job": next((job.job for job in jobs if job.state == "open"), None),
        "job_key": next((job_key(found.batch, job.number) for job in jobs if job.state == "open"), None),
        "repeated": sum(job.repeated for job in jobs),
        "figures": figures | rates(figures),
    }


def batch_jobs(engine: Engine, batch: str) -> list[dict[str, Any]]:
    """``[{number, job, numbers, state, outcome, place, repeated}]`` in order."""
    names = ("number", "job", "numbers", "state", "outcome", "place", "repeated")
    with reading(engine) as session:
        jobs = session.scalars(select(BatchJob).where(BatchJob.batch == batch).order_by(BatchJob.number))
        return [{name: getattr(job, name) for name in names} for job in jobs]


def prompt_rows(engine: Engine, batch: str) -> Iterator[dict[str, Any]]:
    """``{number, custom_id, state, body, answer, finished_at}`` in the batch's order, some at a time."""
    at = -1
    while True:
        wanted = select(Prompt).where(Prompt.batch == batch, Prompt.number > at).order_by(Prompt.number)
        with reading(engine) as session:
            found = list(session.scalars(wanted.limit(ROWS_AT_ONCE)))
        if not found:
            return
        for prompt in found:
            yield {
                "number": prompt.number,
                "custom_id": prompt.custom_id,
                "state": prompt.state,
                "body": prompt.body,
                "answer": prompt.answer,
                "finished_at": prompt.finished_at.isoformat() if prompt.finished_at else None,
            }
        at = found[-1].number
