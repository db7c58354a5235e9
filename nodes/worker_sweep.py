"""The worker's sweep: runs and batches that nobody works on any more. The process decides, not what the server believes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter, WorkQueueFilter
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from sqlalchemy.exc import SQLAlchemyError

from nodes.client import AgentClient, AgentUnreachable
from nodes.flow_processes import FlowProcesses
from nodes.worker_admission import SHARED_QUEUE
from nodes.worker_batches import WorkerBatches
from nodes.worker_states import RunStates
from policies.pages import PAGE, pages_async
from policies.refusal import Refused
from policies.views import Reason

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun

__all__ = ["Sweep"]

log = logging.getLogger(__name__)

PENDING_LIMIT = timedelta(minutes=5)
# Longer than Prefect's own way of cancelling takes: SIGTERM, 30 s, SIGKILL.
CANCEL_GRACE = timedelta(seconds=45)
AGENT_TIMEOUT_S = 5.0
WENT_DOWN = "its process is gone (worker or machine went down)"


class Sweep:
    """One node's.

    Args:
        held: the runs that this worker has in hand, as it changes them.
        ended: takes the runs that are ended here; the worker that has them in hand sets their state.
    """

    def __init__(
        self,
        node: str,
        agent: AgentClient,
        *,
        processes: FlowProcesses,
        batches: WorkerBatches,
        states: RunStates,
        held: Collection[UUID],
        ended: set[UUID],
    ) -> None:
        self.node, self.agent = node, agent
        self.processes, self.batches, self.states = processes, batches, states
        self._held, self._ended = held, ended

    async def whole(self, client: PrefectClient, pool: str, submitting: Collection[UUID]) -> None:
        """Every run of this node's queue that no worker has, the harness runs in its agent, the batches in its store.

        Args:
            submitting: runs that are about to be held.
        """
        wanted = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
        states = FlowRunFilter.model_validate({"state": {"type": {"any_": wanted}}})
        pools = WorkPoolFilter.model_validate({"name": {"any_": [pool]}})
        queues = WorkQueueFilter.model_validate({"name": {"any_": [self.node, SHARED_QUEUE]}})
        # All of them: what this does not list is no run of this node any more, and its process's note goes.
        found = await pages_async(
            lambda at: client.read_flow_runs(
                flow_run_filter=states, work_pool_filter=pools, work_queue_filter=queues, limit=PAGE, offset=at
            )
        )
        self.processes.prune(keep={flow_run.id for flow_run in found} | set(self._held))
        for flow_run in found:
            ours = flow_run.work_queue_name == self.node or flow_run.parameters.get("node") == self.node
            if flow_run.id in self._held:
                self._end_overdue(flow_run)
            elif ours and flow_run.id not in submitting:
                await self._one(client, flow_run)

        await self._abort_cancelled(client)
        await self._look_after_batches(client)

    async def _one(self, client: PrefectClient, flow_run: FlowRun) -> None:
        state = flow_run.state
        if state is None:
            return
        if self.processes.of(flow_run.id) is None:
            unnoted = self.processes.found(flow_run.id, flow_run.infrastructure_pid)
            if unnoted is not None:
                self.processes.remember(flow_run.id, unnoted.pid)
        if self.processes.lives(flow_run.id):
            if state.is_cancelling():
                self._terminate(flow_run.id)
            return  # a worker died, its flow lives on: no second copy
        if state.is_cancelling():
            await self.states.cancelled(client, flow_run.id)
        elif state.is_pending():
            if datetime.now(UTC) - state.timestamp > PENDING_LIMIT:
                reason = Reason("FLOW_PUT_BACK", "no worker went on with it")
                await self.states.defer(client, flow_run.id, reason, 0.0)
        elif self.processes.of(flow_run.id) is not None or flow_run.infrastructure_pid is not None:
            await self.states.lost(client, flow_run, WENT_DOWN)
        self.processes.forget(flow_run.id)

    def _end_overdue(self, flow_run: FlowRun) -> None:
        """After an outage of the server Prefect no longer hears that a run it started is to be cancelled."""
        state = flow_run.state
        if state is None or not state.is_cancelling() or not self.processes.lives(flow_run.id):
            return
        if datetime.now(UTC) - state.timestamp > CANCEL_GRACE:
            self._ended.add(flow_run.id)
            self._terminate(flow_run.id)

    def _terminate(self, flow_run_id: UUID) -> None:
        process = self.processes.of(flow_run_id)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    async def _abort_cancelled(self, client: PrefectClient) -> None:
        """A run that was put back and then cancelled has no process that could tell the agent: it is told here."""
        try:
            runs = await anyio.to_thread.run_sync(
                lambda: self.agent.call("run_list", _timeout_s=AGENT_TIMEOUT_S, limit=20)
            )
            for run in (row["run"] for row in runs if row["state"] == "open"):
                record = await anyio.to_thread.run_sync(
                    lambda name: self.agent.call("run_show", _timeout_s=AGENT_TIMEOUT_S, run=name), run
                )
                newest = _driven_by(record)
                if newest is None:
                    continue
                flow_run = await client.read_flow_run(newest)
                if flow_run.state is not None and flow_run.state.is_cancelled():
                    await anyio.to_thread.run_sync(lambda name: self.agent.call("run_abort", run=name), run)
        except (AgentUnreachable, Refused, ObjectNotFound) as error:
            log.debug("Open runs were not looked at: %s", error)

    async def _look_after_batches(self, client: PrefectClient) -> None:
        """Batches that are open in the store while nothing works on them: their run is cancelled, lost or failed."""
        for row in await self.batches.open():
            try:
                await self.look_after_batch(client, row)
            except (AgentUnreachable, Refused, SQLAlchemyError, OSError, ValueError) as error:
                log.debug("Batch %s was not looked at: %s", row["batch"], error)

    async def look_after_batch(self, client: PrefectClient, row: dict[str, Any]) -> None:
        """What the flow itself judged hopeless is not open any more; whatever else ended it may go on."""
        flow_run_id = UUID(row["flow_run_id"])
        if flow_run_id in self._held or self.processes.lives(flow_run_id):
            return
        try:
            flow_run = await client.read_flow_run(flow_run_id)
        except ObjectNotFound:
            await self.batches.give_up(row, "its flow run is not on the server any more")
            return
        state = flow_run.state
        if state is None or not state.is_final():
            return
        if state.is_cancelled():
            await self.batches.stop(row)
            return
        why = f"its flow run ended as {state.name}" + (f": {state.message}" if state.message else "")
        if state.is_completed() or flow_run.deployment_id is None:  # without a deployment no worker would take it
            await self.batches.give_up(row, why)
        elif await self.batches.of_flow_run(flow_run_id) is None:
            return  # it was cancelled or given to another flow run meanwhile, or the store is away: the next sweep sees
        elif not await self.states.put_back(client, flow_run_id, why):
            await self.batches.give_up(row, f"{why}; it was put back often enough")


def _driven_by(record: Mapping[str, Any]) -> UUID | None:
    """The flow run that drove a run last; None: none did, or the record is damaged and names none."""
    try:
        return UUID((record.get("driven_by") or [record.get("flow_run_id")])[-1])
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
