"""A worker without a server: the few calls that it makes, against a list of runs, and processes that only sleep."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import anyio
import httpx
import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.runner._flow_run_executor import FlowRunExecutionResult

from nodes import worker as module
from nodes.worker import NodeJobConfiguration, NodeWorker

NODE = "n1"


class FakeServer:
    """The few client calls that the sweep makes, against a list of runs."""

    def __init__(self) -> None:
        self.runs: dict[UUID, Any] = {}
        self.histories: dict[UUID, list[State[Any]]] = {}
        self.resumable = True
        self.just_before: Callable[[UUID], object] = lambda flow_run: None  # a state is set
        self.away = False

    def add(self, kind: StateType, *, age_s: float = 0.0, queue: str = NODE, node: str | None = NODE) -> UUID:
        state: State[Any] = State(type=kind, timestamp=datetime.now(UTC) - timedelta(seconds=age_s))
        run = SimpleNamespace(
            id=uuid4(),
            name="run",
            flow_id=uuid4(),
            state=state,
            work_queue_name=queue,
            parameters={"node": node} if node else {},
            deployment_id=uuid4(),
            empirical_policy=SimpleNamespace(pause_keys=None),
            infrastructure_pid=None,
        )
        self.runs[run.id] = run
        self.histories[run.id] = [state]
        return run.id

    async def read_flow_runs(self, *, limit: int, offset: int, **_: Any) -> list[Any]:
        live = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
        return [run for run in self.runs.values() if run.state.type in live][offset : offset + limit]

    async def __aenter__(self) -> FakeServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def read_flow_run(self, flow_run: UUID) -> Any:
        if self.away:
            raise httpx.ConnectError("All connection attempts failed")
        if flow_run not in self.runs:
            raise ObjectNotFound(http_exc=KeyError(flow_run))
        return self.runs[flow_run]

    async def read_flow_run_states(self, flow_run: UUID) -> list[State[Any]]:
        return self.histories[flow_run]

    async def read_deployment(self, _: UUID) -> Any:
        entrypoint = "flows/llmserve_batch.py:llmserve_batch"
        return SimpleNamespace(
            job_variables={"resumable": self.resumable}, entrypoint=entrypoint, parameter_openapi_schema=None
        )

    async def set_flow_run_state(self, flow_run: UUID, state: State[Any], force: bool) -> None:
        assert force
        self.just_before(flow_run)
        self.become(flow_run, state)

    def become(self, flow_run: UUID, state: State[Any]) -> None:
        self.runs[flow_run].state = state
        self.histories[flow_run].append(state)


def name_of(server: FakeServer, run: UUID) -> str:
    return str(server.runs[run].state.name)


def gone(worker: NodeWorker, run: UUID) -> None:
    """Note a process for the run that is over."""
    child = subprocess.Popen(["sleep", "600"])
    worker.processes.remember(run, child.pid)
    child.kill()
    child.wait()


class Process:
    """Prefect's executor, with a process that only sleeps. What it calls "over" ends the process and its report."""

    def __init__(self, over: anyio.Event, just_after: Callable[[], object] = lambda: None) -> None:
        self.over, self.just_after = over, just_after

    async def __aenter__(self) -> Process:
        self.client = self.control_channel = None
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    def create_executor(self, *_: Any, **__: Any) -> Process:
        return self

    async def submit(self, *, task_status: Any) -> FlowRunExecutionResult:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        try:
            task_status.started(child)
            await self.over.wait()
        finally:
            child.kill()
            child.wait()
            self.just_after()
        return FlowRunExecutionResult(handle=child, status_code=-9)  # type: ignore[arg-type]


def run_and_end(
    worker: NodeWorker, server: FakeServer, run: UUID, patch: pytest.MonkeyPatch, *, stop: bool, away: bool
) -> list[Any]:
    """Let the worker run it until its process is killed, or the worker stops. What the worker answered Prefect, if it did."""
    answers: list[Any] = []

    def just_after() -> None:
        server.away = away

    async def whole() -> None:
        over = anyio.Event()
        patch.setattr(module, "FlowRunExecutorContext", lambda: Process(over, just_after))
        patch.setattr(module, "get_client", lambda: server)

        async def one() -> None:
            # as Prefect's worker does, which logs what went wrong and goes on
            with contextlib.suppress(httpx.HTTPError):
                answers.append(await worker.run(server.runs[run], NodeJobConfiguration(resumable=server.resumable)))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            while worker.processes.of(run) is None:
                await anyio.sleep(0.01)
            if stop:
                group.cancel_scope.cancel()
            over.set()

    anyio.run(whole)
    return answers
