"""An owner's commands reach a system service's agent over the socket that it has for its owners."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.client import AgentClient, AgentUnreachable, socket_path
from policies.refusal import Refused
from tests.agent_socket import AgentSocket
from tests.cli_runner import Cli, cli, home  # noqa: F401
from tests.fake_agent import FakeAgent

SECTION = {"version": 3, "text": "[node]\n", "set_at": "2026-11-29T10:00:00+00:00", "set_by": "me", "digest": "d"}


@pytest.fixture
def owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the service has its owners' sockets."""
    found = tmp_path / "run"
    found.mkdir()
    monkeypatch.setenv("COTENANT_OWNERS_DIR", str(found))
    return found


@pytest.fixture
def service(tmp_path: Path, owners: Path) -> Iterator[FakeAgent]:
    agent = FakeAgent(tmp_path / "s", "mac-01", section_show=SECTION)
    with agent.serving():
        (owners / "mac-01.owners.sock").symlink_to(socket_path(agent.home, "mac-01"))
        yield agent


def test_a_node_that_the_home_does_not_have_is_the_services(cli: Cli, service: FakeAgent) -> None:  # noqa: F811
    said = cli("protection", "show", "mac-01")
    assert (said.code, said.out) == (0, "[node]\n")
    assert service.verbs() == ["section_show"]


def test_a_node_of_the_home_is_asked_there(cli: Cli, home: Path, service: FakeAgent) -> None:  # noqa: F811
    (home / "nodes" / "mac-01").mkdir(parents=True)
    said = cli("protection", "show", "mac-01")
    assert said.code == 3
    assert str(home) in said.err
    assert service.verbs() == []


def test_a_service_that_does_not_run_is_started_by_its_manager(cli: Cli, owners: Path) -> None:  # noqa: F811
    (owners / "mac-01.owners.sock").touch()
    said = cli("protection", "show", "mac-01")
    assert said.code == 3
    assert "next: sudo systemctl restart cotenant-agent" in said.err


@pytest.mark.parametrize(
    ("code", "said", "remedy"),
    [
        (-32601, "takes no section_show from its owners", "the account"),
        (-32001, "not serve", "service install --owners"),
    ],
)
def test_what_the_service_does_not_do_for_an_owner_says_who_may(
    cli: Cli,  # noqa: F811
    owners: Path,
    code: int,
    said: str,
    remedy: str,
) -> None:
    error = {"code": code, "message": "this socket does not serve uid 7"}
    with AgentSocket(owners / "mac-01.owners.sock", lambda verb, params: {"error": error}).serving():
        done = cli("protection", "show", "mac-01")
    assert done.code == 2
    assert said in done.err
    assert remedy in done.err


def test_a_socket_that_refused_and_closed_at_once_is_still_heard(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    answer = (
        b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "this socket does not serve uid 7"}}\n'
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def refuse() -> None:
            conn, _ = listening.accept()
            conn.sendall(answer)
            conn.close()

        thread = threading.Thread(target=refuse)
        thread.start()

        class Slow(socket.socket):
            def connect(self, where: Any) -> None:
                super().connect(where)
                thread.join()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("nodes.client.socket.socket", Slow)
            with pytest.raises(Refused) as refused:
                AgentClient(path).call("hello")
    assert refused.value.code == "AGENT_NOT_YOURS"


def test_an_agent_that_is_too_busy_to_answer_runs_all_the_same(home: Path) -> None:  # noqa: F811
    from cotenant.cli.agents import Agent
    from cotenant.settings import Settings

    agent = Agent(Settings.from_env(), "local")
    assert not agent.is_running()
    with FakeAgent(
        home, hello=Refused("AGENT_BUSY", "the agent", "it has too many connections", "try again")
    ).serving():
        assert agent.is_running()


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n", b"[1]\n", b'"error"\n', b"{}\n", b"\xff\n"])
def test_what_speaks_otherwise_on_the_socket_is_no_agent(said: bytes, tmp_path: Path) -> None:
    class Other(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(said)

    path = tmp_path / "a.sock"
    with socketserver.ThreadingUnixStreamServer(str(path), Other) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            with pytest.raises(AgentUnreachable, match="is no agent"):
                AgentClient(path).call("hello")
        finally:
            server.shutdown()
            thread.join()


def test_a_node_that_cannot_say_how_it_is_hides_no_other(cli: Cli, home: Path) -> None:  # noqa: F811
    full = FakeAgent(home, "full", status=Refused("AGENT_ERROR", "status", "no space left on device", "see its log"))
    with full.serving():
        (home / "nodes" / "other").mkdir()
        said = cli("status", "--json")
    assert said.code == 3
    assert [(row["node"], row["agent"]) for row in said.json["data"]["nodes"]] == [
        ("full", "running"),
        ("other", "not running"),
    ]
    assert "no space left on device" in [error["why"] for error in said.json["errors"]]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db:5432/c", "postgresql://me:***@db:5432/c"),
        ("postgresql://me:secret@[db/c", "what is set is no address"),
        ("postgresql://me:secret@db:port/c", "what is set is no address"),
    ],
)
def test_the_stores_address_is_shown_without_its_password(
    cli: Cli,  # noqa: F811
    url: str,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COTENANT_STORE_URL", url)
    said = cli("status", "--json")
    assert said.json["data"]["store"]["url"] == shown
    assert "secret" not in said.out + said.err


@pytest.mark.parametrize(
    ("health", "why", "code"), [("healthy", "", 0), ("undetected", "it did not answer in 60 s", 1)]
)
def test_a_modules_doctor_that_was_not_heard_says_why(
    cli: Cli,  # noqa: F811
    home: Path,  # noqa: F811
    health: str,
    why: str,
    code: int,
) -> None:
    with FakeAgent(home, module_doctor={"health": health, "why": why, "checks": [], "attrs": {}}).serving():
        said = cli("module", "doctor", "llmserve")
    assert said.code == code
    assert said.out.strip() == (f"health: {health}: {why}" if why else f"health: {health}")


def test_a_modules_doctor_is_insisted_on_by_name_alone(cli: Cli, home: Path) -> None:  # noqa: F811
    told = {"health": "healthy", "why": "", "checks": [], "attrs": {}}
    with FakeAgent(home, module_doctor=told).serving() as agent:
        assert cli("module", "doctor", "llmserve").code == 0
        assert cli("module", "doctor", "llmserve", "--now").code == 0
    asked = [params for verb, params in agent.asked if verb == "module_doctor"]
    assert [params.get("now", False) for params in asked] == [False, True]


def test_the_adding_of_a_module_is_insisted_on_by_name_alone(cli: Cli, home: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "oarbank-module.toml").touch()
    with FakeAgent(home, module_add={"state": "ready", "stages": []}).serving() as agent:
        assert cli("module", "add", str(tmp_path)).code == 0
        assert cli("module", "add", str(tmp_path), "--now").code == 0
    asked = [params for verb, params in agent.asked if verb == "module_add"]
    assert [params.get("now", False) for params in asked] == [False, True]
