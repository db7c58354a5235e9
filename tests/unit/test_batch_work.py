"""A batch's dealings with an agent that forgets, and with one that is another node's: no answer lands at a prompt it is not of."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from cotenant import store
from cotenant.store.models import Prompt
from nodes.client import AgentUnreachable
from policies.prompts import BatchSpec, Item
from policies.refusal import Refused
from tasks.agent_link import AgentLost
from tasks.prompts import BatchStalled, BatchStopped, BatchWork, StoreLost

log = logging.getLogger("batch")


class Agent:
    """Knows jobs by number and key, as an agent does; ``answered`` are the prompts that a job answers before it ends."""

    def __init__(self, outcome: str = "done", reason: str = "") -> None:
        self.jobs: dict[int, tuple[str | None, list[str]]] = {}
        self.outcome, self.reason = outcome, reason
        self.answered: int | None = None
        self.cancelled: list[int] = []
        self.refuses: list[tuple[str, str]] = []
        """Verbs and the codes that they are refused with, in order, each once."""

    def call(self, verb: str, /, _timeout_s: float = 30.0, **params: Any) -> Any:
        if self.refuses and self.refuses[0][0] == verb:
            raise Refused(self.refuses.pop(0)[1], verb, f"{verb} failed", "")
        return getattr(self, verb)(**params)

    def job_submit(self, *, module: str, stage: str, payload: dict[str, Any], key: str) -> dict[str, Any]:
        number = next((job for job, (known, _) in self.jobs.items() if known == key), None)
        if number is None:
            number = len(self.jobs) + 1
            self.jobs[number] = (key, [one["id"] for one in payload["prompts"]])
        return {"job": number}

    def _lines(self, job: int) -> list[str]:
        key, prompts = self.jobs[job]
        return [
            json.dumps({"name": "prompt", "answer": {"id": one, "text": f"{key} says {one}"}})
            for one in prompts[: self.answered]
        ]

    def job_events(self, *, job: int, after: int) -> dict[str, Any]:
        if job not in self.jobs:
            raise Refused("JOB_UNKNOWN", f"job {job}", "there is no such job", "cotenant job list")
        lines = self._lines(job)
        return {"lines": lines[after:], "next": max(after, len(lines)), "ended": True, "key": self.jobs[job][0]}

    def job_show(self, *, job: int | None = None, key: str = "") -> dict[str, Any]:
        job = next((number for number, (known, _) in self.jobs.items() if known == key), job)
        if job not in self.jobs:
            raise Refused("JOB_UNKNOWN", f"job {job}", "there is no such job", "cotenant job list")
        failure = {"reason": self.reason, "detail": ""} if self.reason else None
        return {
            "job": job, "key": self.jobs[job][0], "outcome": self.outcome, "reason": self.reason, "failure": failure,
            "result": None,
        }  # fmt: skip

    def job_cancel(self, *, job: int) -> None:
        self.cancelled.append(job)


def batch_of(tmp_path: Path, count: int, per_job: int = 3, batch: str = "b") -> str:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    items = [Item({"prompt": f"p{number}"}) for number in range(count)]
    spec = BatchSpec(node="n", per_job=per_job)
    store.make_batch(store.open(url), batch, spec, items, source="s", digest="d" * 64, style="plain")
    return url


def work_on(url: str, agent: Agent, node: str = "n") -> BatchWork:
    return BatchWork(agent, url, "b", log, node, sleep=lambda s: None)


def go_on(work: BatchWork) -> None:
    work.begin("flow-1")
    while (chunk := work.next()) is not None:
        work.follow(chunk, lambda: None)
    work.end("done")


def texts(url: str) -> list[str | None]:
    return [(row["answer"] or {}).get("text") for row in store.prompt_rows(store.open(url), "b")]


def test_an_agent_that_lost_its_journal_gets_the_open_prompts_as_a_new_job(tmp_path: Path) -> None:
    """Its numbers begin anew, so the number that the store kept is another batch's job by now."""
    url, before = batch_of(tmp_path, 3), Agent()
    before.answered = 1
    work = work_on(url, before)
    work.begin("flow-1")
    chunk = work.next()
    assert chunk is not None
    assert work._take(chunk, 0)[:2] == (1, 1)
    after = Agent()
    after.jobs[1] = ("another/0", ["0", "1", "2"])
    go_on(work_on(url, after))
    assert texts(url) == ["b/0 says 0", "b/0 says 1", "b/0 says 2"]
    assert after.jobs[2] == ("b/0", ["1", "2"]), "what was answered is not asked again"
    status = store.batch_status(store.open(url), "b")
    assert status is not None
    assert (status["state"], status["done"], status["repeated"]) == ("done", 3, 0)


def test_a_cancel_leaves_a_job_alone_that_only_has_the_number_of_ours(tmp_path: Path) -> None:
    url = batch_of(tmp_path, 3)
    work = work_on(url, Agent())
    work.begin("flow-1")
    work.next()
    for jobs in ({}, {1: ("another/0", [])}):
        agent = Agent()
        agent.jobs = jobs
        work_on(url, agent).cancel()
        assert agent.cancelled == []
    status = store.batch_status(store.open(url), "b")
    assert status is not None
    assert (status["state"], status["open"]) == ("cancelled", 3)


def test_a_flow_run_that_was_put_back_does_not_undo_that_its_batch_was_cancelled(tmp_path: Path) -> None:
    url, agent = batch_of(tmp_path, 2), Agent()
    work_on(url, agent).begin("flow-1")
    engine = store.open(url)
    store.end_batch(engine, "b", "cancelled", "it was cancelled")
    with pytest.raises(Refused, match="it was cancelled"):
        go_on(work_on(url, agent))
    status = store.batch_status(engine, "b")
    assert status is not None
    assert (status["state"], agent.jobs) == ("cancelled", {})
    work_on(url, agent).begin("flow-2")  # asked for, as a retry does
    status = store.batch_status(engine, "b")
    assert status is not None
    assert status["state"] == "open"
    store.end_batch(engine, "b", "failed", "of the first", of="flow-1")
    status = store.batch_status(engine, "b")
    assert status is not None
    assert status["state"] == "open", "another flow run has it by now"


def test_what_another_flow_run_took_over_in_between_is_no_end_of_taking_over(tmp_path: Path) -> None:
    url, agent = batch_of(tmp_path, 3), Agent()
    agent.answered = 2
    work = work_on(url, agent)
    work.begin("flow-1")
    chunk = work.next()
    assert chunk is not None
    store.take_over(store.open(url), "b", 0, [{"id": "0", "text": "b/0 says 0"}], after=0, place=1)
    assert work._take(chunk, 0)[:2] == (2, 1)
    assert texts(url) == ["b/0 says 0", "b/0 says 1", None]


def test_a_cancel_ends_the_job_that_the_store_has_no_number_of_yet(tmp_path: Path) -> None:
    """The flow's process was killed between the agent's answer and the store's."""
    url, agent = batch_of(tmp_path, 3), Agent()
    agent.answered = 1
    store.next_job(store.open(url), "b")
    agent.jobs = {1: ("another/0", []), 2: ("b/0", ["0", "1", "2"])}
    work_on(url, agent).cancel()
    assert agent.cancelled == [2]
    assert texts(url) == ["b/0 says 0", None, None]


@pytest.mark.parametrize("away", ["store", "agent"])
def test_a_cancel_waits_for_nobody_beyond_the_time_that_a_cancelled_flow_has(
    away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, agent = batch_of(tmp_path, 2), Agent()
    work = work_on(url, agent)
    assert work.next() is not None
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def gone(*_: Any, **__: Any) -> Any:
        raise OSError("no such host") if away == "store" else AgentUnreachable(Path("a.sock"), "nobody answers")

    work.sleep, work.clock = sleep, lambda: now_s
    monkeypatch.setattr(*((store, "batch_jobs") if away == "store" else (agent, "call")), gone)
    with pytest.raises(StoreLost if away == "store" else AgentLost):
        work.cancel()
    assert now_s <= 25.0


def test_a_job_whose_prompts_were_all_answered_is_asked_nothing_more(tmp_path: Path) -> None:
    url, agent = batch_of(tmp_path, 4), Agent()
    work = work_on(url, agent)
    work.begin("flow-1")
    chunk = work.next()
    assert chunk is not None
    work._take(chunk, 0)  # and the flow's process is gone before it saw the job's end
    later = Agent()
    go_on(work_on(url, later))
    assert later.jobs == {1: ("b/1", ["3"])}
    assert None not in texts(url)


def test_a_batch_of_another_node_is_refused_there(tmp_path: Path) -> None:
    url, agent = batch_of(tmp_path, 2), Agent()
    with pytest.raises(Refused, match="it is of node n, not of m"):
        work_on(url, agent, "m").begin("flow-1")
    status = store.batch_status(store.open(url), "b")
    assert status is not None
    assert (status["flow_run_id"], agent.jobs) == (None, {})


def test_a_bad_model_stops_the_batch_and_charges_no_prompt(tmp_path: Path) -> None:
    url, agent = batch_of(tmp_path, 2), Agent("failed", "llmserve/bad_model")
    agent.answered = 0
    with pytest.raises(BatchStopped, match="llmserve/bad_model"):
        go_on(work_on(url, agent))
    assert texts(url) == [None, None]


def test_jobs_that_fail_whatever_they_hold_stall_the_batch_and_charge_no_prompt(tmp_path: Path) -> None:
    """A device that answers nobody: trying on would end prompt after prompt as failed."""
    url, agent = batch_of(tmp_path, 12), Agent("failed", "llmserve/backend_failed")
    agent.answered = 0
    with pytest.raises(BatchStalled, match="llmserve/backend_failed"):
        go_on(work_on(url, agent))
    assert len(agent.jobs) == 3
    with pytest.raises(BatchStalled):
        go_on(work_on(url, agent))
    assert len(agent.jobs) == 4, "it is looked for with one job more"
    status = store.batch_status(store.open(url), "b")
    assert status is not None
    assert (status["state"], status["open"], status["failed"]) == ("open", 12, 0)
    with Session(store.open(url)) as session:
        assert set(session.scalars(select(Prompt.tries))) == {0}
    agent.outcome, agent.reason, agent.answered = "done", "", None
    go_on(work_on(url, agent))
    assert None not in texts(url)


def test_a_prompt_that_brings_down_every_job_of_its_own_is_no_stall(tmp_path: Path) -> None:
    url, agent = batch_of(tmp_path, 1), Agent("failed", "crashed with signal 11")
    agent.answered = 0
    go_on(work_on(url, agent))
    status = store.batch_status(store.open(url), "b")
    assert status is not None
    assert (status["state"], status["failed"], len(agent.jobs)) == ("done", 1, 3)


def test_a_retry_that_is_killed_before_it_settled_the_cancelled_job_goes_on(tmp_path: Path) -> None:
    url, agent = batch_of(tmp_path, 2), Agent("cancelled")
    agent.answered = 1
    with pytest.raises(BatchStopped, match="was cancelled"):
        go_on(work_on(url, agent))
    store.next_job(store.open(url), "b")
    work = work_on(url, agent)
    work.begin("flow-1")
    work.next()
    work.end("cancelled")
    work_on(url, agent).begin("flow-2")  # and is killed here
    again = work_on(url, agent)
    again.begin("flow-2")
    chunk = again.next()
    assert chunk is not None
    again.follow(chunk, lambda: None)


@pytest.mark.parametrize("code", ["AGENT_BUSY", "AGENT_ERROR"])
@pytest.mark.parametrize("verb", ["job_submit", "job_events", "job_show"])
def test_a_fault_of_the_agent_that_passes_ends_no_batch(tmp_path: Path, verb: str, code: str) -> None:
    url, agent = batch_of(tmp_path, 4), Agent()
    agent.refuses = [(verb, code)] * 3
    go_on(work_on(url, agent))
    assert agent.refuses == []
    assert None not in texts(url)
    assert list(agent.jobs) == [1, 2], "the same job, asked for again"


def test_an_agent_that_goes_on_failing_is_lost_and_what_it_refuses_is_refused(tmp_path: Path) -> None:
    """Lost leaves the batch open, for its worker to put back; refused ends it."""
    url, agent = batch_of(tmp_path, 2), Agent()
    now_s = 0.0

    def sleep(s: float) -> None:
        nonlocal now_s
        now_s += s

    agent.refuses = [("job_submit", "AGENT_ERROR")] * 1000
    work = BatchWork(agent, url, "b", log, "n", sleep=sleep, clock=lambda: now_s)
    with pytest.raises(AgentLost, match="job_submit failed; waited"):
        go_on(work)
    assert 0.9 * work.patience.total_s < now_s <= work.patience.total_s
    agent.refuses = [("job_submit", "MODULE_UNKNOWN")]
    with pytest.raises(Refused, match="job_submit"):
        go_on(work)


@pytest.mark.parametrize(
    "other",
    [{}, {1: ("another/0", ["0", "1", "2"])}, {1: (None, ["0", "1", "2"])}],
    ids=["none", "a batch's", "an owner's"],
)
@pytest.mark.parametrize("lost_at", ["job_events", "job_show"])
def test_an_agent_that_loses_its_journal_under_a_job_gets_the_open_prompts_as_a_new_one(
    tmp_path: Path, lost_at: str, other: dict[int, tuple[str | None, list[str]]]
) -> None:
    """The other job of our number may be another batch's, or one that its owner submitted without a key, with answers to prompts of
    the same numbers.
    """
    url, agent = batch_of(tmp_path, 3), Agent()
    agent.answered = 1

    def loses(verb: str, /, _timeout_s: float = 30.0, **params: Any) -> Any:
        if verb == lost_at:
            agent.jobs, agent.answered = dict(other), None
            del agent.call  # type: ignore[method-assign]
        return Agent.call(agent, verb, **params)

    agent.call = loses  # type: ignore[method-assign]
    go_on(work_on(url, agent))
    assert texts(url) == ["b/0 says 0", "b/0 says 1", "b/0 says 2"]
    asked_anew = ["0", "1", "2"] if lost_at == "job_events" else ["1", "2"]
    assert list(agent.jobs.values())[-1] == ("b/0", asked_anew)
    status = store.batch_status(store.open(url), "b")
    assert status is not None
    assert (status["state"], status["done"], status["repeated"]) == ("done", 3, 0)


def test_failed_prompts_can_be_asked_again(tmp_path: Path) -> None:
    url, agent = batch_of(tmp_path, 1), Agent("failed", "crashed with signal 11")
    agent.answered = 0
    go_on(work_on(url, agent))
    engine = store.open(url)
    assert store.reopen_failed(engine, "b") == 1
    assert store.reopen_failed(engine, "b") == 0
    agent.outcome, agent.reason, agent.answered = "done", "", None
    go_on(work_on(url, agent))
    assert texts(url) == ["b/3 says 0"]
