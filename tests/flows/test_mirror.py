"""The mirror: journal to store exactly once, to events at least once, whatever is away in between."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from sqlalchemy.exc import OperationalError

from cotenant import store
from nodes import mirror as mirror_module
from nodes.client import AgentClient, AgentUnreachable
from nodes.mirror import LOOK_UP_IDS, SENT_AGAIN_AT_MOST, Mirror, event_id, event_of, kept_events, send_events
from policies.refusal import Refused
from tests.flows.conftest import Rig, disk_full, until
from tests.flows.fake_agent import FakeAgent
from tests.flows.fake_records import new_record

NODE = "n1"


@pytest.fixture
def agent(tmp_path: Path) -> Any:
    with FakeAgent(tmp_path, NODE) as fake:
        yield fake


class Events:
    """Takes events as a server would; ``down`` refuses them. What it took stays where it was told to ``keep`` it."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.down = False
        self._kept: set[UUID] = set()

    def keep(self, *seqs: int) -> None:
        self._kept |= {event_id(NODE, seq) for seq in seqs}

    def look_up(self, ids: Sequence[UUID]) -> set[UUID]:
        return self._kept & set(ids)

    def __call__(self, node: str, entries: list[dict[str, Any]]) -> None:
        if self.down:
            raise ConnectionError("the server is away")
        self.got += [entry["seq"] for entry in entries]


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The mirror's clock, which stands until a test moves it."""
    now_s = [1000.0]
    monkeypatch.setattr(mirror_module, "monotonic_s", lambda: now_s[0])
    return now_s


def a_mirror(home: Path, agent: FakeAgent, events: Events, **over: Any) -> Mirror:
    return Mirror(
        AgentClient(agent.path),
        f"sqlite:///{home / 'store.sqlite'}",
        NODE,
        mark=home / "mark.json",
        send=events,
        **over,
    )


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == mirror_module.__name__ and record.levelname == "WARNING"
    ]


def kept(home: Path) -> list[int]:
    engine = store.open(f"sqlite:///{home / 'store.sqlite'}")
    return [entry["seq"] for entry in store.timeline_entries(engine, NODE, limit=5000)]


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


def test_events_that_never_stay_are_given_up(tmp_path: Path, agent: FakeAgent, now_s: list[float]) -> None:
    events = Events()
    asked: list[int] = []
    mirror = a_mirror(tmp_path, agent, events, look_up=lambda ids: asked.append(len(ids)) or set())  # type: ignore[func-returns-value]
    for _ in range(120):
        agent.memory.write("JOB_QUEUED")
    for _ in range(3 * SENT_AGAIN_AT_MOST):
        now_s[0] += 70.0
        mirror.step()
    assert len(events.got) == 120 * (1 + SENT_AGAIN_AT_MOST)
    assert max(asked) <= LOOK_UP_IDS
    assert mirror.given_up == 120


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
        now_s[0] += 70.0
        mirror.step()
    assert asked == {event_id(NODE, seq) for seq in range(1, 121)}
    assert mirror.given_up == 1
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
    assert mirror.given_up == len(refused - {7}), "nothing was taken yet after the last one"
    agent.memory.write("JOB_ENDED")
    steps()
    assert got[-1] == 8
    assert mirror.given_up == len(refused)


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
    assert mirror.given_up == 0


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
    assert mirror.given_up == 0


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
    mirror.look_up = events.look_up  # what was lost meanwhile is found then
    events.keep(2)
    for _ in range(3):
        now_s[0] += 70.0
        mirror.step()
    assert events.got[-2:] == [1, 2]


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
        full.setattr(mirror_module.os, "replace", disk_full)
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
    monkeypatch.setattr(mirror_module, "UNSETTLED_AT_MOST", 3)
    mirror = a_mirror(tmp_path, agent, events, look_up=events.look_up)
    for _ in range(60):
        agent.memory.write("JOB_QUEUED")
        mirror.step()
    assert len(mirror._unsettled) == 3
    assert mirror._unsettled[0].before == 0
    assert len(mirror._unsettled[0].runs) == 1
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


def test_the_event_of_an_entry_is_named_by_its_code_and_known_by_node_and_seq() -> None:
    entry = {
        "seq": 7,
        "at": "2026-11-29T22:00:00+00:00",
        "code": "GPU_DUTY_HALVE",
        "severity": "notice",
        "data": {"rule": "t"},
    }
    event = event_of(NODE, entry)
    assert event["event"] == "cotenant.gpu.duty.halve"
    assert event["resource"]["prefect.resource.id"] == "cotenant.node.n1"
    assert event["id"] == str(event_id(NODE, 7))
    assert len({event_id("a", 7), event_id("a", 8), event_id("b", 7)}) == 3


def test_half_a_character_and_a_nul_keep_no_event_from_the_server() -> None:
    """A source's file may have any bytes for a name; the journal has them as Python reads them."""
    data = {"path": "/runs/caf\udce9.jsonl", "why": ["a\0b"], "\ud800": 1}
    event = event_of(NODE, {"seq": 7, "at": "2026-11-29T22:00:00+00:00", "code": "PROTECTION_SOURCE_OK", "data": data})
    told = event["payload"]["data"]
    assert told == {"path": "/runs/caf\\udce9.jsonl", "why": ["a\\x00b"], "\\ud800": 1}
    assert httpx.Request("POST", "http://127.0.0.1/", json=told).content


def test_a_server_that_says_later_is_asked_once_and_not_waited_for() -> None:
    """Prefect's own client waits for as long as the answer says, six times; the mirror's store would wait with it."""
    asked: list[str] = []

    class Busy(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(self.path)
            self.send_response(503)
            self.send_header("Retry-After", "1")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = answer

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        try:
            with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api"}):
                with pytest.raises(httpx.HTTPStatusError):
                    send_events(NODE, [])
                with pytest.raises(httpx.HTTPStatusError):
                    kept_events([event_id(NODE, 1)])
        finally:
            server.shutdown()
            serving.join()
    assert len(asked) == 2


def test_a_real_server_is_asked_which_events_it_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {
        "seq": 7,
        "at": "2026-01-02T03:04:05+00:00",
        "code": "JOB_QUEUED",
        "severity": "info",
        "message": "m",
        "data": {},
    }
    node, other = f"looked-up-{uuid4().hex[:6]}", event_id("nobody", 1)
    with temporary_settings({PREFECT_API_URL: rig.url}):
        send_events(node, [entry])
        ids = [event_id(node, 7), other]
        until(lambda: kept_events(ids) == {ids[0]}, "the event is in the server's database")
