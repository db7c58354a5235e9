"""What the worker puts in place of parts of Prefect's executor of a flow run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State
from prefect.runner._process_manager import ProcessHandle
from prefect.runner._state_proposer import StateProposer

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

__all__ = ["NoHooks", "PutBackProposer", "Started"]

# Takes the run and why; True when it was put back.
PutBack = Callable[[PrefectClient, UUID, str], Awaitable[bool]]


class PutBackProposer(StateProposer):
    """Where Prefect's executor would report a killed process as crashed, the run is put back instead."""

    def __init__(self, put_back: PutBack, client: PrefectClient, resumable: bool) -> None:
        super().__init__(client=client)
        self._put_back = put_back
        self.resumable = resumable
        self.handle: ProcessHandle | None = None
        self.did_put_back = False

    async def propose_crashed(self, flow_run: FlowRun, message: str) -> State[Any] | None:
        code = self.handle.returncode if self.handle is not None else None
        if self.resumable and code is not None and code < 0:
            try:
                now = await self._client.read_flow_run(flow_run.id)
                if now.state is not None and not now.state.is_cancelling() and not now.state.is_final():
                    why = f"its process was killed by signal {-code}"
                    self.did_put_back = await self._put_back(self._client, flow_run.id, why)
            except Exception:
                self._logger.exception("Could not put flow run '%s' back", flow_run.id)
        if self.did_put_back:
            return None
        return await super().propose_crashed(flow_run, message)


class Started:
    """Remembers whether the executor reported a process: it ends without one where the run was cancelled meanwhile."""

    def __init__(self, inner: anyio.abc.TaskStatus[ProcessHandle | None]) -> None:
        self._inner = inner
        self.reported = False

    def started(self, value: ProcessHandle | None = None) -> None:
        self.reported = True
        self._inner.started(value)


class NoHooks:
    """Stands where Prefect would start a process to run a flow's hooks; these flows have none."""

    async def run_cancellation_hooks(self, flow_run: FlowRun, state: State[Any]) -> None:
        return

    async def run_crashed_hooks(self, flow_run: FlowRun, state: State[Any]) -> None:
        return
