"""What every command keeps to: the JSON envelope, the exit codes, errors in words on standard error."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cotenant.cli import main as entry
from policies.refusal import Refused
from tests.cli_runner import Cli, cli, home
from tests.fake_agent import FakeAgent

__all__ = ["cli", "home"]

ENVELOPE_KEYS = ["schema", "cotenant", "command", "status", "exit_code", "data", "messages", "errors"]
ERROR_KEYS = ["code", "what", "why", "remedy", "data"]


def every_command() -> Iterator[tuple[str, ...]]:
    def walk(app: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, command in app.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, (*path, name))
            else:
                yield (*path, name)

    yield from walk(typer.main.get_command(entry.app), ())


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", list(every_command()), ids=" ".join)
def test_every_command_has_help_with_an_example_that_names_it(path: tuple[str, ...], cli: Cli) -> None:
    said = cli(*path, "--help")
    assert said.code == 0
    assert "Example:" in said.out
    assert f"cotenant {' '.join(path)}" in said.out
    assert "--json" in said.out
    assert "--debug" in said.out


@pytest.mark.parametrize("path", list(every_command()), ids=" ".join)
def test_the_options_in_every_example_exist(path: tuple[str, ...], cli: Cli) -> None:
    shown = cli(*path, "--help").out
    example = shown[shown.index("Example:") : shown.index("Options:")].partition("Arguments:")[0]
    offered = set(re.findall(r"(?<![\w-])--?[\w-]+", shown[shown.index("Options:") :]))
    assert set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", example)) <= offered


def test_every_command_in_the_readme_exists(cli: Cli) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    typed = {command.strip() for command in re.findall(r"`cotenant ([^`]+)`", readme)}
    known = sorted(every_command(), key=len, reverse=True)
    assert len(typed) > 10
    for command in typed:
        words = command.split()
        path = next((path for path in known if tuple(words[: len(path)]) == path), None)
        assert path is not None, f"cotenant {command}"
        offered = cli(*path, "--help").out
        for option in (word for word in words if word.startswith("--")):
            assert option in offered, f"cotenant {command}: {option}"


def test_help_imports_nothing_heavy() -> None:
    """The half second for `--help` is kept by what it does not import, which no busy machine can blur."""
    heavy = ("prefect", "scipy", "numpy", "matplotlib", "sqlalchemy", "psutil", "rich", "policies", "nodes")
    script = (
        "import sys; from cotenant.cli.main import main\n"
        "code = main(['protection', 'ab', 'start', '--help'])\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.strip() == "[]"


def test_no_arguments_show_the_help(cli: Cli) -> None:
    said = cli()
    assert said.code == 0
    assert "protection" in said.out
    assert "oarbank" not in said.out


def test_the_alias_speaks_of_itself(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/oarbank"])
    assert cli("protection", "ab", "--help").out.startswith("Usage: oarbank protection ab")


# -- the envelope ------------------------------------------------------------------------------------------------------


def test_the_envelope_of_a_success(cli: Cli, home: Path) -> None:
    with FakeAgent(home, modules=[]).serving():
        said = cli("module", "list", "--json")
    assert said.code == 0
    assert list(said.json) == ENVELOPE_KEYS
    assert said.json["schema"] == 1
    assert said.json["command"] == "module list"
    assert said.json["status"] == "success"
    assert said.json["data"] == []
    assert said.err == ""


def test_a_refusal_speaks_json_and_exits_2(cli: Cli, home: Path) -> None:
    with FakeAgent(home, job_show=Refused("JOB_UNKNOWN", "job 7", "there is none", "cotenant job list")).serving():
        said = cli("job", "show", "7", "--json")
    assert said.code == 2
    assert list(said.json) == ENVELOPE_KEYS
    assert said.json["status"] == "error"
    assert said.json["exit_code"] == 2
    assert said.json["data"] is None
    assert [list(error) for error in said.json["errors"]] == [ERROR_KEYS]
    assert said.json["errors"][0]["remedy"] == "cotenant job list"


def test_wrong_usage_speaks_json_too(cli: Cli) -> None:
    said = cli("protection", "ab", "start", "local", "--json")
    assert said.code == 2
    assert list(said.json) == ENVELOPE_KEYS
    assert said.json["command"] == "protection ab start"
    assert said.json["errors"][0]["code"] == "USAGE"
    assert "--rule" in said.json["errors"][0]["why"]
    assert said.json["errors"][0]["remedy"] == "cotenant protection ab start --help"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("statuss",), "statuss"),
        (("protection", "ab", "start", "local", "--rule", "t", "--widow", "9"), "--widow"),
        (("protection", "ab", "start", "local", "--rule", "t", "--duty", "much"), "--duty"),
        (("protection", "ab", "start", "local", "--rule", "t", "--off", "gone"), "--off"),
        (("job", "list", "--limit", "0"), "--limit"),
    ],
)
def test_wrong_usage_names_the_thing_on_standard_error(cli: Cli, arguments: tuple[str, ...], names: str) -> None:
    said = cli(*arguments)
    assert said.code == 2
    assert said.out == ""
    assert names in said.err
    assert "--help" in said.err
    assert "Traceback" not in said.err


def test_a_fault_of_ours_is_no_traceback_unless_asked_for(cli: Cli, home: Path) -> None:
    with FakeAgent(home, job_list="no list of jobs").serving():
        plain = cli("job", "list")
        debug = cli("job", "list", "--debug")
    assert plain.code == 1
    assert "Traceback" not in plain.err
    assert "--debug" in plain.err
    assert debug.code == 1
    assert "Traceback" in debug.err


# -- not reachable -----------------------------------------------------------------------------------------------------

ASKS_THE_AGENT = [
    ("node", "show", "local"),
    ("protection", "show", "local"),
    ("protection", "sources", "local"),
    ("protection", "certificates", "local"),
    ("protection", "ab", "status", "local"),
    ("protection", "ab", "list"),
    ("protection", "ab", "start", "local", "--rule", "trainer", "--yes"),
    ("timeline", "local"),
    ("job", "list"),
    ("job", "submit", "llmserve/selftest"),
    ("job", "cancel", "7"),
    ("module", "list"),
    ("module", "doctor", "llmserve"),
]


@pytest.mark.parametrize("arguments", ASKS_THE_AGENT, ids=" ".join)
def test_without_an_agent_each_exits_3_and_says_what_starts_it(
    cli: Cli, arguments: tuple[str, ...], home: Path
) -> None:
    said = cli(*arguments)
    assert said.code == 3
    assert "node local" in said.err
    assert "it is not running" in said.err
    assert "next: cotenant up" in said.err
    assert not home.exists(), "looking must not make anything"


def test_another_home_is_part_of_the_command_that_starts_the_agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cotenant.cli.agents import Agent
    from cotenant.cli.failures import Unreachable
    from cotenant.settings import Settings

    with pytest.raises(Unreachable) as error:
        Agent(Settings(home=Path("/nonexistent/other home")), "mac-01").ask("hello")
    assert error.value.error.remedy == "COTENANT_HOME='/nonexistent/other home' cotenant up --node mac-01"


def test_a_long_home_still_names_its_node(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path / ("x" * 120)))
    said = cli("node", "show", "local")
    assert said.code == 3
    assert "next: cotenant up" in said.err


@pytest.mark.parametrize("name", ["../other", "a/b", "", "-x", "x" * 64, "näme"])
def test_a_name_that_is_no_nodes_name_is_refused(cli: Cli, name: str, home: Path) -> None:
    said = cli("timeline", "--", name) if name else cli("node", "run", "")
    assert said.code == 2
    assert not home.exists()


def test_status_answers_in_part_and_says_what_does_not_run(cli: Cli) -> None:
    said = cli("status", "--json")
    assert said.code == 3
    assert said.json["status"] == "partial"
    assert {error["code"] for error in said.json["errors"]} == {"SERVER_UNREACHABLE", "AGENT_UNREACHABLE"}
    assert said.json["data"]["server"]["state"] == "not running"
    assert {error["remedy"] for error in said.json["errors"]} == {"cotenant up"}


def test_status_shows_the_address_that_a_browser_wants(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert re.search(r"^UI +http://127\.0\.0\.1:9$", cli("status").out, re.MULTILINE)


def test_status_while_up_still_starts_says_who_starts_it_and_not_to_start_it_again(cli: Cli, home: Path) -> None:
    from cotenant.cli.uplog import UpLog
    from nodes.identity import own_id

    UpLog.at(home, "local", "up", own_id()).write()
    said = cli("status", "--json")
    assert said.code == 3
    remedies = {error["remedy"] for error in said.json["errors"]}
    assert remedies == {f"wait a moment, then cotenant status: `cotenant up` (pid {os.getpid()}) starts it"}


ASKS_A_NODE = [
    ("node", "show", "locl"),
    ("timeline", "locl"),
    ("protection", "sources", "locl"),
    ("protection", "ab", "status", "locl"),
    ("protection", "ab", "start", "locl", "--rule", "trainer"),
]


@pytest.mark.parametrize("arguments", ASKS_A_NODE, ids=" ".join)
def test_a_mistyped_node_is_no_node_to_start(arguments: tuple[str, ...], cli: Cli, home: Path) -> None:
    (home / "nodes" / "local").mkdir(parents=True)
    said = cli(*arguments)
    assert said.code == 2
    assert "no such node; known: local" in said.err
    assert "Did you mean 'local'?" in said.err
    assert "cotenant node run" not in said.err
    assert not (home / "nodes" / "locl").exists()


def test_a_new_node_beside_another_does_not_run_yet(home: Path) -> None:
    from cotenant.cli.agents import Agent
    from cotenant.settings import Settings

    (home / "nodes" / "local").mkdir(parents=True)
    assert not Agent(Settings(home=home), "mac-01").is_running()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("job", "list", "--state", "bogus"), "waiting, running, held, stopping, ended"),
        (("timeline", "--code", "RUN_BLOK"), "RUN_BLOCK"),
        (("timeline", "--code", "NOPE"), "no such code"),
    ],
)
def test_a_word_that_is_none_is_refused_with_those_that_are(
    arguments: tuple[str, ...], words: str, cli: Cli, home: Path
) -> None:
    with FakeAgent(home, job_list=[], timeline={"entries": [], "last_seq": 0}).serving():
        said = cli(*arguments)
    assert said.code == 2
    assert words in said.err


def test_a_pattern_of_codes_is_for_the_agent(cli: Cli, home: Path) -> None:
    with FakeAgent(home, timeline={"entries": [], "last_seq": 0}).serving():
        assert cli("timeline", "--code", "RUN_*").code == 0


@pytest.mark.parametrize("ends", [KeyboardInterrupt, Refused("NODE_UNKNOWN", "node x", "it is gone", "cotenant up")])
def test_a_timeline_that_is_followed_as_json_is_one_object_a_line_whatever_ends_it(
    ends: BaseException, cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"seq": 1, "at": "2026-11-30T12:00:00+00:00", "code": "AGENT_STARTED", "severity": "info", "message": "up"}

    def told(limit: int, after_seq: int = 0, before_seq: int = 2) -> dict[str, Any]:
        return {"entries": [entry] if after_seq < 1 < before_seq else [], "last_seq": 1}

    def sleep(seconds: float) -> None:
        raise ends

    monkeypatch.setattr("cotenant.cli.timeline.time.sleep", sleep)
    with FakeAgent(home, timeline=told).serving():
        said = cli("timeline", "--follow", "--json")
    first, last = (json.loads(line) for line in said.out.splitlines())
    assert first == entry
    assert (list(last), last["exit_code"], last["data"]) == (ENVELOPE_KEYS, said.code, None)


def test_a_section_error_says_what_is_allowed(cli: Cli, home: Path, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("x")
    error = {"line": 3, "rule": "r", "key": "hold", "message": "'gpuu' is unknown", "allowed": ["gpu", "cpu"]}
    with FakeAgent(home, section_preview={"ok": False, "errors": [error]}).serving():
        said = cli("protection", "preview", "local", str(tmp_path / "s.toml"))
    assert said.code == 2
    assert "'gpuu' is unknown (allowed: gpu, cpu)" in said.err


def test_a_job_that_ended_shows_nothing_of_what_it_waited_for(cli: Cli, home: Path) -> None:
    job = {
        "job": 7, "module": "m", "stage": "s", "state": "waiting", "code": "HELD_BY_RULE", "reason": None,
        "remedy": "wait for the rule", "queued_at": None, "started_at": None, "ended_at": None,
    }  # fmt: skip
    with FakeAgent(home, job_show=job).serving():
        waiting = cli("job", "show", "7").out
    with FakeAgent(home, job_show=job | {"state": "ended", "outcome": "cancelled"}).serving():
        ended = cli("job", "show", "7").out
    assert "HELD_BY_RULE" in waiting
    assert "wait for the rule" in waiting
    assert "HELD_BY_RULE" not in ended
    assert "wait for the rule" not in ended


def test_memory_and_truth_in_words() -> None:
    from cotenant.cli.node import _memory_words, _short

    pool = {"name": "ram", "total_bytes": 25_300_000_000, "available_bytes": 23_700_000_000}
    memory = {"level": "clear", "why": "", "pools": [pool], "swap_used_bytes": None}
    assert _memory_words(memory) == "level clear; 23.7 of 25.3 GB available"
    assert "unknown of 25.3 GB" in str(_memory_words(memory | {"pools": [pool | {"available_bytes": None}]}))
    assert (_short(True), _short(False)) == ("yes", "no")


def test_down_without_an_up_has_nothing_to_stop(cli: Cli) -> None:
    said = cli("down")
    assert said.code == 0
    assert "nothing to stop" in said.err


# -- settings ----------------------------------------------------------------------------------------------------------


def test_a_setting_that_cannot_be_used_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_STOP_S", "soon")
    said = cli("status")
    assert said.code == 2
    assert "COTENANT_STOP_S=soon" in said.err


def test_settings_read_the_environment_and_describe_each_field(tmp_path: Path) -> None:
    from cotenant.settings import SYSTEM_HOME, Settings

    assert Settings.from_env({}).node == "local"
    assert Settings.from_env({"COTENANT_SYSTEM_SERVICE": "1"}).home == SYSTEM_HOME
    assert Settings.from_env({"COTENANT_HOME": str(tmp_path)}).store == f"sqlite:///{tmp_path}/store.sqlite"
    assert Settings.from_env({"COTENANT_STORE_URL": "postgresql://u@db/c"}).store == "postgresql://u@db/c"
    assert Settings.from_env({"COTENANT_NODE": "a"}, node="b").node == "b"
    for name, field in Settings.model_fields.items():
        assert field.description, name
        if field.annotation is float:
            assert name.endswith("_s"), f"{name} has no unit in its name"
    with pytest.raises(Refused, match="PREFECT_API_URL"):
        Settings.from_env({"COTENANT_PREFECT_API_URL": "127.0.0.1:4200"})


def test_the_embedded_servers_address_is_read_from_its_note(tmp_path: Path) -> None:
    from cotenant.settings import Settings

    assert Settings(home=tmp_path).api_url is None
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect" / "server.json").write_text('{"port": 5123}')
    assert Settings(home=tmp_path).api_url == "http://127.0.0.1:5123/api"
    assert Settings(home=tmp_path, prefect_api_url="https://fleet/api/").api_url == "https://fleet/api"


def test_certificates_of_a_node_that_is_silent_are_unknown_and_not_fine(cli: Cli, home: Path) -> None:
    said = cli("protection", "certificates", "check")
    assert said.code == 3
    assert said.out == ""
    assert "no agent answers" in said.err


def test_a_name_that_is_no_utf_8_can_be_printed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    assert cli("--help").code == 0
    print("caf\udce9.jsonl", flush=True)
    assert raw.getvalue().endswith(b"caf\\udce9.jsonl\n")
