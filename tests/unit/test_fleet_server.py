"""A server is ours only where our own process holds the port: a stranger that answers there is never taken for it."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import patch

import pytest

from cotenant.fleet import server as server_module
from cotenant.fleet.server import PrefectServer, is_healthy, listens
from cotenant.fleet.worker_process import WorkerProcess
from nodes.identity import own_id
from policies.refusal import Refused

WITHIN_S = 120.0
HEALTHY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""
NEVER_BINDS = "import time; time.sleep(600)"


class Stranger(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def stranger(port: int = 0) -> Iterator[int]:
    """Another's server, in this process, healthy by its own account."""
    with ThreadingHTTPServer(("127.0.0.1", port), Stranger) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        try:
            yield httpd.server_port
        finally:
            httpd.shutdown()
            thread.join()


def command(script: str, port: int) -> list[str]:
    return [sys.executable, "-c", script, str(port)]


@contextmanager
def ended(server: PrefectServer) -> Iterator[PrefectServer]:
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_our_own_is_started_found_again_and_missed_when_it_ended(tmp_path: Path) -> None:
    with ended(PrefectServer(tmp_path, command=lambda port: command(HEALTHY, port))) as server:
        assert server.url is None
        assert not server.is_running()
        url = server.start(WITHIN_S)
        assert server.url == url
        assert server.is_running()
        again = PrefectServer(tmp_path, command=lambda port: command("raise SystemExit(9)", port))
        assert again.is_running(), "another command finds it by its identity"
        assert again.start(WITHIN_S) == url
        server.stop()
        assert not server.is_ours()
        assert server.url == url, "the address is kept, so that links stay good"


@pytest.mark.parametrize("script", [HEALTHY, NEVER_BINDS], ids=["dies of the taken port", "comes up slowly"])
def test_a_stranger_on_the_port_is_not_taken_for_ours(tmp_path: Path, script: str) -> None:
    """The port is taken between its choice and the bind; the next one is free."""
    taken: list[int] = []
    with _strangers() as squat:

        def racing(port: int) -> list[str]:
            if taken:
                return command(HEALTHY, port)
            squat(port)
            taken.append(port)
            return command(script, port)

        with ended(PrefectServer(tmp_path, command=racing)) as server:
            url = server.start(WITHIN_S)
            assert is_healthy(f"http://127.0.0.1:{taken[0]}/api"), "the stranger does answer"
            assert url != f"http://127.0.0.1:{taken[0]}/api"
            assert server.is_running()
            assert server.url == url


def test_a_stranger_on_the_old_port_does_not_run_for_ours(tmp_path: Path) -> None:
    with ended(PrefectServer(tmp_path, command=lambda port: command(HEALTHY, port))) as server:
        old = server.start(WITHIN_S)
        server.stop()
        with stranger(int(old.rsplit(":", 1)[1].split("/")[0])):
            assert is_healthy(old)
            assert not server.is_running()
            assert not server.is_ours()
            assert server.start(WITHIN_S) != old


def test_one_that_moved_comes_back_where_it_was(tmp_path: Path) -> None:
    with (
        stranger() as wanted,
        ended(PrefectServer(tmp_path, wanted, command=lambda port: command(HEALTHY, port))) as server,
    ):
        moved = server.start(WITHIN_S)
    assert str(wanted) not in moved
    with ended(server):
        assert server.start(WITHIN_S) == moved, "though the port first wanted is free again"


def test_when_every_port_is_lost_it_says_so_and_leaves_no_address(tmp_path: Path) -> None:
    tried: list[int] = []
    with _strangers() as squat:

        def racing(port: int) -> list[str]:
            tried.append(port)
            squat(port)
            return command(NEVER_BINDS, port)

        with ended(PrefectServer(tmp_path, free_port(), command=racing)) as server:
            with pytest.raises(Refused) as refusal:
                server.start(WITHIN_S)
            assert refusal.value.code == "SERVER_PORT_TAKEN"
            assert len(tried) == len(set(tried)) == server_module.PORT_TRIES
            assert server.url is None, "no command may be led to a stranger"
            assert not server.process.is_alive()


def test_one_that_ends_for_another_reason_is_not_tried_on_other_ports(tmp_path: Path) -> None:
    tried: list[int] = []

    def broken(port: int) -> list[str]:
        tried.append(port)
        return command("raise SystemExit('no such table')", port)

    with pytest.raises(Refused, match="no such table") as refusal:
        PrefectServer(tmp_path, command=broken).start(WITHIN_S)
    assert refusal.value.code == "SERVER_FAILED"
    assert len(tried) == 1


def test_a_port_lost_to_one_that_is_gone_again_is_changed(tmp_path: Path) -> None:
    tried: list[int] = []

    def racing(port: int) -> list[str]:
        tried.append(port)
        return command("raise SystemExit('address already in use')" if len(tried) == 1 else HEALTHY, port)

    with ended(PrefectServer(tmp_path, command=racing)) as server:
        url = server.start(WITHIN_S)
        assert len(tried) == 2
        assert url == f"http://127.0.0.1:{tried[1]}/api"
        assert tried[0] != tried[1]


def test_one_that_never_answers_is_named_at_the_deadline(tmp_path: Path) -> None:
    with (
        ended(PrefectServer(tmp_path, command=lambda port: command(NEVER_BINDS, port))) as server,
        pytest.raises(Refused, match="did not answer") as refusal,
    ):
        server.start(0.5)
    assert refusal.value.code == "SERVER_FAILED"
    assert "port" not in json.loads((tmp_path / "prefect" / "server.json").read_text())


def test_prefect_is_told_how_long_events_are_kept_and_how_often_a_worker_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By our own settings: Prefect's variables are the user's, and are not passed on."""
    from prefect.settings.models.server.events import ServerEventsSettings
    from prefect.settings.models.worker import WorkerSettings

    for name in ("PREFECT_EVENTS_RETENTION_PERIOD", "PREFECT_SERVER_EVENTS_RETENTION_PERIOD"):
        monkeypatch.setenv(name, "P99D")
    monkeypatch.setenv("PREFECT_WORKER_QUERY_SECONDS", "99")
    told = tmp_path / "environ.json"
    keeps = f"import json, os; json.dump(dict(os.environ), open({str(told)!r}, 'w'));" + HEALTHY

    def heard() -> tuple[timedelta, float]:
        with ended(PrefectServer(tmp_path, command=lambda port: command(keeps, port))) as server:
            server.start(WITHIN_S)
        worker = WorkerProcess(tmp_path, "local", "http://127.0.0.1:1/api").environment()
        with patch.dict(os.environ, json.loads(told.read_text()) | worker, clear=True):
            return ServerEventsSettings().retention_period, WorkerSettings().query_seconds

    assert heard() == (timedelta(days=7), 2.0)
    monkeypatch.setenv("COTENANT_EVENTS_KEPT_DAYS", "30")
    monkeypatch.setenv("COTENANT_WORKER_QUERY_S", "10")
    assert heard() == (timedelta(days=30), 10.0)


def test_who_holds_a_port_is_read_from_the_process() -> None:
    with stranger() as port:
        assert listens(own_id().pid, port)
        assert not listens(own_id().pid, free_port())


@contextmanager
def _strangers() -> Iterator[Callable[[int], int]]:
    """Takes ports until the end of the test."""
    with ExitStack() as stack:
        yield lambda port: stack.enter_context(stranger(port))
