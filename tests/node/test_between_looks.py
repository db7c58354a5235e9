"""Between two looks: an agent whose ticks fail starts and lets go nothing, and a job always says why it waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodes.agent.core import Agent
from nodes.agent.explain import explain
from policies.views import Reason
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


HOG = (
    "import mmap, os, sys, time\n"
    "kept = bytearray(120 << 20)\n"
    "open('phase', 'w').write('hogging')\n"
    "if os.fork() == 0:\n"
    "    time.sleep(3600)\n"
    "time.sleep(3600)\n"
)


def test_case_097_what_a_unit_holds_is_measured_and_it_goes_when_memory_is_short(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It declares a tenth of a GB and takes more; its child's share of the same pages counts once."""
    agent.observer.stale_after_s = 600.0
    bundle = foreign(tmp_path / "hog", ["freeze_ok"], requires="{ resources = { cpu = 1, mem_gb = 0.1 } }")
    (bundle / "runner.py").write_text(
        'import sys\nif sys.argv[1] == \'doctor\':\n    print(\'{"runner_protocol": {"supported": [1]}, "health": "healthy", '
        '"capabilities": ["freeze_ok"], "attrs": {}, "checks": []}\')\n    sys.exit(0)\n' + HOG
    )
    state = agent.modules.add(bundle)
    assert state.state == "ready", state.why
    job = agent.jobs.submit("stranger", None, {}).job
    wait_for(lambda: agent.tick() or agent.jobs.attempts())
    (attempt,) = agent.jobs.attempts()

    def told() -> list[dict[str, Any]]:
        agent.tick()
        return [entry["data"] for entry in agent.journal.entries(code="JOB_MEMORY_OVERRUN", limit=10)]

    (facts,) = wait_for(told)
    assert 110e6 < facts["held_bytes"] < 220e6, "the child's copy is the same pages"
    assert agent.jobs.attempts() == [attempt], "what is left over may be lent"
    (reason,) = explain(agent, job)["reasons"]
    assert reason["code"] == "JOB_MEMORY_OVERRUN"
    assert "its stage declares 0.1 GB" in reason["why"]
    assert "mem_gb" in reason["remedy"]

    short = (Reason("MEMORY_SHORT", "machine has 0.1 GB available"),)
    monkeypatch.setattr("nodes.agent.memory_claims.memory_short", lambda view, room: short)
    agent.tick()
    assert attempt.stopping is not None
    assert "its stage declares 0.1 GB; machine has 0.1 GB available" in attempt.stopping.reason
    wait_for(lambda: agent.jobs.tick(time.monotonic()) or attempt not in agent.jobs.attempts())
    assert (agent.jobs.job(job).state, agent.jobs.job(job).counted) == ("waiting", 0)
    agent.jobs.cancel(job)


def test_builds_are_told_that_the_node_was_judged_by_ticks_that_succeed_alone(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(agent.modules.builds, "judged", told.append)
    monkeypatch.setattr(agent.jobs, "tick", fail)
    with pytest.raises(OSError, match="no space left"):
        agent.tick()
    assert not told
    monkeypatch.undo()
    monkeypatch.setattr(agent.modules.builds, "judged", told.append)
    agent.tick()
    assert len(told) == 1


def test_a_build_is_ended_for_want_of_memory_also_while_a_self_cost_run_lets_all_rest(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.tick()
    monkeypatch.setattr(agent.runs, "release_if_gone", lambda: None)
    monkeypatch.setattr(agent.runs, "active", SimpleNamespace(resting=True))
    monkeypatch.setattr(agent.observer.memory, "read", lambda *_: None)
    monkeypatch.setattr(agent.observer.memory, "shortage", "5 % is free")
    told: list[str | None] = []
    monkeypatch.setattr(agent.modules.builds, "hold", lambda *_, short_of_memory, **__: told.append(short_of_memory))
    agent.tick()
    assert told == ["5 % is free"]
    monkeypatch.undo()
