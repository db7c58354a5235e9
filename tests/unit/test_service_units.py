"""The systemd units: what they say, and that systemd itself accepts them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.cli import service
from cotenant.fleet.units import AGENT, FLEET, HELPER, Install, units, user_units
from cotenant.settings import FLEET_FILE, Settings
from tests.cli_runner import Cli, cli, home  # noqa: F401

ROOT = Path(__file__).parents[2]


def asked(**changes: object) -> Install:
    facts = {"node": "mac-01", "home": Path("/srv/co tenant/100%"), "python": Path(sys.executable), "root": ROOT}
    return Install(**{**facts, **changes})  # type: ignore[arg-type]


def made(**changes: object) -> dict[str, str]:
    return units(asked(**changes))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("user", [None, "root"])
@pytest.mark.parametrize("joined", [False, True])
def test_systemd_accepts_them(tmp_path: Path, user: str | None, joined: bool) -> None:
    owners = ("root",) if user else ()
    accepted(tmp_path, made(user=user, joined=joined, owners=owners, state_dir=bool(user)), user=user is None)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_session_helpers_unit(tmp_path: Path) -> None:
    accepted(tmp_path, user_units(asked(user="cotenant", owners=("root", "me"))), user=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_what_lies_in_a_folder_of_any_name(tmp_path: Path) -> None:
    odd = tmp_path / """o dd $HOME ${X} 100% it's "q" \\n"""
    odd.mkdir()
    (odd / "python").symlink_to(sys.executable)
    files = made(home=odd, root=odd, python=odd / "python")
    (tmp_path / "units").mkdir()
    accepted(tmp_path / "units", files, user=True)  # says so of a command that is no file


def accepted(tmp_path: Path, files: dict[str, str], *, user: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(["--user"] if user else []), *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    about_ours = [line for line in done.stderr.splitlines() if "cotenant" in line]
    assert (done.returncode, about_ours) == (0, [])


def test_the_agent_comes_first_keeps_its_work_and_is_the_last_to_go() -> None:
    found = made(user="root")
    agent, fleet = found[AGENT], found[FLEET]
    for line in ("Delegate=yes", "KillMode=process", "Restart=always", "OOMScoreAdjust=-800", "Slice=cotenant.slice"):
        assert line in agent.splitlines()
    assert f"After={AGENT} network-online.target" in fleet
    assert f"Requires={AGENT}" not in fleet, "the agent must not fall with the fleet side, nor it with the agent"
    assert "OOMScoreAdjust=-800" not in made()[AGENT], "a user's manager has no right to that"
    assert "up --node mac-01" in fleet
    assert "node run mac-01" in made(joined=True)[FLEET]
    assert 'COTENANT_HOME=/srv/co tenant/100%%"' in agent


def test_only_an_agent_whose_runners_could_not_take_it_may_come_first() -> None:
    def of(name: str, user: str | None) -> set[str]:
        return {
            line for line in made(user=user)[name].splitlines() if line.startswith(("RestrictRealtime", "LimitRTPRIO"))
        }

    assert of(AGENT, "cotenant") == {"RestrictRealtime=no", "LimitRTPRIO=1"}
    assert of(AGENT, "root") == {"RestrictRealtime=yes"}, "what root runs may take what it likes"
    assert of(FLEET, "cotenant") == of(FLEET, "root") == {"RestrictRealtime=yes"}
    assert of(AGENT, None) == of(FLEET, None) == set(), "a user's manager cannot give it"


def test_the_owners_are_named_to_the_agent_and_their_helper_asks_where_it_listens() -> None:
    install = asked(user="cotenant", owners=("me", "you"))
    agent = units(install)[AGENT].splitlines()
    assert any(line.startswith("ExecStart=") and line.endswith(" --owners me,you") for line in agent)
    assert "RuntimeDirectory=cotenant" in agent, "the account cannot make a folder under /run"
    helper = user_units(install)[HELPER].splitlines()
    start = next(line for line in helper if line.startswith("ExecStart="))
    assert start.endswith("-m nodes.session_helper --socket /run/cotenant/mac-01.owners.sock")
    assert {line for line in helper if line.startswith("ConditionUser=")} == {"ConditionUser=|me", "ConditionUser=|you"}
    assert user_units(asked(user="cotenant")) == {}
    assert "--owners" not in made(user="cotenant")[AGENT]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(service, "SYSTEM_UNITS", tmp_path / "system")
    monkeypatch.setattr(service, "ALL_USERS_UNITS", tmp_path / "user")
    monkeypatch.setattr(service, "_complaints", lambda *_, **__: [])
    return tmp_path


def test_a_system_install_has_a_home_that_systemd_makes(
    cli: Cli,  # noqa: F811
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COTENANT_HOME")
    done = cli("service", "install", "--system", "--run-as", "root", "--owners", "root", "--json")
    assert done.code == 0, done.err
    assert done.json["data"]["home"] == "/var/lib/cotenant"
    assert sorted(path.name for path in folders.glob("*/*")) == [AGENT, FLEET, HELPER, "cotenant.slice"]
    assert (folders / "user" / HELPER).exists()
    agent = (folders / "system" / AGENT).read_text()
    assert "StateDirectory=cotenant" in agent
    assert "--home /var/lib/cotenant --node local --owners root" in agent


def test_what_the_shell_says_of_the_fleet_is_kept_for_the_service_and_every_other_shell(
    cli: Cli,  # noqa: F811
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {
        "COTENANT_SERVER_DATABASE_URL": "postgresql+asyncpg://prefect:secret@127.0.0.1/prefect",
        "COTENANT_STORE_URL": "postgresql://cotenant:secret@127.0.0.1/cotenant",
        "COTENANT_PREFECT_AUTH_STRING": "ops:secret",
        "COTENANT_SERVER_HOST": "0.0.0.0",
        "COTENANT_SERVER_PORT": "4299",
    }
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    shown = cli("service", "install", "--system", "--run-as", "root", "--print")
    assert shown.code == 0, shown.err
    assert "COTENANT_SERVER_DATABASE_URL" in shown.err
    assert "secret" not in shown.out + shown.err, "units can be read by all"
    file = Path(os.environ["COTENANT_HOME"]) / FLEET_FILE
    assert not file.exists()
    done = cli("service", "install", "--system", "--run-as", "root")
    assert done.code == 0, done.err
    assert file.stat().st_mode & 0o777 == 0o600
    assert all("secret" not in path.read_text() for path in (folders / "system").iterdir())
    found = Settings.from_env({"COTENANT_HOME": os.environ["COTENANT_HOME"]})
    assert {name: str(getattr(found, name.removeprefix("COTENANT_").lower())) for name in said} == said
    for name in said:
        monkeypatch.delenv(name)
    assert cli("service", "install", "--system", "--run-as", "root").code == 0
    assert Settings.from_env({"COTENANT_HOME": os.environ["COTENANT_HOME"]}) == found, "said once, it stays"


def test_a_system_install_of_a_home_that_joined_a_fleet_starts_no_server(
    cli: Cli,  # noqa: F811
    folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COTENANT_HOME")
    home = tmp_path / "var" / "lib"  # noqa: F811
    home.mkdir(parents=True)
    monkeypatch.setattr("cotenant.settings.SYSTEM_HOME", home)
    (home / FLEET_FILE).write_text(json.dumps({"node": "mac-01", "prefect_api_url": "http://10.0.0.2:4200/api"}))
    done = cli("service", "install", "--system", "--run-as", "root")
    assert done.code == 0, done.err
    assert "node run mac-01" in (folders / "system" / FLEET).read_text()


@pytest.mark.parametrize("runs", [True, False])
def test_where_systemd_does_not_run_the_units_come_with_what_starts_the_node(
    cli: Cli,  # noqa: F811
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    runs: bool,
) -> None:
    there = folders / "run"
    monkeypatch.setattr(service, "SYSTEMD_RUNS", there)
    if runs:
        there.mkdir()
    for only_print in ([], ["--print"]):
        done = cli("service", "install", "--system", "--run-as", "root", *only_print)
        assert done.code == 0, done.err
        assert ("cotenant up --node local --detach" in done.err) is not runs
        assert ("systemd does not run" in done.err) is not runs


def test_what_cannot_work_is_refused_before_anything_is_written(cli: Cli, folders: Path) -> None:  # noqa: F811
    for arguments, said, remedy in (
        (("--owners", "root"), "reads your home by itself", "--system"),
        (("--run-as", "root"), "run as you", "--system"),
        (("--system", "--run-as", "no-such-account"), "no such account", "useradd --system"),
        (("--system", "--run-as", "root", "--owners", "root,no-such-account"), "no such account", "name accounts"),
    ):
        done = cli("service", "install", *arguments)
        assert done.code == 2
        assert said in done.err
        assert remedy in done.err
    assert list(folders.glob("*/*.service")) == []
