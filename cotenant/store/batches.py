"""Batches of prompts in the store: every prompt is closed once, whatever is told twice and whoever is killed in between.

A job's prompts stand in its row before the agent hears of it, and the place up to which its events were taken over moves in the
transaction that closes the prompts those events tell of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, func, insert, select, update
from sqlalchemy.orm import Session

from cotenant.store.models import Batch, BatchJob, Prompt
from cotenant.store.session import reading, writing
from policies.prompts import BatchSpec, Item, added, chunk_size, job_key, rates, sized
from policies.prompts.spec import TRIES_MAX

__all__ = [
    "LEFT_OVER",
    "batch_jobs",
    "batch_of_flow_run",
    "batch_status",
    "end_batch",
    "end_job",
    "is_stalled",
    "is_unanswered",
    "list_batches",
    "make_batch",
    "next_job",
    "open_batches",
    "place_of",
    "prompt_rows",
    "reopen_failed",
    "same_batches",
    "set_flow_run",
    "set_job",
    "take_over",
]

ROWS_AT_ONCE = 1000
LEFT_OVER = "left over"
# So many jobs in a row that fail without an answer have another cause than their prompts.
STALLED_JOBS = 3


def make_batch(
    engine: Engine,
    batch: str,
    spec: BatchSpec,
    items: Sequence[Item],
    *,
    source: str,
    digest: str,
    style: str,
    flow_run_id: str | None = None,
) -> bool:
    """Keep a batch with all its prompts, in one transaction. False, and nothing changed, where it is there already."""
    with writing(engine) as session:
        if session.get(Batch, batch) is not None:
            return False
        session.add(
            Batch(
                batch=batch,
                node=spec.node,
                source=source,
                digest=digest,
                format=style,
                spec=spec.model_dump(mode="json"),
                state="open",
                reason=None,
                flow_run_id=flow_run_id,
                created_at=datetime.now(UTC),
                ended_at=None,
            )
        )
        session.flush()
        rows = [
            {
                "batch": batch,
                "number": number,
                "custom_id": item.custom_id,
                "body": item.body,
                "state": "open",
                "tries": 0,
            }
            for number, item in enumerate(items)
        ]
        for at in range(0, len(rows), ROWS_AT_ONCE):
            session.execute(insert(Prompt), rows[at : at + ROWS_AT_ONCE])
        return True


def set_flow_run(engine: Engine, batch: str, flow_run_id: str) -> bool:
    """Note which flow run works on it; a batch that had ended with prompts left is open again.

    False, and nothing changed, where the batch was cancelled while this flow run was the one that worked on it: put back
    in that moment it does not undo the cancellation. Another flow run was asked for, and goes on.

    Whatever became of the job that it left behind was asked for, or is over: its row says ``LEFT_OVER`` as outcome till it is ended.
    """
    with writing(engine) as session:
        found = session.get_one(Batch, batch)
        if found.state == "cancelled" and found.flow_run_id == flow_run_id:
            return False
        found.flow_run_id = flow_run_id
        if found.state == "done":
            return True
        if found.state != "open":
            left = update(BatchJob).where(BatchJob.batch == batch, BatchJob.state == "open")
            session.execute(left.values(outcome=LEFT_OVER))
        found.state, found.reason, found.ended_at = "open", None, None
    return True


def same_batches(engine: Engine, node: str, digest: str) -> list[str]:
    """Batches of the same prompts with the same options, oldest first."""
    wanted = select(Batch.batch).where(Batch.node == node, Batch.digest == digest).order_by(Batch.created_at)
    with reading(engine) as session:
        return list(session.scalars(wanted))


# -- working through it -------------------------------------------------------------------------------------------------


def next_job(engine: Engine, batch: str) -> dict[str, Any] | None:
    """The job to see to: the one that has not ended, else a new one of the next open prompts; None when none is open.

    Returns:
        ``{number, job, place, prompts: [(number, body)]}``: its prompts that are open; ``job`` is None until the agent has named it.
    """
    with writing(engine) as session:
        spec = BatchSpec.model_validate(session.get_one(Batch, batch).spec)
        job = session.scalar(select(BatchJob).where(BatchJob.batch == batch, BatchJob.state == "open").limit(1))
        if job is None:
            job = _new_job(session, batch, spec)
        if job is None:
            return None
        wanted = select(Prompt.number, Prompt.body).where(*_open_of(batch, job))
        prompts = [(number, body) for number, body in session.execute(wanted.order_by(Prompt.number))]
        return {"number": job.number, "job": job.job, "place": job.place, "prompts": prompts}


def _new_job(session: Session, batch: str, spec: BatchSpec) -> BatchJob | None:
    is_open = (Prompt.batch == batch, Prompt.state == "open")
    tries = session.scalar(select(func.min(Prompt.tries)).where(*is_open))
    if tries is None:
        return None
    most = chunk_size(spec.per_job, tries)
    wanted = select(Prompt.number, Prompt.body).where(*is_open, Prompt.tries == tries).order_by(Prompt.number)
    rows = session.execute(wanted.limit(most)).all()
    count = sized((body for _, body in rows), most)
    last = session.scalar(select(func.max(BatchJob.number)).where(BatchJob.batch == batch))
    job = BatchJob(
        batch=batch,
        number=0 if last is None else last + 1,
        job=None,
        numbers=[number for number, _ in rows[:count]],
        state="open",
        outcome=None,
        place=0,
        figures={},
        repeated=0,
    )
    session.add(job)
    session.flush()
    return job


def _open_of(batch: str, job: BatchJob) -> tuple[Any, ...]:
    return Prompt.batch == batch, Prompt.state == "open", Prompt.number.in_(job.numbers)


def is_unanswered(engine: Engine, batch: str, number: int) -> bool:
    """Whether a job of the batch left any of its prompts open."""
    with reading(engine) as session:
        job = session.get_one(BatchJob, (batch, number))
        return session.scalar(select(Prompt.number).where(*_open_of(batch, job)).limit(1)) is not None


def set_job(engine: Engine, batch: str, number: int, job: int | None) -> None:
    """Note the agent's number of the job; None: the agent has it no more.

    Another one than before is another job: none of its events was taken over.
    """
    with writing(engine) as session:
        found = session.get_one(BatchJob, (batch, number))
        if found.job != job:
            found.job, found.place = job, 0


def take_over(
    engine: Engine,
    batch: str,
    number: int,
    answers: Iterable[Mapping[str, Any]],
    figures: Sequence[Mapping[str, Any]] = (),
    *,
    after: int | None = None,
    place: int | None = None,
) -> int:
    """Close the prompts that these answers are of, and move the job's place, in one transaction.

    Args:
        after, place: where the answers' events began and end; None for answers out of a result. Events that begin
            elsewhere than the kept place were taken over already, by whoever else works on the batch: nothing is done.

    Returns:
        How many prompts were closed. An answer to a prompt that is closed counts as repeated and changes nothing. Where the
        events began elsewhere, none; the kept place is ``place_of``.
    """
    closed = 0
    with writing(engine) as session:
        job = session.get_one(BatchJob, (batch, number), with_for_update=True)
        if after is not None and job.place != after:
            return 0
        for answer in answers:
            prompt = _prompt_number(answer, job.numbers)
            if prompt is None:
                continue
            if _close(session, batch, prompt, answer):
                closed += 1
            elif after is not None:
                job.repeated += 1
        for now in figures:
            job.figures = _figures(job.figures, now)
        if place is not None:
            job.place = place
    return closed


def place_of(engine: Engine, batch: str, number: int) -> int:
    """Up to where the events of a job of the batch were taken over."""
    with reading(engine) as session:
        return int(session.get_one(BatchJob, (batch, number)).place)


def _prompt_number(answer: Mapping[str, Any], numbers: Sequence[int]) -> int | None:
    """A job answers its own prompts and no others."""
    name = str(answer.get("id", ""))
    return int(name) if name.isascii() and name.isdigit() and int(name) in numbers else None


def _close(session: Session, batch: str, number: int, answer: Mapping[str, Any]) -> bool:
    change = (
        update(Prompt)
        .where(Prompt.batch == batch, Prompt.number == number, Prompt.state == "open")
        .values(state="failed" if answer.get("error") else "done", answer=dict(answer), finished_at=datetime.now(UTC))
    )
    return bool(session.execute(change).rowcount)  # type: ignore[attr-defined]


def _figures(kept: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """A runner counts from its own start: those of another attempt are added to, known by its name, else by figures that fell."""
    before, last = dict(kept.get("before") or {}), dict(kept.get("now") or {})
    if now.get("attempt") != last.get("attempt", now.get("attempt")) or now.get("wall_s", 0) < last.get("wall_s", 0):
        before, last = added(before, last), {}
    return {"before": before, "now": dict(now)}


def end_job(engine: Engine, batch: str, number: int, outcome: str, *, failed: str | None = None) -> None:
    """The job is over.

    Args:
        failed: why, where it failed of its own: its open prompts have had one try more, and at the last one end as failed.
    """
    with writing(engine) as session:
        job = session.get_one(BatchJob, (batch, number))
        if job.state == "ended":
            return
        job.state, job.outcome = "ended", outcome
        if failed is None:
            return
        mine = _open_of(batch, job)
        session.execute(update(Prompt).where(*mine).values(tries=Prompt.tries + 1))
        given_up = {"error": {"code": "job_failed", "message": f"its jobs failed {TRIES_MAX} times: {failed}"}}
        session.execute(
            update(Prompt)
            .where(*mine, Prompt.tries >= TRIES_MAX)
            .values(state="failed", answer=given_up, finished_at=datetime.now(UTC))
        )


def is_stalled(engine: Engine, batch: str, number: int) -> bool:
    """Whether the newest jobs of the batch, this one the last of them, all failed without an answer or a prompt in common.

    Then no prompt is at fault, and the try that it took of the earlier ones' prompts is given back to those that are open.
    """
    with writing(engine) as session:
        wanted = select(BatchJob).where(BatchJob.batch == batch, BatchJob.number <= number)
        jobs = list(session.scalars(wanted.order_by(BatchJob.number.desc()).limit(STALLED_JOBS)))
        if len(jobs) < STALLED_JOBS or any(job.outcome != "failed" for job in jobs if job.number != number):
            return False
        if set.intersection(*(set(job.numbers) for job in jobs)):
            return False
        numbers = sorted({prompt for job in jobs for prompt in job.numbers})
        answered = select(Prompt.number).where(
            Prompt.batch == batch, Prompt.state == "done", Prompt.number.in_(numbers)
        )
        if session.scalar(answered.limit(1)) is not None:
            return False
        for job in jobs:
            if job.number != number:
                tried = (*_open_of(batch, job), Prompt.tries > 0)
                session.execute(update(Prompt).where(*tried).values(tries=Prompt.tries - 1))
        return True


def reopen_failed(engine: Engine, batch: str) -> int:
    """The prompts of the batch that ended as failed are asked again; how many."""
    with writing(engine) as session:
        failed = update(Prompt).where(Prompt.batch == batch, Prompt.state == "failed")
        count = session.execute(failed.values(state="open", tries=0, answer=None, finished_at=None)).rowcount  # type: ignore[attr-defined]
        found = session.get_one(Batch, batch)
        if count and found.state == "done":
            found.state, found.ended_at = "failed", None
        return int(count)


def end_batch(engine: Engine, batch: str, state: str, reason: str | None = None, *, of: str | None = None) -> None:
    """``done``, ``cancelled`` or ``failed``; prompts that are open stay open.

    Args:
        of: only while this flow run is the one that works on it.
    """
    with writing(engine) as session:
        found = session.get_one(Batch, batch)
        if found.state != "done" and of in (None, found.flow_run_id):
            found.state, found.reason, found.ended_at = state, reason, datetime.now(UTC)


# -- reading ------------------------------------------------------------------------------------------------------------


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
