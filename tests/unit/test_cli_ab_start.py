"""``ab start``: whatever is wrong is refused before anything starts; what is right is shown and asked first."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from cotenant.cli import fleet_link, run_options
from cotenant.cli.queued import Queued
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from tests.cli_runner import Cli, cli, home
from tests.fake_agent import FakeAgent

__all__ = ["cli", "home"]

START = ("protection", "ab", "start", "local", "--rule", "trainer")


def plan_of(spec: dict[str, Any], **changes: Any) -> dict[str, Any]:
    checked = RunSpec.model_validate(spec)
    return {
        "spec": checked.model_dump(),
        "rule": {"id": "trainer"},
        "processes": [{"pid": 4711, "exe": "/usr/bin/python3", "argv": ["python3", "[bold]train.py[/bold]"]}],
        "source": {
            "kind": "jsonl",
            "path": "/runs/events.jsonl",
            "state": "read",
            "rate": 26.1,
            "timed": False,
            "timed_why": "",
        },
        "work": [{"module": "dev.x.llmserve", "short": "llmserve", "stage": "selftest", "queued": 0, "running": 1}],
        "feed": checked.feed,
        "planned_blocks": 12,
        "planned_hours": 2.4,
        "longest_hours": 8.0,
        "n_max": checked.n_max,
        "looks": list(checked.looks),
        "held": ["the work under test is paused in OFF windows"],
        "allowed": ["in ON windows llmserve/selftest runs"],
        "warnings": ["the upload phase is on now"],
        "attempts_before": [
            {"run": "run-1", "ending": "slowdown", "R": 0.951, "ended_at": "2026-11-20T10:00:00+00:00"}
        ],
        "certificate_kind": "certificate",
    } | changes


class FakeFleet:
    """Stands for the Prefect server; what it was asked to start is the proof that something started."""

    url = "http://127.0.0.1:1/api"

    def __init__(self) -> None:
        self.started: list[tuple[RunSpec, str]] = []
        self.open: list[Queued] = []
        self.cancelled: list[str] = []

    def open_runs(self) -> list[Queued]:
        return self.open

    def cancel(self, flow_run: str) -> None:
        self.cancelled.append(flow_run)

    def start_ab(self, spec: RunSpec, reviewed_by: str) -> tuple[str, str]:
        self.started.append((spec, reviewed_by))
        return "6f0f2c1e-8f0e-4c52-9d55-0d0a3a0f7d11", "run-0123456789"

    def ui_link(self, flow_run: str) -> str:
        return f"http://127.0.0.1:1/runs/flow-run/{flow_run}"

    def why_ended(self, flow_run: str) -> str | None:
        return None


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> FakeFleet:
    fake = FakeFleet()
    monkeypatch.setattr(fleet_link, "connect", lambda settings: fake)
    return fake


@pytest.fixture
def agent(home: Path) -> Iterator[FakeAgent]:
    with FakeAgent(home, run_plan=lambda spec: plan_of(spec)).serving() as serving:
        yield serving


BAD = {
    "--window 0.1": ("--window", "0.1", "at least 5 s"),
    "--window nan": ("--window", "nan", "not a number"),
    "--washout -1": ("--washout", "-1", "negative"),
    "--margin 0": ("--margin", "0", "between 0 and 1"),
    "--margin 1.5": ("--margin", "1.5", "between 0 and 1"),
    "--duty 0": ("--duty", "0", "above 0"),
    "--duty 1.2": ("--duty", "1.2", "at most 1"),
    "--blocks 0": ("--blocks", "0", "needs blocks"),
    "--first-look 9": ("--first-look", "9", "8, 12, 16"),
    "--first-look 4": ("--first-look", "4", "8, 12, 16"),
    "--max-hours 0": ("--max-hours", "0", "needs time"),
    "--max-hours 0.5": ("--max-hours", "0.5", "first look needs 8"),
    "--max-hours inf": ("--max-hours", "inf", "not a number"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_number_is_refused_by_its_option(name: str, cli: Cli, agent: FakeAgent, fleet: FakeFleet) -> None:
    option, value, words = BAD[name]
    said = cli(*START, f"{option}={value}", "--yes")
    assert said.code == 2
    assert option in said.err
    assert words in said.err
    assert agent.asked == []
    assert fleet.started == []


def test_null_and_self_exclude_each_other(cli: Cli, agent: FakeAgent, fleet: FakeFleet) -> None:
    said = cli(*START, "--null", "--self", "--yes")
    assert said.code == 2
    assert "one or the other" in said.err
    assert fleet.started == []


REFUSED_BY_THE_AGENT = [
    "RUN_NO_RULE",
    "RUN_NO_SOURCE",
    "RUN_NO_PROGRAM",
    "RUN_NO_WORK",
    "RUN_LOCKED",
    "SOURCE_LOOKS_TIMED",
]


@pytest.mark.parametrize("code", REFUSED_BY_THE_AGENT)
def test_what_the_agent_refuses_is_said_in_its_words(code: str, cli: Cli, home: Path, fleet: FakeFleet) -> None:
    refused = Refused(code, "rule 'trainr'", "node local has no such rule", "its rules: trainer")
    with FakeAgent(home, run_plan=refused).serving():
        said = cli(*START, "--yes", "--json")
    assert said.code == 2
    assert said.json["errors"][0] == refused.as_dict()
    assert fleet.started == []


def test_without_a_server_it_exits_3_before_anybody_is_asked(cli: Cli, agent: FakeAgent) -> None:
    said = cli(*START)
    assert said.code == 3
    assert "Prefect server" in said.err
    assert "next: cotenant up" in said.err
    assert "Start this run?" not in said.err


def test_without_a_terminal_and_without_yes_nothing_starts(cli: Cli, agent: FakeAgent, fleet: FakeFleet) -> None:
    said = cli(*START)
    assert said.code == 4
    assert "--yes" in said.err
    assert fleet.started == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "code"), [("n\n", 4), ("no\n", 4), ("", 4), ("perhaps\n\nN\n", 4), ("y\n", 0), ("YES\n", 0)]
)
def test_on_a_terminal_it_asks_without_a_default(
    answer: str, code: int, cli: Cli, agent: FakeAgent, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    said = cli(*START)
    assert said.code == code
    assert "Start this run? [y/n]" in said.err
    assert len(fleet.started) == (1 if code == 0 else 0)


def test_the_plan_shows_all_that_a_reviewer_needs(cli: Cli, agent: FakeAgent, fleet: FakeFleet) -> None:
    said = cli(*START, "--feed", "llmserve/selftest", "--duty", "0.3")
    for words in (
        "rule trainer on node local",
        "pid 4711: python3 [bold]train.py[/bold]",
        "/runs/events.jsonl",
        "26.1 events a second",
        "llmserve/selftest, held to a duty of 0.3; 0 queued, 1 running, kept loaded",
        "300 s windows and two 60 s washouts",
        "a slowdown of 2 % counts",
        "the work under test is paused in OFF windows",
        "in ON windows llmserve/selftest runs",
        "run run-1 ended slowdown, R 95.1 %",
        "the upload phase is on now",
        "valid for 14 days",
    ):
        assert words in said.err, words


def test_an_unknown_rate_is_not_shown_as_zero(cli: Cli, home: Path, fleet: FakeFleet) -> None:
    def plan(spec: dict[str, Any]) -> dict[str, Any]:
        unknown = plan_of(spec)
        return unknown | {"source": unknown["source"] | {"rate": None}}

    with FakeAgent(home, run_plan=plan).serving():
        assert "unknown rate" in cli(*START).err


def test_what_is_started_is_what_was_asked_for(cli: Cli, agent: FakeAgent, fleet: FakeFleet) -> None:
    said = cli(*START, "--work", "cpu", "--off", "evicted", "--first-look", "12", "--window", "120", "--yes", "--json")
    assert said.code == 0
    (spec, reviewed_by) = fleet.started[0]
    assert (spec.work, spec.off, spec.first_look, spec.window_s, spec.duty) == ("cpu", "evicted", 12, 120.0, None)
    assert "--yes" in reviewed_by
    assert said.json["data"]["run"] == "run-0123456789"
    assert agent.asked[0][1]["spec"] == spec.model_dump(), "the plan that was shown is the run that starts"


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        ((), 12),
        (("--max-hours", "1.7"), 8),
        (("--max-hours", "1.7", "--blocks", "12"), 12),
        (("--first-look", "16"), 16),
    ],
)
def test_blocks_that_nobody_asked_for_are_those_that_fit(
    options: tuple[str, ...], blocks: int, cli: Cli, agent: FakeAgent, fleet: FakeFleet
) -> None:
    assert cli(*START, *options, "--yes").code == 0
    assert fleet.started[0][0].blocks == blocks


def test_each_start_tosses_its_coins_from_another_seed(cli: Cli, agent: FakeAgent, fleet: FakeFleet) -> None:
    for _ in range(3):
        cli(*START, "--yes")
    assert len({spec.seed for spec, _ in fleet.started}) == 3


@pytest.mark.parametrize(("flag", "kind"), [("--null", "null"), ("--self", "self")])
def test_the_other_kinds(flag: str, kind: str, cli: Cli, home: Path, fleet: FakeFleet) -> None:
    with FakeAgent(home, run_plan=lambda spec: plan_of(spec, work=[], certificate_kind="none")).serving():
        said = cli(*START, flag, "--yes")
    assert said.code == 0
    assert fleet.started[0][0].kind == kind
    assert "no certificate" in said.err


def queued(node: str = "local", state: str = "SCHEDULED") -> Queued:
    return Queued("9d1c", state, state.title(), "2026-11-29T10:00:00Z", {"node": node, "rule": "trainer"})


@pytest.mark.parametrize("state", ["SCHEDULED", "PENDING", "RUNNING", "PAUSED"])
def test_a_second_start_is_refused_while_the_first_has_not_ended(
    state: str, cli: Cli, agent: FakeAgent, fleet: FakeFleet
) -> None:
    fleet.open = [queued(state=state)]
    said = cli(*START, "--yes")
    assert said.code == 2
    assert queued().run in said.err
    assert f"cotenant protection ab abort {queued().run}" in said.err
    assert fleet.started == []


def test_another_nodes_run_is_in_nobodys_way(cli: Cli, agent: FakeAgent, fleet: FakeFleet) -> None:
    fleet.open = [queued(node="mac-01")]
    assert cli(*START, "--yes").code == 0


def test_what_was_submitted_is_said_to_be_queued(cli: Cli, agent: FakeAgent, fleet: FakeFleet) -> None:
    assert cli(*START, "--yes").out.startswith("queued: run run-0123456789")


def test_the_options_defaults_are_the_runs_own() -> None:
    asked = run_options.run_parameters(
        node="n",
        rule="r",
        work=run_options.WORK,
        window=run_options.WINDOW_S,
        washout=run_options.WASHOUT_S,
        margin=run_options.MARGIN,
        off=run_options.Off.paused,
        max_hours=run_options.MAX_HOURS,
        first_look=run_options.FIRST_LOOK,
        feed=run_options.FEED,
        accept_timed_source=False,
    )
    own = RunSpec(node="n", rule="r").model_dump()
    assert asked == {name: own[name] for name in asked}
    assert set(run_options.Off) == set(get_args(RunSpec.model_fields["off"].annotation))


def test_help_needs_none_of_what_a_run_needs() -> None:
    heavy = "pydantic", "sqlalchemy", "prefect", "scipy", "rich.table"
    code = f"import sys, cotenant.cli.main; sys.exit(', '.join(n for n in {heavy} if n in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
