"""Between two looks: an agent whose ticks fail starts and lets go nothing, and a job always says why it waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.agent.core import Agent
from nodes.agent.explain import explain
from tests.node.jobs_rig import foreign, wait_for


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path / "home", "local", tmp_path / "none")
    state = made.modules.add(foreign(tmp_path, ["freeze_ok"]))
    assert state.state == "ready", state.why
    made.start()
    yield made
    for attempt in made.jobs.attempts():
        made.jobs.stop(attempt.attempt_id, "the test is over", requeue=False, fault=False)
    wait_for(lambda: made.jobs.tick(time.monotonic()) or not made.jobs.attempts())
    made.hub.close()
    made.journal.close()


def fail(*_: Any) -> None:
    raise OSError("no space left on device")


def test_nothing_is_admitted_on_a_look_that_is_more_than_two_ticks_old(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.tick()
    looked = agent.observer.table.refresh
    monkeypatch.setattr(agent.observer.table, "refresh", fail)
    agent.observer.stale_after_s = 0.2
    time.sleep(0.3)
    with pytest.raises(OSError, match="no space"):
        agent.tick()
    job = agent.jobs.submit("stranger", None, {"do": "work"}).job
    agent.evaluate("event")
    assert agent.jobs.attempts() == []
    waits = agent.jobs.job(job)
    assert (waits.state, waits.code) == ("waiting", "AGENT_BLIND")
    assert explain(agent, job)["reasons"][0]["code"] == "AGENT_BLIND"
    assert not agent.view.fresh

    agent.observer.stale_after_s = 600.0
    monkeypatch.setattr(agent.observer.table, "refresh", looked)
    wait_for(lambda: agent.tick() or agent.jobs.attempts())
    assert agent.jobs.job(job).state == "running"


def test_nothing_that_is_held_is_let_go_on_such_a_look(agent: Agent) -> None:
    agent.observer.stale_after_s = 600.0
    job = agent.jobs.submit("stranger", None, {"do": "work"}).job
    wait_for(lambda: agent.tick() or agent.jobs.attempts())
    (attempt,) = agent.jobs.attempts()
    agent.jobs.hold(attempt.attempt_id, "a phase was on")
    agent.observer.stale_after_s = 0.0
    time.sleep(0.01)
    agent.evaluate("event")
    assert agent.jobs.attempt(attempt.attempt_id).state == "held"
    agent.observer.stale_after_s = 600.0
    agent.evaluate("event")
    assert agent.jobs.attempt(attempt.attempt_id).state != "held"
    assert agent.jobs.job(job).state == "running"


def test_a_job_that_was_just_put_back_says_so(agent: Agent) -> None:
    """At no moment it has neither code nor reason: what asks between two judgements is told what is known."""
    agent.observer.stale_after_s = 600.0
    job = agent.jobs.submit("stranger", None, {"do": "work"}).job
    fresh = agent.jobs.record(agent.jobs.job(job))
    assert (fresh["state"], fresh["code"], fresh["reason"]) == ("waiting", "JOB_QUEUED", "it was not judged yet")
    wait_for(lambda: agent.tick() or agent.jobs.attempts())
    (attempt,) = agent.jobs.attempts()
    agent.jobs.stop(attempt.attempt_id, "held for ten minutes", requeue=True, fault=False)
    wait_for(lambda: agent.jobs.tick(time.monotonic()) or not agent.jobs.attempts())
    put_back = agent.jobs.record(agent.jobs.job(job))
    assert (put_back["state"], put_back["code"], put_back["reason"]) == (
        "waiting",
        "JOB_REQUEUED",
        "held for ten minutes",
    )
    told = explain(agent, job)
    assert [(each["code"], each["why"]) for each in told["reasons"]] == [("JOB_REQUEUED", "held for ten minutes")]
    assert told["words"] == "waits: JOB_REQUEUED: held for ten minutes"


def test_a_held_unit_that_nothing_holds_any_more_says_what_held_it(agent: Agent) -> None:
    agent.observer.stale_after_s = 600.0
    job = agent.jobs.submit("stranger", None, {"do": "work"}).job
    wait_for(lambda: agent.tick() or agent.jobs.attempts())
    (attempt,) = agent.jobs.attempts()
    agent.jobs.hold(attempt.attempt_id, "the agent was silent")
    (reason,) = explain(agent, job)["reasons"]
    assert (reason["code"], reason["why"]) == ("PROTECTION_PAUSE", "the agent was silent")
