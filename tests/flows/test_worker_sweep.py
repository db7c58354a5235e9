"""What a worker does about runs that nobody has: the process decides, not what the server believes. No server needed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import anyio
import httpx
import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.runner._flow_run_executor import FlowRunExecutionResult
from sqlalchemy import Engine

from cotenant import store
from nodes import worker as module
from nodes.flow_processes import FlowProcesses, lower_priority
from nodes.identity import identify, own_id
from nodes.worker import NodeJobConfiguration, NodeWorker
from policies.explain import AWAITING
from policies.harness.spec import RunSpec
from policies.prompts import BatchSpec, Item
from policies.put_back import BATCH_WAITS_S
from policies.refusal import Refused
from policies.views import Reason
from tests.flows.conftest import until
from tests.flows.fake_agent import FakeAgent
from tests.node.agent_rig import wait_for

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

    async def read_flow_runs(self, **_: Any) -> list[Any]:
        live = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
        return [run for run in self.runs.values() if run.state.type in live]

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


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> NodeWorker:
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path))
    monkeypatch.setenv("COTENANT_NODE", NODE)
    worker = NodeWorker(work_pool_name="cotenant", name=NODE)
    worker._client = server  # type: ignore[assignment]
    return worker


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield child
    child.kill()
    child.wait()


def name_of(server: FakeServer, run: UUID) -> str:
    return str(server.runs[run].state.name)


def gone(worker: NodeWorker, run: UUID) -> None:
    """Note a process for the run that is over."""
    child = subprocess.Popen(["sleep", "600"])
    worker.processes.remember(run, child.pid)
    child.kill()
    child.wait()


def test_case_105_a_running_run_whose_process_is_gone_is_put_back(worker: NodeWorker, server: FakeServer) -> None:
    run = server.add(StateType.RUNNING)
    gone(worker, run)
    anyio.run(worker.sweep)
    assert name_of(server, run) == AWAITING
    assert "process is gone" in server.runs[run].state.message


def test_it_is_put_back_three_times_and_then_crashed(worker: NodeWorker, server: FakeServer) -> None:
    run = server.add(StateType.RUNNING)
    seen = []
    for _ in range(4):
        server.runs[run].state = State(type=StateType.RUNNING)
        gone(worker, run)
        anyio.run(worker.sweep)
        seen.append(name_of(server, run))
    assert seen == [AWAITING, AWAITING, AWAITING, "Crashed"]


def test_a_flow_that_cannot_go_on_is_crashed(worker: NodeWorker, server: FakeServer) -> None:
    server.resumable = False
    run = server.add(StateType.RUNNING)
    gone(worker, run)
    anyio.run(worker.sweep)
    assert name_of(server, run) == "Crashed"


def test_case_106_a_live_process_gets_no_second_copy(
    worker: NodeWorker, server: FakeServer, sleeper: subprocess.Popen[bytes]
) -> None:
    run = server.add(StateType.RUNNING, age_s=9999)
    worker.processes.remember(run, sleeper.pid)
    anyio.run(worker.sweep)
    assert name_of(server, run) == "Running"
    assert worker.processes.of(run) == identify(sleeper.pid)


def _full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_takes_no_note_of_a_flows_process_costs_it_nothing(
    worker: NodeWorker, server: FakeServer, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.add(StateType.RUNNING, age_s=9999)
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", _full)
        worker.processes.remember(run, sleeper.pid)
        anyio.run(worker.sweep)
        assert worker.processes.of(run) == identify(sleeper.pid)
    assert FlowProcesses(worker.processes.directory).of(run) is None
    anyio.run(worker.sweep)
    assert name_of(server, run) == "Running"
    assert FlowProcesses(worker.processes.directory).of(run) == identify(sleeper.pid), "noted once there is room"


@pytest.mark.parametrize("state", ["it lives", "it is gone", "another has its pid"])
def test_a_process_that_nobody_could_note_is_found_by_the_next_worker(
    worker: NodeWorker, server: FakeServer, state: str
) -> None:
    run = server.add(StateType.RUNNING, age_s=9999)
    of = uuid4() if state == "another has its pid" else run
    child = subprocess.Popen(
        ["sleep", "600"], start_new_session=True, env={**os.environ, "PREFECT__FLOW_RUN_ID": str(of)}
    )
    server.runs[run].infrastructure_pid = str(child.pid)
    try:
        wait_for("it runs", lambda: FlowProcesses.found(of, str(child.pid)))
        if state == "it is gone":
            child.kill()
            child.wait(30)
        anyio.run(worker.sweep)
        lives = state == "it lives"
        assert name_of(server, run) == ("Running" if lives else AWAITING)
        assert worker.processes.of(run) == (identify(child.pid) if lives else None)
    finally:
        child.kill()
        child.wait(30)


def test_a_run_left_pending_by_a_dead_worker_waits_for_the_node_again(worker: NodeWorker, server: FakeServer) -> None:
    old, fresh = server.add(StateType.PENDING, age_s=301), server.add(StateType.PENDING, age_s=10)
    anyio.run(worker.sweep)
    assert (name_of(server, old), name_of(server, fresh)) == (AWAITING, "Pending")


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


@pytest.mark.parametrize("stop", [True, False], ids=["the worker stops", "its process is killed"])
def test_a_run_that_ends_while_the_server_is_away_is_put_back_when_that_is_there_again(
    worker: NodeWorker, server: FakeServer, monkeypatch: pytest.MonkeyPatch, stop: bool
) -> None:
    run = server.add(StateType.RUNNING)
    assert run_and_end(worker, server, run, monkeypatch, stop=stop, away=True) == []
    assert name_of(server, run) == "Running"
    server.away = False
    later = NodeWorker(work_pool_name="cotenant", name=NODE)
    later._client = server  # type: ignore[assignment]
    anyio.run(later.sweep)
    assert name_of(server, run) == AWAITING
    anyio.run(later.sweep)
    assert later.processes.of(run) is None


def test_a_worker_that_stops_puts_its_runs_back(
    worker: NodeWorker, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.add(StateType.RUNNING)
    run_and_end(worker, server, run, monkeypatch, stop=True, away=False)
    assert name_of(server, run) == AWAITING
    assert worker.processes.of(run) is None


@pytest.mark.parametrize(("resumable", "ends"), [(True, AWAITING), (False, "Crashed")])
def test_a_run_whose_end_nobody_reported_in_a_short_outage_is_not_left_running(
    worker: NodeWorker, server: FakeServer, monkeypatch: pytest.MonkeyPatch, resumable: bool, ends: str
) -> None:
    server.resumable = resumable
    run = server.add(StateType.RUNNING)
    (answer,) = run_and_end(worker, server, run, monkeypatch, stop=False, away=False)
    assert name_of(server, run) == ends
    assert answer.status_code == 0, "Prefect's worker sets what ended with a status as crashed"
    assert worker.processes.of(run) is None


def test_runs_of_other_nodes_and_runs_in_hand_are_left_alone(worker: NodeWorker, server: FakeServer) -> None:
    other = server.add(StateType.PENDING, age_s=999, queue="any", node="n2")
    nobodys = server.add(StateType.PENDING, age_s=999, queue="any", node=None)
    held = server.add(StateType.PENDING, age_s=999)
    worker._held.add(held)
    anyio.run(worker.sweep)
    assert {name_of(server, run) for run in (other, nobodys, held)} == {"Pending"}


def test_an_orphan_that_was_cancelled_is_ended_and_told_so(
    worker: NodeWorker, server: FakeServer, sleeper: subprocess.Popen[bytes]
) -> None:
    run = server.add(StateType.CANCELLING)
    worker.processes.remember(run, sleeper.pid)
    anyio.run(worker.sweep)
    assert sleeper.wait(60) != 0
    anyio.run(worker.sweep)
    assert name_of(server, run) == "Cancelled"


def test_a_held_run_whose_cancelling_is_overdue_is_ended(
    worker: NodeWorker, server: FakeServer, sleeper: subprocess.Popen[bytes]
) -> None:
    run = server.add(StateType.CANCELLING, age_s=5)
    worker._held.add(run)
    worker.processes.remember(run, sleeper.pid)
    anyio.run(worker.sweep)
    assert sleeper.poll() is None, "Prefect's own way gets its time first"
    server.runs[run].state.timestamp = datetime.now(UTC) - timedelta(seconds=60)
    anyio.run(worker.sweep)
    assert sleeper.wait(60) != 0
    anyio.run(worker._settle, server.runs[run], True)
    assert name_of(server, run) == "Cancelled"


def test_an_open_run_whose_flow_run_was_cancelled_is_aborted(
    worker: NodeWorker, server: FakeServer, tmp_path: Path
) -> None:
    cancelled, waiting = server.add(StateType.CANCELLED), server.add(StateType.SCHEDULED)
    with FakeAgent(tmp_path, NODE) as agent:
        spec = RunSpec(node=NODE, rule="trainer").model_dump()
        for name, flow_run in (("r1", cancelled), ("r2", waiting)):
            agent.do_run_begin(name, spec, own_id().as_dict(), "test", str(flow_run))
            agent.active = None
        anyio.run(worker.sweep)
        assert (agent.memory.runs["r1"]["ending"], agent.memory.runs["r2"]["state"]) == ("aborted", "open")


@pytest.fixture
def engine(tmp_path: Path, worker: NodeWorker) -> Engine:
    return store.open(worker.settings.store)


def batch_on(engine: Engine, name: str, flow_run: UUID, node: str = NODE) -> None:
    spec = BatchSpec(node=node)
    store.make_batch(
        engine, name, spec, [Item({"prompt": "a"}), Item({"prompt": "b"})], source="s", digest="d", style="plain",
        flow_run_id=str(flow_run),
    )  # fmt: skip


def state_of(engine: Engine, name: str) -> tuple[str, str]:
    status = store.batch_status(engine, name)
    assert status is not None
    return status["state"], status["reason"] or ""


def test_a_batch_whose_flow_run_failed_for_want_of_something_goes_on_with_growing_waits_to_an_end(
    worker: NodeWorker, server: FakeServer, engine: Engine
) -> None:
    run = server.add(StateType.FAILED)
    batch_on(engine, "b", run)
    waits = []
    for _ in range(len(BATCH_WAITS_S)):
        anyio.run(worker.sweep)
        state = server.runs[run].state
        assert (state.name, "without an answer in between" in state.message) == (AWAITING, True)
        waits.append(round((state.state_details.scheduled_time - state.timestamp).total_seconds(), -1))
        server.runs[run].state = State(type=StateType.FAILED, message="the agent does not answer")
    assert waits == list(BATCH_WAITS_S)
    assert state_of(engine, "b")[0] == "open"
    anyio.run(worker.sweep)
    state, reason = state_of(engine, "b")
    assert state == "failed"
    assert "the agent does not answer" in reason
    assert reason.endswith("cotenant llmserve retry b")


def test_a_batch_that_is_cancelled_as_its_flow_run_is_looked_at_is_not_put_back(
    worker: NodeWorker, server: FakeServer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.add(StateType.FAILED)
    batch_on(engine, "b", run)
    rows = anyio.run(worker.sweeper.batches.open)
    store.end_batch(engine, "b", "cancelled", "it was cancelled")
    anyio.run(worker.sweeper.look_after_batch, server, rows[0])
    assert (name_of(server, run), state_of(engine, "b")[0]) == ("Failed", "cancelled")


def test_a_cancelled_flow_run_does_not_end_the_batch_of_the_one_that_goes_on_with_it(
    worker: NodeWorker, server: FakeServer, engine: Engine
) -> None:
    run = server.add(StateType.CANCELLED)
    batch_on(engine, "b", run)
    rows = anyio.run(worker.sweeper.batches.open)
    store.set_flow_run(engine, "b", str(server.add(StateType.SCHEDULED)))
    anyio.run(worker.sweeper.look_after_batch, server, rows[0])
    assert state_of(engine, "b")[0] == "open"


def test_an_answer_in_between_begins_the_count_anew(worker: NodeWorker, server: FakeServer, engine: Engine) -> None:
    run = server.add(StateType.RUNNING)
    batch_on(engine, "b", run)
    store.next_job(engine, "b")
    for _ in range(5):
        server.runs[run].state = State(type=StateType.RUNNING)
        gone(worker, run)
        anyio.run(worker.sweep)
    assert "(5 of 9" in server.runs[run].state.message
    store.take_over(engine, "b", 0, [{"id": "0", "text": "x"}])
    server.runs[run].state = State(type=StateType.RUNNING)
    gone(worker, run)
    anyio.run(worker.sweep)
    assert "(1 of 9" in server.runs[run].state.message


def test_batches_that_somebody_works_on_or_that_are_others_are_left_alone(
    worker: NodeWorker, server: FakeServer, engine: Engine, sleeper: subprocess.Popen[bytes]
) -> None:
    """A run that the server calls crashed while its process lives (case 106) gets no second copy."""
    alive, held, other, ended = (server.add(StateType.CRASHED) for _ in range(4))
    waits = server.add(StateType.SCHEDULED)
    for name, flow_run in (("alive", alive), ("held", held), ("waits", waits), ("ended", ended)):
        batch_on(engine, name, flow_run)
    batch_on(engine, "other", other, "n2")
    store.end_batch(engine, "ended", "failed", "bad_model")
    worker.processes.remember(alive, sleeper.pid)
    worker._held.add(held)
    anyio.run(worker.sweep)
    assert {name_of(server, run) for run in (alive, held, other, ended)} == {"Crashed"}
    assert name_of(server, waits) == "Scheduled"
    assert state_of(engine, "ended") == ("failed", "bad_model")


def test_a_cancelled_batch_is_ended_and_one_whose_run_is_forgotten_says_what_to_do(
    worker: NodeWorker, server: FakeServer, engine: Engine, tmp_path: Path
) -> None:
    batch_on(engine, "forgotten", uuid4())
    by_hand = server.add(StateType.FAILED)
    server.runs[by_hand].deployment_id = None
    batch_on(engine, "by hand", by_hand)
    cancelled, foreign = server.add(StateType.CANCELLED), server.add(StateType.CANCELLED)
    told: list[tuple[str, str]] = []

    def call(verb: str, **params: Any) -> Any:
        told.append((verb, params.get("key", "")))
        if verb == "job_cancel":
            if params["key"] == "f/0":
                raise Refused("JOB_UNKNOWN", "job", "number 6 is another job by now", "cotenant job list")
            return {"job": 5}
        if verb == "job_events":
            lines = [json.dumps({"name": "prompt", "answer": {"id": "1", "text": "in time"}})]
            return {"lines": lines[params["after"] :], "next": 1, "ended": False}
        return {"run_list": []}.get(verb, {})

    worker.agent = worker.sweeper.agent = worker.sweeper.batches.agent = SimpleNamespace(call=call)  # type: ignore[assignment]
    for name, flow_run in (("c", cancelled), ("f", foreign)):
        batch_on(engine, name, flow_run)
        store.next_job(engine, name)
    store.set_job(engine, "f", 0, 6)  # the flow of the other was killed before the store had the number
    anyio.run(worker.sweep)
    assert [state_of(engine, name)[0] for name in ("c", "f")] == ["cancelled", "cancelled"]
    assert [key for verb, key in told if verb == "job_cancel"] == ["c/0", "f/0"]
    assert [row["state"] for row in store.prompt_rows(engine, "c")] == ["open", "done"], "what it had finished is kept"
    assert [row["state"] for row in store.prompt_rows(engine, "f")] == ["open", "open"]
    for name in ("forgotten", "by hand"):
        state, reason = state_of(engine, name)
        assert state == "failed"
        assert reason.endswith(f"cotenant llmserve retry {name}")
    assert name_of(server, by_hand) == "Failed", "no worker would ever take it"


def test_a_node_takes_from_the_shared_queue_what_is_for_it(worker: NodeWorker, server: FakeServer) -> None:
    mine = server.runs[server.add(StateType.SCHEDULED, queue="any")]
    other = server.runs[server.add(StateType.SCHEDULED, queue="any", node="n2")]
    wrong = server.runs[server.add(StateType.SCHEDULED, queue=NODE, node="n2")]
    assert (worker._is_for_us(mine), worker._is_for_us(other)) == (True, False)
    refused = anyio.run(worker._refusal, wrong)
    assert refused is not None
    assert refused[0].code == "FLOW_OTHER_NODE"
    assert "asks for node 'n2'" in refused[0].why


def test_the_reason_of_the_agent_and_the_time_left_decide_the_wait(
    worker: NodeWorker, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.runs[server.add(StateType.SCHEDULED)]
    worker._flow_names[run.flow_id] = "ab-run"

    def refuse(*_: Any, **__: Any) -> None:
        raise Refused("RUN_WINDOW", "flow ab-run", "a window is counted", "wait", {"left_s": 40.0})

    monkeypatch.setattr(worker.agent, "call", refuse)
    assert anyio.run(worker._refusal, run) == (Reason("RUN_WINDOW", "a window is counted", "wait"), 40.0)


def cancelled(server: FakeServer, run: UUID, kind: StateType = StateType.CANCELLED) -> None:
    if not server.runs[run].state.is_cancelled():
        server.become(run, State(type=kind))


@pytest.mark.parametrize("kind", [StateType.CANCELLED, StateType.CANCELLING])
@pytest.mark.parametrize("when", ["while the agent is asked", "just before the run is set waiting"])
def test_who_cancels_in_the_moment_of_a_refusal_has_cancelled(
    worker: NodeWorker, server: FakeServer, monkeypatch: pytest.MonkeyPatch, when: str, kind: StateType
) -> None:
    run = server.runs[server.add(StateType.SCHEDULED)]
    worker._flow_names[run.flow_id] = "ab-run"
    if when == "just before the run is set waiting":
        server.just_before = lambda flow_run: cancelled(server, flow_run, kind)

    def refuse(*_: Any, **__: Any) -> None:
        if when == "while the agent is asked":
            cancelled(server, run.id, kind)
        raise Refused("OWNER_PAUSE", "flow ab-run", "the owner paused the node", "wait")

    monkeypatch.setattr(worker.agent, "call", refuse)
    assert anyio.run(worker._propose_pending_state, run) is False
    assert server.runs[run.id].state.is_cancelled()


def test_what_was_cancelled_once_and_is_run_again_from_the_ui_may_wait(
    worker: NodeWorker, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.runs[server.add(StateType.CANCELLED)]
    server.become(run.id, State(type=StateType.SCHEDULED, name="AwaitingRetry"))
    worker._flow_names[run.flow_id] = "ab-run"

    def refuse(*_: Any, **__: Any) -> None:
        raise Refused("OWNER_PAUSE", "flow ab-run", "the owner paused the node", "wait")

    monkeypatch.setattr(worker.agent, "call", refuse)
    anyio.run(worker._propose_pending_state, run)
    assert name_of(server, run.id) == AWAITING


def test_a_lost_run_that_is_cancelled_as_it_is_put_back_is_cancelled(worker: NodeWorker, server: FakeServer) -> None:
    run = server.add(StateType.RUNNING)
    gone(worker, run)
    server.just_before = lambda flow_run: cancelled(server, flow_run)
    anyio.run(worker.sweep)
    assert server.runs[run].state.is_cancelled()


def test_flow_processes_forget_the_dead_and_keep_the_living(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    processes = FlowProcesses(tmp_path / "flows")
    dead, kept, alive = uuid4(), uuid4(), uuid4()
    for run in (dead, kept):
        child = subprocess.Popen(["sleep", "600"])
        processes.remember(run, child.pid)
        child.kill()
        child.wait()
    processes.remember(alive, sleeper.pid)
    (tmp_path / "flows" / "no-uuid.json").write_text("{}")
    (tmp_path / "flows" / f"{uuid4()}.json").write_text("{cut")
    processes.prune(keep={kept})
    assert processes.of(dead) is None
    assert processes.of(kept) is not None
    assert processes.of(alive) == identify(sleeper.pid)


def test_a_flow_process_and_its_children_run_at_idle_priority() -> None:
    child = subprocess.Popen(
        ["sh", "-c", "read go; sleep 600 & echo $!; wait"], stdin=-1, stdout=-1, start_new_session=True
    )
    try:
        lower_priority(child.pid)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
        grandchild = int(child.stdout.readline())
        for pid in (child.pid, grandchild):
            assert os.getpriority(os.PRIO_PROCESS, pid) == 19
            assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        autogroup = Path(f"/proc/{child.pid}/autogroup")
        if autogroup.exists() and autogroup.read_text().strip():
            assert autogroup.read_text().split()[-1] == "10"
    finally:
        os.killpg(child.pid, 9)
        child.wait()
        until(lambda: child.poll() is not None, "the end of the child", 60)
