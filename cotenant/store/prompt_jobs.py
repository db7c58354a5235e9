"""The jobs of a batch in the store: each takes the next open prompts, and what it answers closes each of them once.

A job's prompts stand in its row before the agent hears of it, and the place up to which its events were taken over moves in the
transaction that closes the prompts those events tell of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from cotenant.store.models import Batch, BatchJob, Prompt
from cotenant.store.session import reading, writing
from policies.prompts import BatchSpec, added, chunk_size, sized
from policies.prompts.spec import TRIES_MAX

__all__ = ["end_job", "is_stalled", "is_unanswered", "next_job", "place_of", "set_job", "take_over"]

# So many jobs in a row that fail without an answer have another cause than their prompts.
STALLED_JOBS = 3


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
