"""An entry as the event that the server gets, and a server that is asked for it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from nodes.mirror_events import event_id, event_of
from nodes.server_events import kept_events, send_events
from tests.flows.conftest import Rig, until
from tests.flows.mirror_rig import NODE


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
