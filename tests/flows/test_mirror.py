"""The mirror: journal to store exactly once, runs and duty with it, whatever is away in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.exc import OperationalError

from cotenant import store
from nodes.client import AgentUnreachable
from policies.refusal import Refused
from tests.flows.conftest import until
from tests.flows.fake_agent import FakeAgent
from tests.flows.fake_records import new_record
from tests.flows.mirror_rig import NODE, Events, a_mirror, agent, kept, now_s, warnings_of

__all__ = ["agent", "now_s"]


def test_entries_go_to_the_store_and_on_as_events_once(tmp_path: Path, agent: FakeAgent) -> None:
    for _ in range(3):
        agent.memory.write("JOB_QUEUED")
    events = Events()
    mirror = a_mirror(tmp_path, agent, events)
    mirror.step()
    mirror.step()
    a_mirror(tmp_path, agent, events).step()  # another process later
    assert kept(tmp_path) == [1, 2, 3]
    assert events.got == [1, 2, 3]


def test_a_slow_server_does_not_keep_the_store_from_being_filled(
    tmp_path: Path, agent: FakeAgent, now_s: list[float]
) -> None:
    def look_up(ids: Sequence[UUID]) -> set[UUID]:
        now_s[0] += 50.0
        return set(ids)

    mirror = a_mirror(tmp_path, agent, Events(), look_up=look_up)
    for _ in range(500):
        agent.memory.write("JOB_QUEUED")
    mirror.step()
    begun_s = now_s[0]
    mirror.step()
    assert now_s[0] - begun_s == 50.0


@pytest.mark.parametrize("away", ["busy", "gone", "store"])
def test_a_run_is_copied_though_something_was_away_just_then(
    tmp_path: Path, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """The entries that say how it ended come once: what could not be copied with them would never be."""
    agent.memory.runs["r1"] = new_record(
        "r1",
        {"node": NODE, "rule": "trainer", "work": "cpu"},
        node=NODE, flow_run_id=None, reviewed_by="test", sweep=None, section_digest="d", agent_version="1",
    )  # fmt: skip
    agent.memory.write("RUN_ENDED", run="r1")
    answer, sync = agent.do_run_show, store.sync_run
    failed = [False]

    def once(real: Any, error: Exception) -> Any:
        def call(*words: Any, **more: Any) -> Any:
            if not failed[0]:
                failed[0] = True
                raise error
            return real(*words, **more)

        return call

    mirror = a_mirror(tmp_path, agent, Events())
    if away == "busy":
        monkeypatch.setattr(agent, "do_run_show", once(answer, Refused("AGENT_BUSY", "run_show", "busy", "again")))
    elif away == "gone":
        monkeypatch.setattr(store, "sync_run", once(sync, AgentUnreachable(agent.path, "it went away")))
    else:
        monkeypatch.setattr(store, "sync_run", once(sync, OperationalError("x", {}, Exception("locked"))))
    with pytest.raises((Refused, AgentUnreachable, OperationalError)):
        mirror.step()
    mirror.step()
    assert kept(tmp_path) == [1]
    assert store.load_run(store.open(mirror.store_url), "r1") is not None


def test_an_agent_whose_duty_reads_otherwise_has_its_journal_copied(tmp_path: Path, agent: FakeAgent) -> None:
    agent.do_duty = lambda: {"node": NODE}  # type: ignore[method-assign]
    agent.memory.write("JOB_QUEUED")
    events = Events()
    a_mirror(tmp_path, agent, events).step()
    assert events.got == [1]


def test_a_journal_that_begins_again_is_said(
    tmp_path: Path, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """Its numbers are taken: the store has other entries under them, and the server other events."""
    for _ in range(3):
        agent.memory.write("JOB_QUEUED")
    events = Events()
    a_mirror(tmp_path, agent, events).step()
    a_mirror(tmp_path, agent, events).step()
    assert not warnings_of(caplog), "the same journal"
    agent.memory.timeline.clear()
    for code in ("AGENT_STARTED", "JOB_QUEUED", "JOB_QUEUED", "JOB_ENDED"):
        agent.memory.write(code)
    mirror = a_mirror(tmp_path, agent, events)
    mirror.step()
    mirror.step()
    (said,) = warnings_of(caplog)
    assert "the journal of n1 is another one than the store has up to entry 3" in said


def test_a_journal_that_lost_its_newest_entries_and_goes_on_with_higher_numbers_is_copied_whole(
    tmp_path: Path, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        agent.memory.write("JOB_QUEUED")
    events = Events()
    a_mirror(tmp_path, agent, events).step()
    del agent.memory.timeline[2:]  # with the power; the store has them
    for number in (1_000_003, 1_000_004):
        agent.memory.write("AGENT_STARTED")
        agent.memory.timeline[-1]["seq"] = number
    mirror = a_mirror(tmp_path, agent, events)
    mirror.step()
    mirror.step()
    assert kept(tmp_path) == [1, 2, 3, 4, 1_000_003, 1_000_004]
    assert events.got == [1, 2, 3, 4, 1_000_003, 1_000_004]
    assert not warnings_of(caplog)


def test_an_outage_that_comes_and_goes_is_said_once(
    tmp_path: Path, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = a_mirror(tmp_path, agent, Events(), every_s=0.001)
    steps = [0]

    def step() -> bool:
        steps[0] += 1
        if steps[0] % 2:
            raise ConnectionError("status 500")
        return False

    monkeypatch.setattr(mirror, "step", step)
    mirror.start()
    try:
        until(lambda: steps[0] > 20, "twenty steps", 60)
    finally:
        mirror.stop()
    assert warnings_of(caplog) == ["mirror of n1 waits: status 500"]


def test_it_rests_while_a_window_is_counted(tmp_path: Path, agent: FakeAgent) -> None:
    agent.memory.write("JOB_QUEUED")
    events = Events()
    mirror = a_mirror(tmp_path, agent, events)
    agent.do_run_status = lambda run=None: {"run": "r1", "now": {"part": "window"}}  # type: ignore[method-assign]
    assert mirror.step() is False
    assert events.got == []
    assert "timeline" not in agent.asked
    agent.do_run_status = lambda run=None: {"run": "r1", "now": {"part": "washout"}}  # type: ignore[method-assign]
    mirror.step()
    assert events.got == [1]


def test_the_duty_is_kept_when_it_changed_and_not_with_every_measurement(
    tmp_path: Path, agent: FakeAgent, now_s: list[float]
) -> None:
    unit = {"attempt": "7-1", "duty": 0.3, "measured": 0.29, "state": "holds"}
    view = {
        "node": "a", "gpu_jobs": "certified", "state": "running", "budget": 0.3, "ceiling": 0.35, "decides": "governor",
        "rules": [], "units": [unit],
    }  # fmt: skip
    agent.do_duty = lambda: view  # type: ignore[attr-defined]
    mirror = a_mirror(tmp_path, agent, Events())

    def measured() -> tuple[float | None, float]:
        engine = store.open(mirror.store_url)
        (row,) = store.list_duties(engine)
        engine.dispose()
        return row["duty"]["budget"], row["duty"]["units"][0]["measured"]

    mirror.step()
    assert measured() == (0.3, 0.29)
    unit["measured"] = 0.31
    now_s[0] += 11.0
    mirror.step()
    assert measured() == (0.3, 0.29), "only a measurement changed"
    view["budget"] = 0.15
    agent.memory.write("GPU_DUTY_HALVE")
    mirror.step()
    assert measured() == (0.15, 0.31)
    unit["measured"] = 0.14
    now_s[0] += 31.0
    mirror.step()
    assert measured() == (0.15, 0.14), "its age must say that the node is there"


def test_two_thousand_entries_of_one_tick_all_arrive(tmp_path: Path, agent: FakeAgent) -> None:
    for _ in range(2000):
        agent.memory.write("JOB_QUEUED")
    events = Events()
    mirror = a_mirror(tmp_path, agent, events)
    while mirror.step():
        pass
    assert kept(tmp_path) == list(range(1, 2001))
    assert events.got == list(range(1, 2001))


def test_its_thread_comes_back_after_the_agent_was_away(tmp_path: Path, agent: FakeAgent) -> None:
    events = Events()
    mirror = a_mirror(tmp_path, agent, events, every_s=0.02)
    agent.stop()
    with pytest.raises(AgentUnreachable):
        mirror.step()
    mirror.start()
    try:
        agent.memory.write("AGENT_STARTED")
        agent.start()
        until(lambda: events.got == [1], "the entry arrives", 60)
    finally:
        mirror.stop()
