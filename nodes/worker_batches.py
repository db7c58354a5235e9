"""Batches of prompts as their node's worker sees them: rows of the store, jobs of the agent."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import anyio
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from cotenant import store
from nodes.client import AgentClient
from policies.prompts import job_key, progress_of
from policies.refusal import Refused

__all__ = ["WorkerBatches"]

log = logging.getLogger(__name__)


class WorkerBatches:
    """Each method works in a thread. What is read is empty or None while the store is away; what is written raises."""

    def __init__(self, agent: AgentClient, url: str, node: str) -> None:
        self.agent, self.url, self.node = agent, url, node
        self._engine: Engine | None = None

    async def _opened(self) -> Engine:
        if self._engine is None:
            self._engine = await anyio.to_thread.run_sync(store.open, self.url)
        return self._engine

    async def open(self) -> list[dict[str, Any]]:
        """As ``store.open_batches``."""
        try:
            return await anyio.to_thread.run_sync(store.open_batches, await self._opened(), self.node)
        except (SQLAlchemyError, OSError) as error:
            log.debug("open batches were not looked at: %s", error)
            return []

    async def of_flow_run(self, flow_run_id: UUID) -> dict[str, Any] | None:
        """As ``store.batch_of_flow_run``."""
        try:
            return await anyio.to_thread.run_sync(store.batch_of_flow_run, await self._opened(), str(flow_run_id))
        except (SQLAlchemyError, OSError) as error:
            log.warning("the store was not asked for the batch of flow run %s: %s", flow_run_id, error)
            return None

    async def give_up(self, row: dict[str, Any], why: str) -> None:
        """Nothing goes on with it by itself; its open prompts stay open."""
        reason = f"{why}; go on with: cotenant llmserve retry {row['batch']}"
        await self._end(row, "failed", reason)

    async def stop(self, row: dict[str, Any]) -> None:
        """Its job stops; what it had finished by now is kept, what it still finishes is collected by a retry."""
        engine = await self._opened()
        if row["number"] is not None:
            await anyio.to_thread.run_sync(self._cancel_job, engine, row)
        await self._end(row, "cancelled", "its flow run is cancelled")

    async def _end(self, row: dict[str, Any], state: str, reason: str) -> None:
        """Unless another flow run was given the batch since it was looked at."""
        engine = await self._opened()
        await anyio.to_thread.run_sync(
            lambda: store.end_batch(engine, row["batch"], state, reason, of=row["flow_run_id"])
        )

    def _cancel_job(self, engine: Engine, row: dict[str, Any]) -> None:
        try:
            # by its key: the store may not know its number yet, and an agent that lost its journal gives that to another job
            job = int(self.agent.call("job_cancel", key=job_key(row["batch"], row["number"]))["job"])
        except Refused as refusal:
            if refusal.code == "JOB_UNKNOWN":
                return
            raise
        store.set_job(engine, row["batch"], row["number"], job)
        place = row["place"] if job == row["job"] else 0
        while (told := self.agent.call("job_events", job=job, after=place))["next"] != place:
            answers, figures = progress_of(told["lines"])
            store.take_over(engine, row["batch"], row["number"], answers, figures, after=place, place=told["next"])
            place = told["next"]
