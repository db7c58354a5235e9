"""What the worker makes of a flow run that has no process: it waits for its node, is put back, lost or cancelled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.states import Cancelled, Crashed, Scheduled

from nodes.worker_batches import WorkerBatches
from nodes.worker_waiting import put_off
from policies.explain import AWAITING, awaiting_words
from policies.put_back import BATCH_WAITS_S, Was, next_put_back
from policies.views import Reason

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun, State

__all__ = ["RunStates"]

PUT_BACK = "put back: "


class RunStates:
    """Of one node's runs. The client is given with each call: as the worker stops its own may be closed already."""

    def __init__(self, node: str, batches: WorkerBatches) -> None:
        self.node = node
        self.batches = batches

    async def defer(self, client: PrefectClient, flow_run_id: UUID, reason: Reason, wait_s: float) -> None:
        """The run waits, and is asked about again in so many seconds."""
        when = datetime.now(UTC) + timedelta(seconds=wait_s)
        state: State[Any] = Scheduled(scheduled_time=when, name=AWAITING, message=awaiting_words(self.node, reason))
        await put_off(client, flow_run_id, state, cancelled_words=self._cancelled_words)

    async def put_back(self, client: PrefectClient, flow_run_id: UUID, why: str) -> bool:
        """Schedule the run again, unless it was put back too often in a row. True when it was, or was cancelled meanwhile."""
        states = sorted(await client.read_flow_run_states(flow_run_id), key=lambda state: state.timestamp)
        history = [
            Was(state.timestamp, state.is_running(), state.name == AWAITING and PUT_BACK in (state.message or ""))
            for state in states
        ]
        batch = await self.batches.of_flow_run(flow_run_id)
        if batch is not None:
            due, without = next_put_back(history, BATCH_WAITS_S, batch["answered_at"]), " without an answer in between"
        else:
            due, without = next_put_back(history), ""
        if due is None:
            return False
        again = Reason("FLOW_PUT_BACK", f"{PUT_BACK}{why} ({due.number} of {due.most}{without})")
        await self.defer(client, flow_run_id, again, due.wait_s)
        return True

    async def lost(self, client: PrefectClient, flow_run: FlowRun, why: str) -> None:
        """Its process is gone while it should run: put back where its deployment says that it can go on, else crashed."""
        deployment = await client.read_deployment(flow_run.deployment_id) if flow_run.deployment_id else None
        resumable = bool((deployment.job_variables or {}).get("resumable")) if deployment is not None else False
        if not (resumable and await self.put_back(client, flow_run.id, why)):
            await client.set_flow_run_state(flow_run.id, Crashed(message=f"{self.node}: {why}"), force=True)

    async def cancelled(self, client: PrefectClient, flow_run_id: UUID) -> None:
        done: State[Any] = Cancelled(message=self._cancelled_words)
        await client.set_flow_run_state(flow_run_id, done, force=True)

    @property
    def _cancelled_words(self) -> str:
        return f"{self.node}: cancelled; no process of it is left"
