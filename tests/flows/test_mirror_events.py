"""What the mirror sends to the server: each event at least once, looked up, sent again, or given up and named."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from nodes import outbox
from nodes.client import AgentClient
from nodes.mirror import Mirror
from nodes.mirror_events import event_id
from nodes.outbox import LOOK_UP_IDS, SENT_AGAIN_AT_MOST
from tests.flows.conftest import disk_full
from tests.flows.fake_agent import FakeAgent
from tests.flows.mirror_rig import NODE, Events, a_mirror, agent, kept, now_s, warnings_of

__all__ = ["agent", "now_s"]


def test_a_server_that_is_away_gets_its_events_later(tmp_path: Path, agent: FakeAgent) -> None:
    agent.memory.write("JOB_QUEUED")
    events = Events()
    events.down = True
    mirror = a_mirror(tmp_path, agent, events)
    with pytest.raises(ConnectionError):
        mirror.step()
    assert kept(tmp_path) == [1]
    events.down = False
    agent.memory.write("JOB_ENDED")
    mirror.step()
    assert events.got == [1, 2]


def test_what_a_server_took_shortly_before_it_went_away_is_sent_again(tmp_path: Path, agent: FakeAgent) -> None:
    events, away = Events(), [False]

    def look_up(ids: Sequence[UUID]) -> set[UUID]:
        if away[0]:
            raise ConnectionError("the server is away")
        return set()

    mirror = a_mirror(tmp_path, agent, events, look_up=look_up)
    agent.memory.write("JOB_QUEUED")
    mirror.step()
    events.down = True  # it had kept the first in memory alone
    agent.memory.write("JOB_ENDED")
    with pytest.raises(ConnectionError):
        mirror.step()
    events.down = False
    mirror.step()
    assert events.got == [1, 1, 2]

    away[0] = True  # also where nothing is to be sent meanwhile
    with pytest.raises(ConnectionError):
        mirror.step()
    away[0] = False
    mirror.step()
    assert events.got == [1, 1, 2, 1, 2]


def test_what_was_not_seen_to_stay_is_sent_again_by_the_next_process(tmp_path: Path, agent: FakeAgent) -> None:
    """Server and worker die together, as where the machine does: the server had the newest events in memory alone."""
    events = Events()
    agent.memory.write("JOB_QUEUED")
    mirror = a_mirror(tmp_path, agent, events, look_up=events.look_up)
    mirror.step()
    events.keep(1)
    mirror.step()
    agent.memory.write("JOB_ENDED")
    mirror.step()
    again = a_mirror(tmp_path, agent, events, look_up=events.look_up)
    again.step()
    assert events.got == [1, 2, 2]
    events.keep(2)
    again.step()
    a_mirror(tmp_path, agent, events).step()
    assert events.got == [1, 2, 2]


def test_what_a_server_took_and_dropped_unnoticed_is_sent_again(
    tmp_path: Path, agent: FakeAgent, now_s: list[float]
) -> None:
    """Its database was away while the mirror rested: nothing that the mirror asked for ever failed."""
    events = Events()
    mirror = a_mirror(tmp_path, agent, events, look_up=events.look_up)
    agent.memory.write("JOB_QUEUED")
    mirror.step()
    events.keep(1)
    agent.memory.write("JOB_STARTED")
    mirror.step()
    now_s[0] += 30.0
    mirror.step()
    assert events.got == [1, 2], "it may still be under way"
    now_s[0] += 40.0
    mirror.step()
    mirror.step()
    assert events.got == [1, 2, 2]
    events.keep(2)
    for _ in range(3):
        now_s[0] += 100.0
        mirror.step()
    assert events.got == [1, 2, 2]


@pytest.mark.parametrize("dropped", [1, 2, 43, 50, 51, 119, 120])
def test_one_event_that_a_server_dropped_out_of_many_is_sent_again(
    tmp_path: Path, agent: FakeAgent, now_s: list[float], dropped: int
) -> None:
    """Its database came back in the middle of what it had taken, and one batch of its own was lost with it."""
    events = Events()
    mirror = a_mirror(tmp_path, agent, events, look_up=events.look_up)
    for _ in range(120):
        agent.memory.write("JOB_QUEUED")
    mirror.step()
    events.keep(*(seq for seq in range(1, 121) if seq != dropped))
    now_s[0] += 70.0
    mirror.step()
    mirror.step()
    assert events.got.count(dropped) == 2
    events.keep(dropped)
    for _ in range(3):
        now_s[0] += 70.0
        mirror.step()
    assert events.got.count(dropped) == 2
    assert json.loads((tmp_path / "mark.json").read_text()) == {"sent": 120}


def test_a_node_that_always_has_something_to_send_looks_too(
    tmp_path: Path, agent: FakeAgent, now_s: list[float]
) -> None:
    events = Events()
    mirror = a_mirror(tmp_path, agent, events, look_up=lambda ids: set(ids) - {event_id(NODE, 1)})
    for _ in range(5):
        agent.memory.write("JOB_QUEUED")
        mirror.step()
        now_s[0] += 25.0
    assert events.got.count(1) == 2


def test_a_server_that_leaves_out_what_it_took_once_gets_it_when_it_forgot_that(
    tmp_path: Path, agent: FakeAgent, now_s: list[float]
) -> None:
    """Prefect's own memory of ids: five minutes long nothing of the same id is handed on, though its database lost it."""
    taken_s: dict[int, float] = {}

    class Forgetful(Events):
        def __call__(self, node: str, entries: list[dict[str, Any]]) -> None:
            super().__call__(node, entries)
            for entry in entries:
                if now_s[0] - taken_s.get(entry["seq"], float("-inf")) >= 300.0:
                    if entry["seq"] in taken_s:  # the first time it was lost with its database
                        self.keep(entry["seq"])
                    taken_s[entry["seq"]] = now_s[0]

    events = Forgetful()
    mirror = a_mirror(tmp_path, agent, events, look_up=events.look_up)
    agent.memory.write("JOB_QUEUED")
    for _ in range(200):
        now_s[0] += 5.0
        mirror.step()
    assert events.got.count(1) == 3
    assert (events.look_up([event_id(NODE, 1)]), mirror.outbox.given_up) == ({event_id(NODE, 1)}, 0)
    assert json.loads((tmp_path / "mark.json").read_text()) == {"sent": 1}


def test_events_that_never_stay_are_given_up(tmp_path: Path, agent: FakeAgent, now_s: list[float]) -> None:
    events = Events()
    asked: list[int] = []
    mirror = a_mirror(tmp_path, agent, events, look_up=lambda ids: asked.append(len(ids)) or set())  # type: ignore[func-returns-value]
    for _ in range(120):
        agent.memory.write("JOB_QUEUED")
    for _ in range(3 * SENT_AGAIN_AT_MOST):
        now_s[0] += 340.0
        mirror.step()
    assert len(events.got) == 120 * (1 + SENT_AGAIN_AT_MOST)
    assert max(asked) <= LOOK_UP_IDS
    assert mirror.outbox.given_up == 120


def test_one_event_that_never_stays_is_named_and_the_others_are_looked_up(
    tmp_path: Path, agent: FakeAgent, now_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """As one that is larger than the server keeps, which it takes without a word."""
    events, asked = Events(), set[UUID]()
    lost = {event_id(NODE, 3)}

    def look_up(ids: Sequence[UUID]) -> set[UUID]:
        asked.update(ids)
        return set(ids) - lost

    mirror = a_mirror(tmp_path, agent, events, look_up=look_up)
    for _ in range(120):
        agent.memory.write("JOB_QUEUED")
    for _ in range(3 * SENT_AGAIN_AT_MOST):
        now_s[0] += 340.0
        mirror.step()
    assert asked == {event_id(NODE, seq) for seq in range(1, 121)}
    assert mirror.outbox.given_up == 1
    (said,) = warnings_of(caplog)
    assert "1 event(s) of n1, entries 3 to 3, are given up" in said
    assert json.loads((tmp_path / "mark.json").read_text()) == {"sent": 120}


def refusal(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/api/events")
    return httpx.HTTPStatusError(f"status {status}", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize("refused", [{1}, {3}, {3, 4}, {2, 4, 6}, {7}])
def test_an_entry_that_the_server_refuses_keeps_no_other_from_it(
    tmp_path: Path, agent: FakeAgent, refused: set[int]
) -> None:
    got: list[int] = []

    def send(_node: str, entries: list[dict[str, Any]]) -> None:
        if refused & {entry["seq"] for entry in entries}:
            raise refusal(422)
        got.extend(entry["seq"] for entry in entries)

    mirror = Mirror(AgentClient(agent.path), f"sqlite:///{tmp_path / 'store.sqlite'}", NODE, send=send)
    for _ in range(7):
        agent.memory.write("JOB_QUEUED")

    def steps() -> None:
        for _ in range(10):
            with contextlib.suppress(httpx.HTTPStatusError):
                mirror.step()

    steps()
    assert sorted(set(got)) == [seq for seq in range(1, 8) if seq not in refused]
    assert mirror.outbox.given_up == len(refused - {7}), "nothing was taken yet after the last one"
    agent.memory.write("JOB_ENDED")
    steps()
    assert got[-1] == 8
    assert mirror.outbox.given_up == len(refused)


def test_more_than_a_proxy_lets_through_goes_in_parts(tmp_path: Path, agent: FakeAgent) -> None:
    got: list[int] = []

    def send(_node: str, entries: list[dict[str, Any]]) -> None:
        if len(entries) > 60:
            raise refusal(413)
        got.extend(entry["seq"] for entry in entries)

    mirror = Mirror(AgentClient(agent.path), f"sqlite:///{tmp_path / 'store.sqlite'}", NODE, send=send)
    for _ in range(120):
        agent.memory.write("JOB_QUEUED")
    while mirror.step():
        pass
    assert got == list(range(1, 121))
    assert mirror.outbox.given_up == 0


def test_a_server_that_refuses_all_gets_all_of_them_later(tmp_path: Path, agent: FakeAgent) -> None:
    """As a proxy does for an address that begins with http instead of https: no entry is at fault."""
    events, asked = Events(), [0]

    def send(node: str, entries: list[dict[str, Any]]) -> None:
        asked[0] += 1
        if events.down:
            raise refusal(400)
        events(node, entries)

    events.down = True
    mirror = Mirror(AgentClient(agent.path), f"sqlite:///{tmp_path / 'store.sqlite'}", NODE, send=send)
    for _ in range(100):
        agent.memory.write("JOB_QUEUED")
    with pytest.raises(httpx.HTTPStatusError):
        mirror.step()
    assert asked[0] < 20
    events.down = False
    while mirror.step():
        pass
    assert events.got == list(range(1, 101))
    assert mirror.outbox.given_up == 0


def test_look_ups_that_fail_for_ever_send_no_event_for_ever_and_keep_no_new_one(
    tmp_path: Path, agent: FakeAgent, now_s: list[float]
) -> None:
    events = Events()

    def look_up(ids: Sequence[UUID]) -> set[UUID]:
        raise ConnectionError("status 500")

    mirror = a_mirror(tmp_path, agent, events, look_up=look_up)
    agent.memory.write("JOB_QUEUED")
    for _ in range(500):
        now_s[0] += 5.0
        with contextlib.suppress(ConnectionError):
            mirror.step()
    assert 2 <= events.got.count(1) <= 1 + SENT_AGAIN_AT_MOST
    agent.memory.write("JOB_ENDED")
    now_s[0] += 5.0
    with contextlib.suppress(ConnectionError):
        mirror.step()
    assert events.got[-1] == 2
    mirror.outbox.look_up = events.look_up  # what was lost meanwhile is found then
    events.keep(2)
    for _ in range(3):
        now_s[0] += 70.0
        mirror.step()
    assert events.got[-2:] == [1, 2]


def test_the_mark_is_written_where_it_moved_and_not_with_every_look(
    tmp_path: Path, agent: FakeAgent, now_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a disk that does not take it keeps no event from being sent, nor makes one go twice."""
    events = Events()
    mirror = a_mirror(tmp_path, agent, events, look_up=events.look_up)
    agent.memory.write("JOB_QUEUED")
    mirror.step()
    written = os.stat(tmp_path / "mark.json").st_mtime_ns
    for _ in range(4):
        now_s[0] += 11.0
        mirror.step()
    assert os.stat(tmp_path / "mark.json").st_mtime_ns == written
    events.keep(1)
    with monkeypatch.context() as full:
        full.setattr(outbox.os, "replace", disk_full)
        now_s[0] += 11.0
        mirror.step()
        agent.memory.write("JOB_STARTED")
        mirror.step()
    assert events.got == [1, 2]
    assert json.loads((tmp_path / "mark.json").read_text()) == {"sent": 0}
    events.keep(2)
    now_s[0] += 11.0
    mirror.step()
    assert json.loads((tmp_path / "mark.json").read_text()) == {"sent": 2}


def test_of_more_sends_than_are_looked_up_one_by_one_none_is_forgotten(
    tmp_path: Path, agent: FakeAgent, now_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a server that answers and keeps nothing, while a node is busy: the oldest are looked up together."""
    events = Events()
    monkeypatch.setattr(outbox, "UNSETTLED_AT_MOST", 3)
    mirror = a_mirror(tmp_path, agent, events, look_up=events.look_up)
    for _ in range(60):
        agent.memory.write("JOB_QUEUED")
        mirror.step()
    assert len(mirror.outbox._unsettled) == 3
    assert mirror.outbox._unsettled[0].before == 0
    assert len(mirror.outbox._unsettled[0].runs) == 1
    events.keep(*range(2, 61))
    now_s[0] += 70.0
    mirror.step()
    mirror.step()
    assert events.got.count(1) == 2, "the first of all was dropped, and is sent again"


def test_a_lost_mark_sends_events_again_rather_than_not_at_all(tmp_path: Path, agent: FakeAgent) -> None:
    agent.memory.write("JOB_QUEUED")
    events = Events()
    a_mirror(tmp_path, agent, events).step()
    (tmp_path / "mark.json").write_text("{torn")
    a_mirror(tmp_path, agent, events).step()
    assert events.got == [1, 1]
    assert kept(tmp_path) == [1]
