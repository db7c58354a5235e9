"""What a worker does about batches whose flow run failed, was cancelled or is forgotten. No server needed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import anyio
import pytest
from prefect.client.schemas.objects import State, StateType
from sqlalchemy import Engine

from cotenant import store
from nodes.worker import NodeWorker
from policies.explain import AWAITING
from policies.prompts import BatchSpec, Item
from policies.put_back import BATCH_WAITS_S
from policies.refusal import Refused
from tests.flows.worker_rig import NODE, FakeServer, gone, name_of


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
