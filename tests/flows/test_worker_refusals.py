"""Which runs a worker takes, how long a refused one waits, and who cancels meanwhile. No server needed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import anyio
import pytest
from prefect.client.schemas.objects import State, StateType

from nodes.worker import NodeWorker
from policies.explain import AWAITING
from policies.refusal import Refused
from policies.views import Reason
from tests.flows.worker_rig import NODE, FakeServer, gone, name_of


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
