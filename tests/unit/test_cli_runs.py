"""Showing and verifying runs, from the agent's journal or from the store."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from cotenant import store
from cotenant.cli.replay import verify
from tests.cli_runner import Cli, cli, home
from tests.fake_agent import FakeAgent

__all__ = ["cli", "home"]

RUNS = Path(__file__).parents[1] / "data" / "runs"
NAMES = sorted(path.stem for path in RUNS.glob("*.json"))


def record_of(name: str) -> dict[str, Any]:
    return json.loads((RUNS / f"{name}.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_run_agrees_with_its_own_windows(name: str) -> None:
    answer = verify(record_of(name))
    assert answer["differences"] == []
    assert answer["agrees"]


def changed(name: str, change: Any) -> dict[str, Any]:
    record = copy.deepcopy(record_of(name))
    change(record)
    return record


def halve_on(record: dict[str, Any]) -> None:
    for block in record["blocks"]:
        if block["on"]:
            block["on"]["events"] /= 2
            block["on"]["rate"] /= 2


def nudge_one_rate(record: dict[str, Any]) -> None:
    record["blocks"][0]["on"]["rate"] *= 1.0001


def count_a_left_out_block(record: dict[str, Any]) -> None:
    block = next(block for block in record["blocks"] if block["state"] == "left_out" and block["on"] and block["off"])
    block["state"], block["reason"] = "counted", None


TAMPERED = {
    "harm hidden by the ending": ("slowdown", lambda record: record.update(ending="no slowdown shown")),
    "windows that show harm under a pass": ("pass", halve_on),
    "one rate that is not its events over its length": ("pass", nudge_one_rate),
    "a verdict with another R": ("pass", lambda record: record.update(verdict={"verdict": "no slowdown shown", "R": 1.01})),
    "a pass without enough blocks": ("pass", lambda record: record.update(blocks=record["blocks"][:7])),
    "a collapse denied": ("collapse", lambda record: record.update(ending="inconclusive")),
    "harm that was voided away": ("harm_suspected", lambda record: record.update(ending="no slowdown shown")),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_what_does_not_fit_its_windows_differs(name: str, cli: Cli, home: Path) -> None:
    record = changed(*TAMPERED[name])
    with FakeAgent(home, run_show=record).serving():
        said = cli("protection", "ab", "verify", record["run"])
    assert said.code == 1
    assert "DIFFERS" in said.out


def test_verify_says_agree(cli: Cli, home: Path) -> None:
    record = record_of("pass")
    with FakeAgent(home, run_show=record).serving():
        said = cli("protection", "ab", "verify", record["run"])
    assert said.code == 0
    assert "agrees" in said.out
    assert "DIFFERS" not in said.out


def test_without_agents_the_store_tells_of_a_run(cli: Cli, home: Path) -> None:
    record = record_of("slowdown")
    engine = store.open(f"sqlite:///{home / 'store.sqlite'}")
    store.sync_run(engine, record)
    engine.dispose()
    verified = cli("protection", "ab", "verify", record["run"], "--json")
    assert verified.code == 0
    assert verified.json["data"]["told_by"] == "store"
    listed = cli("protection", "ab", "list")
    assert listed.code == 0
    assert record["run"] in listed.out
    assert "from the store" in listed.err


def test_a_run_that_nobody_knows(cli: Cli, home: Path) -> None:
    said = cli("protection", "ab", "show", "run-nowhere")
    assert said.code == 2
    assert "run-nowhere" in said.err
    assert "cotenant protection ab list" in said.err
    assert not (home / "store.sqlite").exists(), "looking must not make a store"


def test_nodes_that_were_not_asked_are_named(cli: Cli, home: Path) -> None:
    (home / "nodes" / "asleep").mkdir(parents=True)
    assert "asleep" in cli("protection", "ab", "verify", "run-nowhere").err


def test_the_page_and_the_windows_are_written_where_asked(cli: Cli, home: Path, tmp_path: Path) -> None:
    record = record_of("pass")
    page, windows = tmp_path / "r.html", tmp_path / "r.csv"
    with FakeAgent(home, run_show=record).serving():
        said = cli("protection", "ab", "show", record["run"], "--html", str(page), "--csv", str(windows))
    assert said.code == 0
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    assert cli("protection", "ab", "decide", str(windows)).code == 0


def test_nothing_is_drawn_where_no_page_is_asked_for(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.reports import Rendered

    drawn: list[Rendered] = []
    monkeypatch.setattr(Rendered, "html", property(drawn.append))
    record = record_of("slowdown")
    with FakeAgent(home, run_show=record).serving():
        assert cli("protection", "ab", "show", record["run"]).code == 1
    assert drawn == []


def test_a_page_that_cannot_be_written_is_an_error_in_words(cli: Cli, home: Path) -> None:
    record = record_of("pass")
    with FakeAgent(home, run_show=record).serving():
        said = cli("protection", "ab", "show", record["run"], "--html", "/no/such/folder/r.html")
    assert said.code == 2
    assert "/no/such/folder/r.html" in said.err
    assert "Traceback" not in said.err


def test_abort_is_for_the_agent_that_has_the_run(cli: Cli, home: Path) -> None:
    ended = {"run": "run-1", "state": "ended", "ending": "aborted", "reason": "aborted by the owner", "ended_at": "now"}
    with FakeAgent(home, run_show={"run": "run-1"}, run_abort=ended).serving() as fake:
        said = cli("protection", "ab", "abort", "run-1", "--json")
    assert said.code == 0
    assert said.json["data"] == ended
    assert fake.verbs() == ["run_show", "run_abort"]
