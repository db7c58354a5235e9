"""A home that joined a fleet: what its settings say, and what a join refuses before it writes anything."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from pathlib import Path

import pytest

from cotenant.cli.failures import Unreachable
from cotenant.cli.join import join
from cotenant.fleet import PrefectServer
from cotenant.settings import FLEET_FILE, Settings
from nodes.worker_admission import no_such_node
from policies.pages import PAGE, pages
from policies.refusal import Refused


def joined(home: Path, **fields: str) -> Path:
    home.mkdir(exist_ok=True)
    (home / FLEET_FILE).write_text(
        json.dumps({"node": "mac-01", "prefect_api_url": "http://10.0.0.2:4200/api"} | fields)
    )
    return home


def test_settings_come_from_the_home_and_the_environment_wins(tmp_path: Path) -> None:
    home = joined(tmp_path / "h", prefect_auth_string="ops:secret", store_url="postgresql://c@db/c")
    found = Settings.from_env({"COTENANT_HOME": str(home)})
    assert (found.node, found.api_url) == ("mac-01", "http://10.0.0.2:4200/api")
    assert (found.prefect_auth_string, found.store) == ("ops:secret", "postgresql://c@db/c")
    assert "secret" not in repr(found)
    other = Settings.from_env({"COTENANT_HOME": str(home), "COTENANT_NODE": "b", "COTENANT_STORE_URL": "sqlite:///x"})
    assert (other.node, other.store, other.api_url) == ("b", "sqlite:///x", "http://10.0.0.2:4200/api")
    assert Settings.from_env({"COTENANT_HOME": str(tmp_path / "none")}).node == "local"


def test_a_damaged_file_is_said_and_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / FLEET_FILE).write_text("{")
    with pytest.raises(Refused) as refusal:
        Settings.from_env({"COTENANT_HOME": str(tmp_path)})
    assert FLEET_FILE in refusal.value.what


def test_a_join_that_cannot_work_leaves_the_home_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        silent = f"http://127.0.0.1:{probe.getsockname()[1]}"
    settings = Settings.from_env()
    with pytest.raises(Unreachable, match="refused"):
        join(settings, "mac-01", silent, None, None)
    assert not (tmp_path / FLEET_FILE).exists()
    with pytest.raises(Refused, match="letters, digits"):
        join(settings, "mac/01", silent, None, None)
    with pytest.raises(Refused, match="AUTH_STRING=…") as refusal:
        join(settings, "mac-01", silent, "no colon", None)
    assert "no colon" not in str(refusal.value.as_dict()), "a password is not said again"
    before = joined(tmp_path).joinpath(FLEET_FILE).read_bytes()
    with pytest.raises(Unreachable):
        join(Settings.from_env(), "mac-01", silent, None, None)
    assert (tmp_path / FLEET_FILE).read_bytes() == before

    (tmp_path / "nodes" / "old").mkdir(parents=True)
    with pytest.raises(Refused, match="this home has the node old"):
        join(Settings.from_env(), "mac-01", silent, None, None)


def test_a_server_that_others_reach_asks_for_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_SERVER_HOST", "0.0.0.0")
    with pytest.raises(Refused) as refusal:
        PrefectServer(tmp_path, command=lambda port: ["false"]).start(within_s=5.0)
    assert refusal.value.code == "SERVER_OPEN"
    assert "COTENANT_PREFECT_AUTH_STRING" in refusal.value.remedy
    monkeypatch.setenv("COTENANT_SERVER_HOST", "10.0.0.9")
    with pytest.raises(Refused, match="SERVER_HOST"):
        Settings.from_env()


@pytest.mark.parametrize(
    ("server", "why", "remedy"),
    [
        ("10.0.0.2:4200", "no http:// or https://", "--server http://10.0.0.2:4200"),
        ("ftp://fleet.example", "no http:// or https://", "--server http://fleet.example"),
        ("http://", "no http:// or https://", "--server http://10.0.0.2:4200"),
        ("", "no http:// or https://", "--server http://10.0.0.2:4200"),
        ("http://ops:secret@10.0.0.2:4200", "a user or a password", "--server http://10.0.0.2:4200 --auth-string"),
        ("ops:secret@10.0.0.2:4200/", "a user or a password", "--server http://10.0.0.2:4200 --auth-string"),
    ],
)
def test_what_is_no_servers_address_is_refused_with_one_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, why: str, remedy: str
) -> None:
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path))
    with pytest.raises(Refused) as refusal:
        join(Settings.from_env(), "mac-01", server, None, None)
    assert why in refusal.value.why
    assert remedy in refusal.value.remedy
    assert "secret" not in str(refusal.value.as_dict()), "a password is not said again"
    assert not (tmp_path / FLEET_FILE).exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1:port", "http://a b", "http://" + 80 * "x" + ".example"])
def test_an_address_that_leads_nowhere_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path))
    with pytest.raises(Unreachable) as silent:
        join(Settings.from_env(), "mac-01", url, None, None)
    assert silent.value.error.why
    assert "on the server's machine" in silent.value.error.remedy
    assert not (tmp_path / FLEET_FILE).exists()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", "no Prefect server"),
    ],
)
def test_what_is_no_prefect_server_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, said: str
) -> None:
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path))

    class Stranger(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises((Refused, Unreachable), match=said):
                join(Settings.from_env(), "mac-01", f"http://127.0.0.1:{server.server_address[1]}", None, None)
        finally:
            server.shutdown()
    assert not (tmp_path / FLEET_FILE).exists()


def test_a_fleet_is_read_to_its_last_node() -> None:
    names = [f"n{number}" for number in range(2 * PAGE + 1)]
    for count in (0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, len(names)):
        assert pages(lambda at, count=count: names[:count][at : at + PAGE]) == names[:count]


def test_a_list_without_an_end_is_not_read_for_ever() -> None:
    asked: list[int] = []

    def page(at: int) -> list[int]:
        asked.append(at)
        return list(range(at, at + PAGE))

    with pytest.raises(Refused, match="more than 100,000 entries"):
        pages(page)
    assert len(asked) == 501


def test_a_node_that_nobody_is_is_named_with_those_that_are() -> None:
    assert "did you mean 'mac-01'?" in no_such_node("mac-1", ["mac-01", "pc-02"])
    assert "no such node. Known: none" in no_such_node("", [])
    assert no_such_node("x", [f"n{number}" for number in range(300)]).count(",") < 40


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("nonsense-with-secret", "no address of a database"),
        ("postgres://c:secret@127.0.0.1:1/c", "postgres"),
        ("mysql+nosuchdriver://c:secret@127.0.0.1:1/c", "nosuchdriver"),
        ("oracle://c:secret@127.0.0.1:1/c", "driver is missing"),
    ],
)
def test_what_is_no_store_is_said_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, said: str
) -> None:
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path))
    with pytest.raises(Unreachable, match=said) as silent:
        join(Settings.from_env(), "mac-01", "http://127.0.0.1:1", None, store)
    assert "secret" not in str(silent.value.error.as_dict())
    assert silent.value.error.remedy
    assert not (tmp_path / FLEET_FILE).exists()
