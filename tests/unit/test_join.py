"""A home that joined a fleet: what its settings say, and what a join refuses before it writes anything."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from cotenant.cli.failures import Unreachable
from cotenant.cli.join import join
from cotenant.fleet import PrefectServer
from cotenant.settings import FLEET_FILE, Settings
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
