"""A whole run against a scripted agent, without Prefect: verdicts, restarts of the agent, nothing measured twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nodes.client import AgentClient
from nodes.identity import own_id
from nodes.zone import local_zone
from policies.harness.hours import Hours
from policies.harness.schedule import coin
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from tasks.agent_link import AgentLost, Link, Patience
from tasks.measure import Steps, begin, finish, measure
from tests.flows.fake_agent import FakeAgent
from tests.flows.fake_records import steady


def a_spec(**over: Any) -> RunSpec:
    plain: dict[str, Any] = {"node": "local", "rule": "trainer", "work": "cpu", "window_s": 5.0, "washout_s": 1.0}
    return RunSpec(**{**plain, "max_hours": 0.14, "seed": 7, **over}).checked()


def a_link(agent: FakeAgent, spec: RunSpec | None = None, **over: Any) -> Link:
    return Link(AgentClient(agent.path), "r1", spec or a_spec(), own_id(), reviewed_by="test", **over)


def run(link: Link) -> dict[str, Any]:
    _, ended = begin(link)
    if ended is None:
        ended = measure(link)
    return finish(link, ended)[0]


@pytest.fixture
def agent(tmp_path: Path) -> Any:
    with FakeAgent(tmp_path, "local") as fake:
        yield fake


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "the condition did not come"
        time.sleep(0.01)


def test_a_run_that_goes_on_outside_its_owners_hours_begins_no_block(agent: FakeAgent) -> None:
    """They ended between its worker's look at them and its own."""
    from flows.ab_run import until_the_end_of

    now = datetime.now(local_zone())
    over = Hours((now - timedelta(hours=3)).time(), (now - timedelta(hours=2)).time())
    link = a_link(agent)
    begin(link)
    outcome = measure(link, Steps(limit_s=until_the_end_of(over, link.spec)))
    assert outcome.ending == "inconclusive"
    assert outcome.reason.startswith("time is up")
    assert link.show()["blocks"] == []
    assert until_the_end_of(None, link.spec)(0.0) is None, "nobody gave it hours"


def test_an_equal_program_passes_at_the_first_look_and_earns_a_certificate(agent: FakeAgent) -> None:
    record = run(a_link(agent))
    assert (record["state"], record["ending"]) == ("ended", "no slowdown shown")
    assert record["verdict"]["n"] == 8
    assert record["verdict"]["lo"] >= 0.98
    assert len(record["blocks"]) == 8
    assert [look["n"] for look in record["looks"]] == [8]
    assert record["certificate"]["run"] == "r1"


def test_a_slower_program_is_a_slowdown_without_a_certificate(agent: FakeAgent) -> None:
    agent.rates = steady(0.9)
    record = run(a_link(agent))
    assert record["ending"] == "slowdown"
    assert record["verdict"]["hi"] < 1.0
    assert record["certificate"] is None
    assert "certificate_offer" not in agent.asked


def test_orders_come_from_the_coin_of_seed_and_number(agent: FakeAgent) -> None:
    run(a_link(agent))
    assert [(number, order) for _, number, order in agent.memory.started] == [(n, coin(7, n)) for n in range(1, 9)]


def test_a_fault_of_the_agent_that_passes_ends_no_run(agent: FakeAgent) -> None:
    """A disk that is full for a moment, too many connections: each verb is answered when it is asked again."""
    client, failed = AgentClient(agent.path), []

    class FailsOnce:
        def call(self, verb: str, /, _timeout_s: float = 30.0, **params: Any) -> Any:
            if verb.startswith("run_") and verb not in failed:
                failed.append(verb)
                raise Refused(("AGENT_BUSY", "AGENT_ERROR")[len(failed) % 2], verb, f"{verb} failed", "")
            return client.call(verb, _timeout_s=_timeout_s, **params)

    record = run(Link(FailsOnce(), "r1", a_spec(), own_id(), reviewed_by="test", sleep=lambda s: None))
    assert (record["state"], record["ending"]) == ("ended", "no slowdown shown")
    assert {"run_begin", "run_show", "run_block", "run_look", "run_end"} <= set(failed)
    assert [row["number"] for row in record["blocks"]] == list(range(2, 10)), "the cut number is never used again"


def test_a_restarted_agent_gets_the_run_back_and_repeats_the_cut_block_with_a_new_number(agent: FakeAgent) -> None:
    agent.block_s = 0.3

    def restart() -> None:
        wait_for(lambda: len(agent.memory.started) == 3)
        agent.stop()
        time.sleep(0.5)
        agent.start()

    chaos = threading.Thread(target=restart)
    chaos.start()
    record = run(a_link(agent, patience=Patience(total_s=60, first_s=0.05)))
    chaos.join()
    assert record["ending"] == "no slowdown shown"
    started = [number for _, number, _ in agent.memory.started]
    assert started == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [row["number"] for row in record["blocks"]] == [1, 2, 4, 5, 6, 7, 8, 9]


def test_another_version_of_the_agent_ends_the_run_interrupted(agent: FakeAgent) -> None:
    agent.block_s = 0.3

    def restart() -> None:
        wait_for(lambda: len(agent.memory.started) == 2)
        agent.stop()
        agent.version = "2"
        agent.start()

    chaos = threading.Thread(target=restart)
    chaos.start()
    record = run(a_link(agent, patience=Patience(total_s=60, first_s=0.05)))
    chaos.join()
    assert record["ending"] == "interrupted"
    assert "agent_version" in record["reason"]


def test_an_agent_that_stays_away_leaves_the_run_open(agent: FakeAgent) -> None:
    agent.block_s = 5.0
    threading.Thread(target=lambda: (wait_for(lambda: len(agent.memory.started) == 1), agent.stop())).start()
    with pytest.raises(AgentLost, match="waited"):
        run(a_link(agent, patience=Patience(total_s=0.5, first_s=0.1)))
    assert agent.memory.runs["r1"]["state"] == "open"


def test_a_run_that_goes_on_measures_no_block_twice(agent: FakeAgent) -> None:
    link = a_link(agent)
    begin(link)
    link.reference()
    for number in (1, 2, 3):
        link.block(number, coin(7, number))
    agent.active = None  # the first process went away
    record = run(a_link(agent))
    assert record["ending"] == "no slowdown shown"
    assert [number for _, number, _ in agent.memory.started] == list(range(1, 9))
    assert agent.asked.count("run_reference") == 2


def test_a_run_that_ended_is_only_shown(agent: FakeAgent) -> None:
    first = run(a_link(agent))
    again = run(a_link(agent))
    assert again == first
    assert len(agent.memory.started) == 8


def test_an_abort_on_the_node_ends_the_run(agent: FakeAgent) -> None:
    agent.block_s = 5.0
    threading.Thread(
        target=lambda: (wait_for(lambda: len(agent.memory.started) == 1), agent.do_run_abort("r1"))
    ).start()
    assert run(a_link(agent))["ending"] == "aborted"


def test_a_locked_node_refuses(agent: FakeAgent) -> None:
    agent.refuse["run_begin"] = Refused("RUN_LOCKED", "a run", "run r0 measures here", "wait")
    with pytest.raises(Refused, match="r0 measures"):
        run(a_link(agent))


def test_a_refused_certificate_is_told_and_the_verdict_stays(agent: FakeAgent) -> None:
    agent.refuse["certificate_offer"] = Refused("CERT_REFUSED", "run r1", "the windows are not its own", "run it again")
    link = a_link(agent)
    begin(link)
    record, refused = finish(link, measure(link))
    assert record["ending"] == "no slowdown shown"
    assert refused is not None
    assert refused.why == "the windows are not its own"
