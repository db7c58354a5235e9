"""The flow ``llmserve-batch`` on a real server: what its states say. Its jobs are a scripted agent's."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Failed, Scheduled

from cotenant import fleet, store
from cotenant.fleet.deployments import client_of
from cotenant.fleet.runs import flow_state
from flows import llmserve_batch as module
from nodes.client import AgentUnreachable
from policies.prompts import BatchSpec, batch_id, parse_list
from policies.refusal import Refused
from tasks.agent_link import Patience
from tasks.prompts import BatchWork
from tests.flows.conftest import NODE, Rig, until

pytestmark = pytest.mark.timeout(600)


class Jobs:
    """Answers each prompt of a job with its own text; a job may be made to fail instead."""

    def __init__(self, failure: dict[str, str] | None = None) -> None:
        self.failure = failure
        self.jobs: list[dict[str, Any]] = []
        self.keys: list[str] = []

    def call(self, verb: str, /, _timeout_s: float = 30.0, **params: Any) -> Any:
        return getattr(self, verb)(**params)

    def job_submit(self, *, module: str, stage: str, payload: dict[str, Any], key: str) -> dict[str, Any]:
        assert (module, stage) == ("llmserve", "batch")
        if key not in self.keys:
            self.keys.append(key)
            self.jobs.append(payload)
        return {"job": self.keys.index(key) + 1}

    def answers(self, job: int) -> list[dict[str, Any]]:
        prompts = self.jobs[job - 1]["prompts"]
        return [
            {"id": p["id"], "text": f"re: {p['prompt']}", "finish": "stop", "tokens": 2, "error": None} for p in prompts
        ]

    def job_events(self, *, job: int, after: int) -> dict[str, Any]:
        lines = [] if self.failure else [json.dumps({"name": "prompt", "answer": one}) for one in self.answers(job)]
        lines += [json.dumps({"type": "progress", "tokens": 2 * len(lines), "busy_s": 1.0, "wall_s": 2.0})]
        return {"lines": lines[after:], "next": len(lines), "ended": after == len(lines)}

    def job_show(self, *, job: int) -> dict[str, Any]:
        if self.failure:
            return {
                "job": job,
                "outcome": "failed",
                "reason": self.failure["reason"],
                "failure": self.failure,
                "result": None,
            }
        return {"job": job, "outcome": "done", "reason": None, "failure": None, "result": {"payload": {"answers": []}}}


def run(rig: Rig, monkeypatch: pytest.MonkeyPatch, agent: Jobs, **parameters: Any) -> Any:
    monkeypatch.setattr(module, "connect", lambda node: agent)
    with temporary_settings({PREFECT_API_URL: rig.url}):
        return module.llmserve_batch(node=NODE, return_state=True, **parameters)


def test_prompts_of_the_run_form_are_answered_and_the_figures_published(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Jobs()
    state = run(rig, monkeypatch, agent, prompts=["a", "b", "c"], backend="stub", per_job=2, stop=["END"], seed=7)
    assert (state.type.value, state.message) == ("COMPLETED", "3 of 3 done; 3.0 tokens/s busy, 1.5 wall")
    assert [[p["id"] for p in job["prompts"]] for job in agent.jobs] == [["0", "1"], ["2"]]
    assert (agent.jobs[0]["stop"], agent.jobs[0]["seed"], agent.jobs[0]["max_tokens"]) == (["END"], 7, 128)
    flow_run = state.state_details.flow_run_id
    batch = batch_id(str(flow_run))
    assert agent.keys == [f"{batch}/0", f"{batch}/1"]
    engine = store.open(store.default_url(rig.home))
    assert [row["answer"]["text"] for row in store.prompt_rows(engine, batch)] == ["re: a", "re: b", "re: c"]
    with client_of(rig.url) as client:
        mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(str(flow_run))]))
        kinds = {artifact.type for artifact in client.read_artifacts(artifact_filter=mine)}
    assert kinds == {"progress", "markdown"}


def test_a_model_that_does_not_load_fails_the_run_with_the_reason_and_leaves_the_prompts_open(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Jobs({"reason": "llmserve/bad_model", "detail": "model m.gguf: it is truncated"})
    state = run(rig, monkeypatch, agent, prompts=["a", "b"], model="m.gguf")
    assert state.type.value == "FAILED"
    assert "llmserve/bad_model: model m.gguf: it is truncated" in state.message
    assert "2 open" in state.message
    assert len(agent.jobs) == 1, "another job would meet the same"
    batch = batch_id(str(state.state_details.flow_run_id))
    status = store.batch_status(store.open(store.default_url(rig.home)), batch)
    assert status is not None
    assert (status["state"], status["open"], status["failed"]) == ("failed", 2, 0)
    # mended, and tried again by another run
    again = run(rig, monkeypatch, Jobs(), batch=batch)
    assert again.message.startswith("2 of 2 done")


def test_a_run_that_lost_its_agent_leaves_the_batch_open_and_says_that_it_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(Jobs):
        def job_events(self, *, job: int, after: int) -> dict[str, Any]:
            raise AgentUnreachable(rig.home, "it was stopped")

    monkeypatch.setattr(module, "BatchWork", partial(BatchWork, patience=Patience(0.0, 0.0, 0.0)))
    state = run(rig, monkeypatch, Away(), prompts=["a"], backend="stub")
    batch = batch_id(str(state.state_details.flow_run_id))
    assert state.type.value == "FAILED"
    assert "it was stopped" in state.message
    assert state.message.endswith(f"tried again by itself; at once with: cotenant llmserve retry {batch}")
    engine = store.open(store.default_url(rig.home))
    assert [row["batch"] for row in store.open_batches(engine, NODE)].count(batch) == 1
    assert run(rig, monkeypatch, Jobs(), batch=batch).type.value == "COMPLETED"


def test_a_batch_whose_jobs_all_fail_goes_on_by_itself_when_they_no_longer_do(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real worker: a device that answered nobody, and then somebody mended it. Nobody asks for anything."""

    class Wedged(Jobs):
        def job_events(self, *, job: int, after: int) -> dict[str, Any]:
            return {"lines": [], "next": after, "ended": True} if job <= 3 else super().job_events(job=job, after=after)

        def job_show(self, *, job: int) -> dict[str, Any]:
            wedged = {"outcome": "failed", "failure": {"reason": "llmserve/backend_failed", "detail": "no device"}}
            return super().job_show(job=job) | (wedged if job <= 3 else {})

    agent = Wedged()
    for verb in ("job_submit", "job_events", "job_show"):
        monkeypatch.setattr(rig.agent, f"do_{verb}", getattr(agent, verb), raising=False)
    spec, items = BatchSpec(node=NODE, backend="stub", per_job=1), parse_list(["a", "b", "c", "d"]).items
    engine = store.open(store.default_url(rig.home))
    store.make_batch(engine, "wedged", spec, items, source="s", digest="d" * 64, style="plain")
    flow_run = fleet.run_flow(rig.url, "llmserve-batch/llmserve-batch", {"node": NODE, "batch": "wedged"}, NODE)
    until(lambda: flow_state(rig.url, flow_run)["name"] == "Completed", "its end", 600.0, every_s=0.5)
    states = rig.states(flow_run)
    failed = next(message for name, message in states if name == "Failed")
    assert "jobs fail whatever their prompts are" in failed
    assert "no device" in failed
    assert any(name == "AwaitingNode" and "(1 of 9 without an answer in between)" in why for name, why in states)
    status = store.batch_status(engine, "wedged")
    assert status is not None
    assert (status["state"], status["done"], status["failed"]) == ("done", 4, 0)
    assert len(agent.jobs) == 7


def test_a_batch_whose_jobs_are_refused_ends_with_the_reason(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoModule(Jobs):
        def job_submit(self, *, module: str, stage: str, payload: dict[str, Any], key: str) -> dict[str, Any]:
            raise Refused("JOB_NO_MODULE", f"module {module!r}", "its manifest is broken", "cotenant module list")

    state = run(rig, monkeypatch, NoModule(), prompts=["a"], backend="stub")
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    batch = batch_id(str(state.state_details.flow_run_id))
    status = store.batch_status(store.open(store.default_url(rig.home)), batch)
    assert status is not None
    assert status["state"] == "failed"
    assert "its manifest is broken" in status["reason"]
    assert "cotenant module list" in status["reason"]


def test_a_flow_run_that_ended_is_set_cancelled_so_that_nobody_puts_it_back(rig: Rig) -> None:
    ends = {Failed: "Cancelled", Crashed: "Cancelled", Scheduled: "Cancelled", Completed: "Completed"}
    seen = {}
    for kind in ends:
        with client_of(rig.url) as client:
            flow_run = client.create_flow_run(module.llmserve_batch, parameters={"node": NODE}, state=kind())
        fleet.cancel_ended(rig.url, str(flow_run.id))
        seen[kind] = flow_state(rig.url, str(flow_run.id))["name"]
    assert seen == ends
    fleet.cancel_ended(rig.url, str(uuid4()))  # one that the server has forgotten


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({}, "there is none"),
        ({"prompts": [""]}, "empty"),
        ({"batch": "none"}, "none"),
        ({"prompts": ["a"], "model": "../m.gguf"}, "model"),
        ({"prompts": ["a"], "stop": [""]}, "stop"),
    ],
)
def test_what_cannot_be_run_is_refused_in_words(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], named: str
) -> None:
    state = run(rig, monkeypatch, Jobs(), **parameters)
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    assert named in state.message
