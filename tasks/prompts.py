"""Working through a batch: its next open prompts become a job, each finished prompt closes its row, until none is open.

The store says what is open and how far a job's events were taken over; the agent says what became of the job. Nothing is kept
here, so whoever is killed in between, the next one goes on from those two.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from cotenant import store
from policies.prompts import BatchSpec, job_key, job_payload, progress_of
from policies.refusal import Refused
from tasks.agent_link import Agent, Patience, ask_patiently

__all__ = ["MODULE", "STAGE", "BatchStalled", "BatchStopped", "BatchWork", "Chunk", "StoreLost"]

MODULE, STAGE = "llmserve", "batch"
POLL_S = 1.0
ANSWER_S = 30.0
STORE_PATIENCE_S = 300.0
STORE_PAUSE_S = 2.0
CANCEL_WITHIN_S = 20.0
# Failures of the whole batch: another job would meet the same.
HOPELESS = {"llmserve/bad_model", "llmserve/bad-spec"}

Log = logging.Logger | logging.LoggerAdapter[Any]


class StoreLost(Exception):
    """The store did not come back in time. A retry of the flow run goes on where it was."""


class BatchStalled(Exception):
    """Job after job fails without one answer: the prompts are not the cause, and stay open. Later it may go."""


class BatchStopped(Exception):
    """The batch cannot go on now; its open prompts stay open. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A job of the batch: its number in the batch and with the agent, and up to where its events were taken over."""

    number: int
    job: int
    place: int


@dataclass
class BatchWork:
    """One batch's line to agent and store. Both may be away for a while."""

    agent: Agent
    url: str
    batch: str
    log: Log
    node: str = ""
    """Where the agent is; empty in tests, where only one can be meant."""
    patience: Patience = field(default_factory=Patience)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _engine: Engine | None = None
    _left_over: set[int] = field(default_factory=set)
    _until_s: float | None = None
    """Beyond this moment nobody is waited for: of a flow that was cancelled."""

    # -- agent and store, patiently ---------------------------------------------------------------------------------

    def ask(self, verb: str, **params: Any) -> Any:
        """Ask the agent, for as long as patience lasts.

        Raises:
            Refused: it says no to what was asked.
            AgentLost: nobody answered in time, or only that it is busy or has failed.
        """
        patience = replace(self.patience, total_s=self._left_s(self.patience.total_s))
        answer_s = max(self._left_s(ANSWER_S), 1.0)
        return ask_patiently(
            self.agent, verb, params, timeout_s=answer_s, patience=patience, sleep=self.sleep, clock=self.clock
        )

    def _left_s(self, most_s: float) -> float:
        return most_s if self._until_s is None else min(most_s, max(self._until_s - self.clock(), 0.0))

    def ask_of(self, chunk: Chunk, verb: str, **params: Any) -> Any:
        """Ask about our job.

        Raises:
            Refused: JOB_UNKNOWN, also where the agent means another job by its number.
        """
        told, ours = self.ask(verb, job=chunk.job, **params), job_key(self.batch, chunk.number)
        if told.get("key", ours) != ours:
            raise Refused(
                "JOB_UNKNOWN", f"job {chunk.job}", "it is another job: the agent lost its journal", "cotenant job list"
            )
        return told

    def keep(self, write: Callable[[Engine], Any]) -> Any:
        """Do something with the store, again where it is away. What is done may be repeated."""
        until, told = self.clock() + self._left_s(STORE_PATIENCE_S), False
        while True:
            try:
                if self._engine is None:
                    self._engine = store.open(self.url)
                return write(self._engine)
            except (SQLAlchemyError, OSError) as error:
                if self.clock() > until:
                    raise StoreLost(f"the store is away: {error}") from error
                if not told:
                    self.log.warning("the store is away, tried again: %s", error)
                told = True
            self.sleep(STORE_PAUSE_S)

    # -- steps ------------------------------------------------------------------------------------------------------

    def begin(self, flow_run_id: str) -> dict[str, Any]:
        """Take the batch on; its status.

        Raises:
            Refused: there is no such batch, it is another node's (its jobs have their numbers there), or it was cancelled
                while this flow run worked on it.
        """
        status = self.status()
        if self.node and status["node"] != self.node:
            raise Refused(
                "BATCH_OTHER_NODE",
                f"batch {self.batch}",
                f"it is of node {status['node']}, not of {self.node}",
                f"run it with node {status['node']}, or queue its open prompts on {self.node}",
            )
        if not self.keep(lambda engine: store.set_flow_run(engine, self.batch, flow_run_id)):
            raise Refused(
                "BATCH_CANCELLED", f"batch {self.batch}", "it was cancelled", f"cotenant llmserve retry {self.batch}"
            )
        # their answers are taken over, their end stops nothing
        jobs = self.keep(lambda engine: store.batch_jobs(engine, self.batch))
        self._left_over = {row["number"] for row in jobs if row["outcome"] == store.LEFT_OVER}
        return self.status()

    def status(self) -> dict[str, Any]:
        found = self.keep(lambda engine: store.batch_status(engine, self.batch))
        if found is None:
            raise Refused(
                "BATCH_UNKNOWN", f"batch {self.batch}", "the store has none of that name", "cotenant llmserve list"
            )
        return dict(found)

    def next(self) -> Chunk | None:
        """The job to see to, submitted; None when no prompt is open."""
        while (found := self.keep(lambda engine: store.next_job(engine, self.batch))) is not None:
            if found["prompts"]:
                job = self._submit(found)
                return Chunk(found["number"], job, found["place"] if job == found["job"] else 0)
            # all of it was answered before its end was seen
            self.keep(lambda engine, number=found["number"]: store.end_job(engine, self.batch, number, "done"))
        return None

    def _submit(self, found: Mapping[str, Any]) -> int:
        """The agent's number of the job: by its key, as an agent that lost its journal gives its numbers to other jobs."""
        spec = BatchSpec.model_validate(self.status()["spec"])
        asked = self.ask(
            "job_submit",
            module=MODULE,
            stage=STAGE,
            payload=job_payload(spec, found["prompts"]),
            # asked again, the agent gives the same job
            key=job_key(self.batch, found["number"]),
        )
        job = int(asked["job"])
        if found["job"] not in (None, job):
            self.log.warning("the agent does not know job %s any more: its open prompts are job %s", found["job"], job)
        self.keep(lambda engine: store.set_job(engine, self.batch, found["number"], job))
        return job

    def follow(self, chunk: Chunk, seen: Callable[[], None]) -> int:
        """Take the job's answers over as they come, until it has ended. How many prompts were closed.

        It ends as well where the agent does not know the job any more: what is open is then for ``next``.

        Raises:
            BatchStopped: somebody cancelled the job, or it failed in a way that every other one would.
            BatchStalled: it failed as the ones before it did, and none of them had an answer.
        """
        place, closed = chunk.place, 0
        while True:
            try:
                place, more, ended = self._take(chunk, place)
                closed += more
                if more:
                    seen()
                if ended:
                    return closed + self._settle(chunk)
            except Refused as refusal:
                if refusal.code != "JOB_UNKNOWN":
                    raise
                self.log.warning("%s: what is open of it is submitted anew", refusal)
                # the new job may have the same number, and its events begin anew
                self.keep(lambda engine: store.set_job(engine, self.batch, chunk.number, None))
                self.sleep(POLL_S)
                return closed
            self.sleep(POLL_S)

    def _take(self, chunk: Chunk, place: int) -> tuple[int, int, bool]:
        """All events there are now: the new place, how many prompts they closed, whether the job has ended."""
        closed = 0
        while True:
            told = self.ask_of(chunk, "job_events", after=place)
            if not told["lines"] and told["next"] == place:
                return place, closed, bool(told["ended"])
            answers, figures = progress_of(told["lines"])
            after, place = place, int(told["next"])
            closed += self.keep(
                lambda engine, answers=answers, figures=figures, after=after, place=place: store.take_over(
                    engine, self.batch, chunk.number, answers, figures, after=after, place=place
                )
            )
            kept = int(self.keep(lambda engine: store.place_of(engine, self.batch, chunk.number)))
            # elsewhere only where another flow run took some over in between: on from there; set back, it is another job's
            place = kept if kept >= after else place

    def _settle(self, chunk: Chunk) -> int:
        """The job has ended and its events are taken over: what its end means for the batch."""
        job = self.ask_of(chunk, "job_show")
        outcome, closed = str(job["outcome"]), 0
        if outcome == "done":
            # the result holds every answer, also where the events were lost
            answers = ((job.get("result") or {}).get("payload") or {}).get("answers") or []
            closed = self.keep(lambda engine: store.take_over(engine, self.batch, chunk.number, answers))
        failure = job.get("failure") or {}
        why = ": ".join(
            str(part) for part in (failure.get("reason") or job.get("reason"), failure.get("detail")) if part
        )
        failed = (
            why if outcome not in ("done", "cancelled") or (outcome == "done" and self._unanswered(chunk)) else None
        )
        hopeless = outcome == "failed" and failure.get("reason") in HOPELESS
        stalled = (
            outcome == "failed"
            and not hopeless
            and self.keep(lambda engine: store.is_stalled(engine, self.batch, chunk.number))
        )
        charged = None if hopeless or stalled else failed
        self.keep(lambda engine: store.end_job(engine, self.batch, chunk.number, outcome, failed=charged))
        if stalled:
            raise BatchStalled(f"jobs fail whatever their prompts are, the last one, {chunk.job}, with: {why}")
        if hopeless:
            raise BatchStopped(
                f"job {chunk.job} failed, as every other one would: {why}. Mend that and retry this flow run"
            )
        if outcome == "cancelled" and chunk.number not in self._left_over:
            raise BatchStopped(f"job {chunk.job} was cancelled. Retry this flow run to go on with what is open")
        if failed is not None:
            self.log.warning("job %s failed: %s", chunk.job, why)
        return closed

    def _unanswered(self, chunk: Chunk) -> bool:
        """A runner that ends well without an answer to each prompt has failed them."""
        return bool(self.keep(lambda engine: store.is_unanswered(engine, self.batch, chunk.number)))

    def cancel(self) -> None:
        """Stop the batch's job and take over what it had finished; within the time that a cancelled flow has."""
        self._until_s = until = self.clock() + CANCEL_WITHIN_S
        found = self.keep(lambda engine: store.batch_jobs(engine, self.batch))
        for row in (row for row in found if row["state"] == "open"):
            chunk = self._chunk_of(row)
            if chunk is None:
                continue
            self.ask("job_cancel", job=chunk.job)
            place, ended = chunk.place, False
            while not ended and self.clock() < until:
                place, _, ended = self._take(chunk, place)
                if not ended:
                    self.sleep(0.3)
            if ended:
                self.keep(lambda engine, number=chunk.number: store.end_job(engine, self.batch, number, "cancelled"))
        self.end("cancelled", "the flow run was cancelled")

    def _chunk_of(self, row: Mapping[str, Any]) -> Chunk | None:
        """The job as the agent has it, by its key: the store may not know its number yet, and the number may be another's."""
        try:
            job = int(self.ask("job_show", key=job_key(self.batch, row["number"]))["job"])
        except Refused:
            return None
        self.keep(lambda engine: store.set_job(engine, self.batch, row["number"], job))
        return Chunk(row["number"], job, row["place"] if job == row["job"] else 0)

    def end(self, state: str, reason: str | None = None) -> None:
        self.keep(lambda engine: store.end_batch(engine, self.batch, state, reason))
