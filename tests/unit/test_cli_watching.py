"""Watching a run: each change in words, R at looks only, and the run's ending as the exit code."""

from __future__ import annotations

import io
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cotenant.cli.ab_sweep import _follow
from cotenant.cli.agents import Agent
from cotenant.cli.fleet_link import Fleet, server_answers
from cotenant.cli.watching import Left, Watcher, look_words, now_words
from cotenant.settings import Settings
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from tests.cli_runner import Cli, cli, home
from tests.fake_agent import FakeAgent

__all__ = ["cli", "home"]

RUNS = Path(__file__).parents[1] / "data" / "runs"
SPEC = RunSpec(node="local", rule="trainer").model_dump()
LOOK = {"n": 8, "verdict": "inconclusive", "R": 0.9963, "lo": 0.9801, "hi": 1.0129, "more_blocks": 4}


def status(
    counted: int, arm: str | None = "on", part: str = "window", left_s: float | None = 38.2, **more: Any
) -> dict[str, Any]:
    now = {"block": counted + 1, "arm": arm, "part": part, "left_s": left_s}
    return {
        "run": "run-1", "spec": SPEC, "state": "open", "ending": None, "now": now, "counted": counted, "left_out": 0, "looks": []
    } | more  # fmt: skip


def test_now_in_words() -> None:
    assert now_words(status(4, part="washout")) == (
        "block 5 of 12, ON, washout, 38 s left; 4 blocks counted; at most 36 more blocks, about 7.2 h"
    )
    assert now_words(status(12)).startswith("block 13 (at most 40), ON, window")
    assert now_words(status(1, left_out=2, left_s=None)) == (
        "block 2 of 12, ON, window; 1 block counted, 2 left out; at most 37 more blocks, about 7.4 h"
    )
    assert now_words(status(4, now=None)).startswith("waits for its flow to go on; 4 blocks counted; at most")
    assert now_words(status(4, state="ended", ending="slowdown", now=None)) == "ended: slowdown; 4 blocks counted"


def test_before_the_first_block_is_over_it_is_said_that_none_counts_yet() -> None:
    whole = "no block counted yet; at most 40 more blocks, about 8.0 h"
    assert now_words(status(0)) == f"block 1 of 12, ON, window, 38 s left; {whole}"
    reference = status(0, now={"block": None, "arm": None, "part": "reference", "left_s": 9.0})
    assert now_words(reference) == f"reference, the work held, 9 s left; {whole}"


def test_on_a_terminal_of_80_columns_nothing_of_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("cotenant.cli.render.console", lambda stream: terminal)
    watcher = Watcher(None, "run-1", lambda: None, 0.01, 5.0)  # type: ignore[arg-type]
    with watcher._bar():
        watcher._show(status(4, part="waiting", left_out=12))
        watcher._progress.refresh()  # type: ignore[union-attr]
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).splitlines()
    assert any(
        line.rstrip().endswith("block 5 of 12, ON, waiting for the work to switch, at most 38 s left") for line in lines
    )
    assert any(
        line.strip() == "4 blocks counted, 12 left out; at most 24 more blocks, about 4.8 h" for line in lines
    ), lines


def test_blocks_are_counted_as_the_plan_counted_them() -> None:
    spec = RunSpec(node="local", rule="trainer", max_hours=1.7).model_dump()
    assert spec["blocks"] == 12
    assert now_words(status(2, spec=spec)).startswith("block 3 of 8, ON")


def test_a_look_in_words() -> None:
    assert look_words(LOOK) == (
        "look at 8 blocks: relative speed (R) 99.6 % (90 % interval, valid at every look: 98.0–101.3 %), inconclusive; "
        "about 4 more blocks may decide it"
    )
    assert "(R) unknown, inconclusive" in look_words(LOOK | {"R": None, "lo": None, "hi": None})
    assert "above 100 %" not in look_words(LOOK)
    assert "above 100 % is within the noise" in look_words(LOOK | {"R": 1.021, "lo": 0.99, "hi": 1.05})


def watch(
    home: Path, said: list[str], statuses: list[dict[str, Any]], record: dict[str, Any], **flow: Any
) -> dict[str, Any]:
    """Follow a run that shows these statuses one after the other and ends with this record."""
    left = iter(statuses)
    last: dict[str, Any] = {}

    def run_status(run: str) -> dict[str, Any]:
        nonlocal last
        last = next(left, last)
        return last

    with FakeAgent(home, run_status=run_status, run_show=record).serving():
        agent = Agent(Settings(home=home), "local")
        return Watcher(
            agent, "run-1", flow.get("ended", lambda: None), 0.01, flow.get("within", 5.0), say=said.append
        ).follow()


def test_each_step_is_said_once_and_R_only_after_a_look(home: Path) -> None:
    said: list[str] = []
    record = json.loads((RUNS / "slowdown.json").read_text())
    seen = [
        status(0, arm=None, part="reference", now={"block": None, "arm": None, "part": "reference", "left_s": 9.0}),
        *(
            status(n, arm, part)
            for n in range(8)
            for arm, part in (("on", "washout"), ("on", "window"), ("on", "window"))
        ),
        status(8, looks=[LOOK]),
        status(9, looks=[LOOK]),
        status(9, looks=[LOOK], state="ended", ending="slowdown", now=None),
    ]
    assert watch(home, said, seen, record)["run"] == record["run"]
    assert said[0].startswith("reference")
    before = said[: said.index(look_words(LOOK))]
    assert not any("(R)" in line or "verdict" in line or "%" in line for line in before), before
    assert said.count(look_words(LOOK)) == 1
    assert len([line for line in said if line.startswith("block 1 of 12, ON, window")]) == 1
    assert said[-1].startswith("ended: slowdown")


def test_a_pass_waits_for_its_certificate(home: Path) -> None:
    record = json.loads((RUNS / "pass.json").read_text()) | {"certificate": None}
    answers = iter([record, record, record, record | {"certificate": {"certificate": "c1"}}])
    last = record

    def run_show(run: str) -> dict[str, Any]:
        nonlocal last
        last = next(answers, last)
        return last

    done = status(8, state="ended", ending="no slowdown shown", now=None)
    with FakeAgent(home, run_status=done, run_show=run_show).serving():
        agent = Agent(Settings(home=home), "local")
        found = Watcher(agent, "run-1", lambda: None, 0.01, 5.0, say=lambda line: None).follow()
    assert found["certificate"] == {"certificate": "c1"}


def test_a_flow_that_ends_before_it_began_is_said_with_its_reason(home: Path) -> None:
    unknown = Refused("RUN_UNKNOWN", "run run-1", "this node knows no such run", "cotenant protection ab list")
    with FakeAgent(home, run_show=unknown).serving():
        agent = Agent(Settings(home=home), "local")
        watcher = Watcher(agent, "run-1", lambda: "Refused: no such rule", 0.01, 5.0, say=lambda line: None)
        with pytest.raises(Refused, match="no such rule"):
            watcher.follow()


def test_a_run_that_nobody_takes_is_not_waited_for_without_end(home: Path) -> None:
    unknown = Refused("RUN_UNKNOWN", "run run-1", "this node knows no such run", "cotenant protection ab list")
    with FakeAgent(home, run_show=unknown).serving():
        agent = Agent(Settings(home=home), "local")
        with pytest.raises(Refused, match="worker"):
            Watcher(agent, "run-1", lambda: None, 0.01, 0.2, say=lambda line: None).follow()


def test_ctrl_c_leaves_the_run_alone(home: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with FakeAgent(home, run_status=status(1), run_show={"run": "run-1"}).serving() as fake:
        agent = Agent(Settings(home=home), "local")
        with pytest.raises(Left):
            Watcher(agent, "run-1", lambda: None, 0.01, 5.0, say=interrupt).follow()
    assert "run_abort" not in fake.verbs()


def test_an_agent_that_restarts_is_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cotenant.cli.failures import Unreachable

    record = json.loads((RUNS / "slowdown.json").read_text())
    done = status(8, state="ended", ending="slowdown", now=None)
    with FakeAgent(home, run_status=done, run_show=record).serving():
        agent = Agent(Settings(home=home), "local")
        asked, lost = agent.ask, iter([False, True, True])

        def ask(verb: str, /, _timeout_s: float = 30.0, **params: Any) -> Any:
            if next(lost, False):
                raise Unreachable("AGENT_UNREACHABLE", "node local", "it is not running", "cotenant node run local")
            return asked(verb, _timeout_s=_timeout_s, **params)

        monkeypatch.setattr(agent, "ask", ask)
        assert Watcher(agent, "run-1", lambda: None, 0.01, 5.0, say=lambda line: None).follow()["ending"] == "slowdown"


@pytest.mark.parametrize(("name", "code"), [("pass", 0), ("slowdown", 1), ("running", 0)])
def test_show_exits_by_the_runs_ending(name: str, code: int, cli: Cli, home: Path) -> None:
    record = json.loads((RUNS / f"{name}.json").read_text())
    with FakeAgent(home, run_show=record).serving():
        said = cli("protection", "ab", "show", record["run"], "--json")
    assert said.code == code
    assert said.json["status"] == "success"
    assert said.json["data"]["record"] == record


def test_status_shows_where_the_run_is(cli: Cli, home: Path) -> None:
    with FakeAgent(home, run_status=status(8, looks=[LOOK])).serving():
        said = cli("protection", "ab", "status", "local")
    assert "block 9 of 12, ON, window, 38 s left; 8 blocks counted; at most 32 more blocks, about 6.4 h" in said.out
    assert "look at 8 blocks" in said.out
    with FakeAgent(home, run_status=None).serving():
        assert "no run measures" in cli("protection", "ab", "status", "local").err


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (200, {"state": {"type": "RUNNING", "name": "Running", "message": None}}, None),
        (200, {"state": {"type": "SCHEDULED", "name": "AwaitingNode", "message": "busy"}}, None),
        (200, {"state": {"type": "FAILED", "name": "Refused", "message": "no such rule"}}, "Refused: no such rule"),
        (200, {"state": {"type": "COMPLETED", "name": "Completed", "message": None}}, "Completed"),
        (200, {}, None),
        (404, {}, "the server no longer knows it"),
        (500, {}, None),
    ],
)
def test_whether_a_flow_has_ended(status: int, body: dict[str, Any], wanted: str | None) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert Fleet(f"http://127.0.0.1:{server.server_port}/api").why_ended("some-id") == wanted
        thread.join()


def test_a_server_that_is_away_has_ended_nothing() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        url = f"http://127.0.0.1:{server.server_port}/api"
    assert Fleet(url).why_ended("some-id") is None
    assert server_answers(url) is not None


def test_a_sweeps_watcher_says_the_level_what_is_counted_and_what_is_left(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = SPEC | {"duty": 0.2}
    answers = iter([status(0, spec=spec), status(0, left_s=30.0, spec=spec), status(1, spec=spec)])
    ends = iter([None, None, None, "Completed"])
    fleet = SimpleNamespace(why_ended=lambda flow_run: next(ends))
    unknown = Refused("RUN_UNKNOWN", "run", "this node knows no such run", "cotenant protection ab list")
    data = {"flow_run_id": "f", "sweep": "sweep-1", "node": "local"}
    with FakeAgent(home, run_status=lambda: next(answers), run_show=unknown).serving():
        in_force = Settings(home=home, watch_every_s=0.01)
        _follow(in_force, Agent(in_force, "local"), fleet, data)  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == [
        "duty 0.2: block 1 of 12, ON, window; no block counted yet; at most 40 more blocks, about 8.0 h",
        "duty 0.2: block 2 of 12, ON, window; 1 block counted; at most 39 more blocks, about 7.8 h",
        "Completed",
    ]
