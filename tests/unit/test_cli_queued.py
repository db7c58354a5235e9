"""A run that was asked for and has not begun: seen, awaited, approved and cancelled by its name."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cotenant.cli.queued import Queued, not_begun
from policies.harness.names import run_name, sweep_name
from policies.refusal import Refused
from tests.cli_runner import Cli, cli, home
from tests.fake_agent import FakeAgent

__all__ = ["cli", "home"]

RUNS = Path(__file__).parents[1] / "data" / "runs"
FLOW_RUN = "6f0f2c1e-8f0e-4c52-9d55-0d0a3a0f7d11"
RUN = run_name(FLOW_RUN)
UNKNOWN = Refused("RUN_UNKNOWN", "run", "this node knows no such run", "cotenant protection ab list")


class Server:
    """A Prefect API that is well and has these open flow runs."""

    def __init__(self) -> None:
        self.open: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []

    def has(self, state: str, node: str = "local") -> None:
        self.open = [
            {
                "id": FLOW_RUN,
                "state": {"type": state, "name": state.title()},
                "expected_start_time": "2026-11-29T10:00:00Z",
                "parameters": {"node": node, "rule": "trainer", "work": "cpu"},
            }
        ]


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    known = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"state": {"type": "RUNNING", "name": "Running"}})

        def do_POST(self) -> None:
            known.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(known.open)

        def _answer(self, said: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        monkeypatch.setenv("COTENANT_PREFECT_API_URL", f"http://127.0.0.1:{http.server_port}/api")
        yield known
        http.shutdown()
        thread.join()


def test_what_a_flow_run_begins_has_a_name_by_it() -> None:
    assert (run_name("a"), sweep_name("a")) == ("run-ca978112ca", "sweep-ca978112ca")
    assert run_name("b") != run_name("a")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("SCHEDULED", f"run {RUN} is queued: waits for the node's worker (flow run {FLOW_RUN})"),
        ("RUNNING", f"run {RUN} is starting"),
        ("PAUSED", f"run {RUN} waits for review: cotenant protection ab approve {RUN}"),
    ],
)
def test_status_says_what_it_waits_for(state: str, words: str, cli: Cli, home: Path, server: Server) -> None:
    server.has(state)
    with FakeAgent(home, run_status=None, run_show=UNKNOWN).serving():
        said = cli("protection", "ab", "status", "local")
    assert said.code == 0
    assert words in said.out
    assert "no run measures" not in said.err
    assert server.asked[0]["flows"] == {"name": {"any_": ["ab-run", "duty-sweep"]}}


def test_a_run_that_the_agent_has_ended_is_not_queued(cli: Cli, home: Path, server: Server) -> None:
    server.has("RUNNING")  # its report is being made
    with FakeAgent(home, run_status=None, run_show={"run": RUN}).serving():
        assert "no run measures" in cli("protection", "ab", "status", "local").err


def test_another_nodes_run_is_not_this_nodes(cli: Cli, home: Path, server: Server) -> None:
    server.has("SCHEDULED", node="mac-01")
    with FakeAgent(home, run_status=None, run_show=UNKNOWN).serving():
        assert "no run measures" in cli("protection", "ab", "status", "local").err


def test_list_and_show_know_it(cli: Cli, home: Path, server: Server) -> None:
    server.has("SCHEDULED")
    with FakeAgent(home, run_list=[], run_show=UNKNOWN).serving():
        listed = cli("protection", "ab", "list", "--json").json["data"]
        shown = cli("protection", "ab", "show", RUN)
    assert [(row["run"], row["state"], row["rule"]) for row in listed] == [(RUN, "queued", "trainer")]
    assert shown.code == 2
    assert "is queued" in shown.err


@pytest.mark.parametrize("name", [RUN, FLOW_RUN])
def test_abort_cancels_what_no_agent_knows(
    name: str, cli: Cli, home: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cotenant import fleet

    cancelled: list[str] = []
    monkeypatch.setattr(fleet, "cancel_flow", lambda url, flow_run: cancelled.append(flow_run), raising=False)
    server.has("SCHEDULED")
    with FakeAgent(home, run_show=UNKNOWN).serving() as fake:
        said = cli("protection", "ab", "abort", name)
    assert said.code == 0
    assert cancelled == [FLOW_RUN]
    assert "run_abort" not in fake.verbs()


def test_abort_with_the_agent_away_does_not_say_that_it_had_not_begun(
    cli: Cli, home: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cotenant import fleet

    cancelled: list[str] = []
    monkeypatch.setattr(fleet, "cancel_flow", lambda url, flow_run: cancelled.append(flow_run), raising=False)
    (home / "nodes" / "local").mkdir(parents=True)
    server.has("RUNNING")
    said = cli("protection", "ab", "abort", RUN)
    assert cancelled == [FLOW_RUN]
    assert "had not begun" not in said.out
    assert "unknown" in said.out
    assert "no report yet" not in cli("protection", "ab", "show", RUN).err


def test_watching_a_queued_run_waits_for_it(cli: Cli, home: Path, server: Server) -> None:
    record = json.loads((RUNS / "slowdown.json").read_text())
    server.has("SCHEDULED")
    asked = 0

    def run_show(run: str) -> Any:
        nonlocal asked
        asked += 1
        return UNKNOWN if asked <= 2 else record

    def run_status(run: str | None = None) -> Any:
        ended = {"run": RUN, "spec": record["spec"], "state": "ended", "ending": "slowdown", "now": None}
        return None if run is None else ended | {"counted": 8, "left_out": 0, "looks": []}

    with FakeAgent(home, run_status=run_status, run_show=run_show).serving():
        said = cli("protection", "ab", "status", "local", "--watch")
    assert said.code == 1
    assert "is queued" in said.err
    assert "ended: slowdown" in said.err


def test_abort_of_what_nobody_knows_is_refused(cli: Cli, home: Path, server: Server) -> None:
    with FakeAgent(home, run_show=UNKNOWN).serving():
        assert cli("protection", "ab", "abort", "run-nowhere").code == 2


@pytest.mark.parametrize("name", [RUN, FLOW_RUN])
def test_approve_takes_either_name(
    name: str, cli: Cli, home: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cotenant import fleet

    answered: list[tuple[str, str]] = []
    monkeypatch.setattr(fleet, "flow_state", lambda url, flow_run: {"final": False, "name": "Suspended"}, raising=False)
    monkeypatch.setattr(
        fleet, "approve", lambda url, flow_run, answer: answered.append((flow_run, answer)), raising=False
    )
    server.has("PAUSED")
    assert cli("protection", "ab", "approve", name, "--decline").code == 0
    assert answered == [(FLOW_RUN, "reject")]


def test_approve_of_a_run_that_does_not_wait(cli: Cli, server: Server) -> None:
    said = cli("protection", "ab", "approve", "run-nowhere", "--yes")
    assert said.code in (2, 4)
    assert "run-nowhere" in said.err


def test_with_the_server_away_what_is_queued_is_unknown(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as gone:
        monkeypatch.setenv("COTENANT_PREFECT_API_URL", f"http://127.0.0.1:{gone.server_port}/api")
    with FakeAgent(home, run_status=None).serving():
        said = cli("protection", "ab", "status", "local")
    assert said.code == 0
    assert "unknown" in said.err


def test_a_sweep_has_its_own_name_and_one_that_has_begun_is_no_run_that_waits() -> None:
    entry = Queued(FLOW_RUN, "RUNNING", "Running", None, {"node": "local", "levels": [0.1]})
    assert entry.run == sweep_name(FLOW_RUN)
    assert entry.words == f"{entry.run} has begun (flow run {FLOW_RUN})"
    assert not_begun(None, [entry]) == []  # type: ignore[arg-type]  # nobody is asked


@pytest.mark.parametrize(
    ("length", "said"), [(1000, b'{"state": '), (2, b"[]"), (1, b"x")], ids=["cut", "no object", "no JSON"]
)
def test_a_server_that_answers_with_something_else_is_one_that_does_not_say(length: int, said: bytes) -> None:
    from cotenant.cli.failures import Unreachable
    from cotenant.cli.fleet_link import Fleet

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(said)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            fleet = Fleet(f"http://127.0.0.1:{http.server_port}/api")
            assert fleet.state_of(FLOW_RUN) is None
            assert fleet.why_ended(FLOW_RUN) is None
            if said != b"[]":
                with pytest.raises(Unreachable):
                    fleet.open_runs()
        finally:
            http.shutdown()
            thread.join()
