"""What a worker does about runs that nobody has: the process decides, not what the server believes. No server needed."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import anyio
import pytest
from prefect.client.schemas.objects import State, StateType

from nodes.flow_processes import FlowProcesses
from nodes.identity import identify, own_id
from nodes.worker import NodeWorker
from policies.explain import AWAITING
from policies.harness.spec import RunSpec
from policies.pages import PAGE
from tests.flows.conftest import disk_full
from tests.flows.fake_agent import FakeAgent
from tests.flows.worker_rig import NODE, FakeServer, gone, name_of, run_and_end
from tests.node.agent_rig import wait_for


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


def test_a_live_process_beyond_the_servers_first_page_of_runs_keeps_its_note(
    worker: NodeWorker, server: FakeServer, sleeper: subprocess.Popen[bytes]
) -> None:
    for _ in range(PAGE):
        server.add(StateType.PENDING)
    run = server.add(StateType.RUNNING, age_s=9999)
    worker.processes.remember(run, sleeper.pid)
    anyio.run(worker.sweep)
    assert worker.processes.of(run) == identify(sleeper.pid)
    assert name_of(server, run) == "Running"


def test_a_disk_that_takes_no_note_of_a_flows_process_costs_it_nothing(
    worker: NodeWorker, server: FakeServer, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.add(StateType.RUNNING, age_s=9999)
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", disk_full)
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
