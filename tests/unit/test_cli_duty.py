"""``protection duty``: one node, every node that has a budget, and what does not answer."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cotenant.cli import duty
from cotenant.cli.failures import Unreachable
from cotenant.settings import Settings
from tests.cli_runner import Cli, cli, home

__all__ = ["cli", "home"]


def view(node: str, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "node": node, "gpu_jobs": "certified", "state": "running", "budget": 0.3, "ceiling": 0.35, "decides": "governor",
        "rules": [], "shared_by": 0, "share": None, "units": [],
    }  # fmt: skip
    return found | changes


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answers by node, put in by the test; None: it does not answer."""
    answers: dict[str, Any] = {}

    class Stand:
        def __init__(self, settings: Settings, node: str) -> None:
            self.node = node

        def ask(self, verb: str) -> Any:
            assert verb == "duty"
            if answers[self.node] is None:
                raise Unreachable("AGENT_UNREACHABLE", f"node {self.node}", "no agent answers", "cotenant up")
            return answers[self.node]

    for name in ("a", "b", "c"):
        (tmp_path / "nodes" / name).mkdir(parents=True)
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path))
    monkeypatch.setattr("cotenant.cli.agents.Agent", Stand)
    return answers


def test_without_a_node_those_that_have_a_budget_are_shown_and_the_silent_are_named(nodes: dict[str, Any]) -> None:
    nodes |= {"a": view("a"), "b": view("b", gpu_jobs="always", decides="nobody", budget=None), "c": None}
    views, errors = duty._views(None)
    assert [each["node"] for each in views] == ["a"]
    assert [error.what for error in errors] == ["node c"]


def test_the_node_that_is_named_is_shown_with_or_without_a_budget(nodes: dict[str, Any]) -> None:
    nodes |= {"b": view("b", gpu_jobs="when_no_gpu_protected", decides="nobody", budget=None)}
    views, errors = duty._views("b")
    assert not errors
    (text,) = duty._text({"nodes": views})
    assert (
        text == 'b: no gpu_duty budget: its section says gpu_jobs = "when_no_gpu_protected"; "certified" gives it one'
    )


def test_where_no_node_has_a_budget_it_says_what_one_needs(
    cli: Cli, nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes |= {name: view(name, gpu_jobs="always", decides="nobody", budget=None) for name in "abc"}
    assert 'gpu_jobs = "certified"' in cli("protection", "duty").err
    assert json.loads(cli("protection", "duty", "--json").out)["messages"] == [duty.NO_BUDGET]
    watched(nodes, monkeypatch)
    first, *_ = (json.loads(line) for line in cli("protection", "duty", "--watch", "--json").out.splitlines())
    assert (first["nodes"], first["messages"]) == ([], [duty.NO_BUDGET])
    watched(nodes, monkeypatch)
    assert duty.NO_BUDGET in cli("protection", "duty", "--watch").out


def watched(nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *looks: dict[str, Any]) -> list[float]:
    """Between two looks the nodes answer what ``looks`` says, one after the other; then comes Ctrl-C. The waits."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > len(looks):
            raise KeyboardInterrupt
        nodes.update(looks[len(waits) - 1])

    monkeypatch.setattr(duty.time, "sleep", sleep)
    return waits


def test_watch_shows_it_again_every_two_seconds_until_ctrl_c(
    cli: Cli,
    nodes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes |= {"a": view("a"), "b": view("b", gpu_jobs="always", decides="nobody", budget=None), "c": None}
    waits = watched(nodes, monkeypatch, {"a": view("a", budget=0.15)}, {"a": None})
    said = cli("protection", "duty", "--watch")
    assert (said.code, waits) == (0, [2.0, 2.0, 2.0])
    lines = said.out.splitlines()
    assert [line for line in lines if line.startswith("a: ")] == [
        f"a: gpu_duty budget {budget} of ceiling 0.35 (running); 0 unit(s)" for budget in ("0.3", "0.15")
    ]
    assert sum("node c: no agent answers" in line for line in lines) == 3, "each look says what does not answer"
    assert sum("node a: no agent answers" in line for line in lines) == 1
    assert not [line for line in lines if "no node has" in line], "what cannot be asked may have a budget"


def test_watch_with_json_is_one_object_a_look(
    cli: Cli,
    nodes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes |= {"a": view("a"), "b": view("b"), "c": None}
    watched(nodes, monkeypatch, {"b": None})
    lines = cli("protection", "duty", "--watch", "--json").out.splitlines()
    first, second = (json.loads(line) for line in lines[:2])
    assert first["nodes"] == [view("a"), view("b")]
    assert ([each["node"] for each in second["nodes"]], [each["what"] for each in second["errors"]]) == (
        ["a"],
        ["node b", "node c"],
    )
    assert second["errors"][0]["remedy"] == "cotenant up"
    (last,) = (json.loads(line) for line in lines[2:])
    assert (last["command"], last["status"], last["data"]) == ("protection duty", "success", None)


def test_a_watch_with_json_that_ends_in_an_error_says_so_in_one_line_too(cli: Cli, nodes: dict[str, Any]) -> None:
    nodes |= {"b": None}
    (last,) = cli("protection", "duty", "b", "--watch", "--json").out.splitlines()
    assert json.loads(last)["errors"][0]["what"] == "node b"
    assert len(cli("protection", "duty", "b", "--json").out.splitlines()) > 1, "alone it is for people too"


def test_watch_of_one_node_outlives_its_agents_restart_and_refuses_one_that_never_answered(
    cli: Cli,
    nodes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes |= {"a": view("a"), "b": None}
    watched(nodes, monkeypatch, {"a": None}, {"a": view("a", budget=0.05)})
    lines = cli("protection", "duty", "a", "--watch").out.splitlines()
    assert lines == [
        "a: gpu_duty budget 0.3 of ceiling 0.35 (running); 0 unit(s)",
        "error: node a: no agent answers",
        "  next: cotenant up",
        "a: gpu_duty budget 0.05 of ceiling 0.35 (running); 0 unit(s)",
    ]
    assert cli("protection", "duty", "b", "--watch").code == 3


def test_json_is_the_view_whole(cli: Cli, nodes: dict[str, Any]) -> None:
    nodes |= {"a": view("a"), "b": view("b", gpu_jobs="never", decides="nobody", budget=None), "c": None}
    said = cli("protection", "duty", "--json")
    assert (said.code, said.json["status"], said.json["data"]) == (3, "partial", {"nodes": [view("a")]})
    assert [error["what"] for error in said.json["errors"]] == ["node c"]
    assert cli("protection", "duty", "b", "--json").json["data"]["nodes"][0]["gpu_jobs"] == "never"


def test_the_fleets_duty_is_one_table_from_the_store(cli: Cli, home: Path) -> None:
    from cotenant import store

    engine = store.open(f"sqlite:///{home / 'store.sqlite'}")
    at = datetime(2026, 11, 29, 12, tzinfo=UTC)
    unit = {"attempt": "7-1", "duty": 0.15, "measured": 0.14, "state": "holds"}
    rules = [
        {"rule": "trainer", "certified_duty": 0.35, "pressure": 0.21},
        {"rule": "game", "certified_duty": 0.4, "pressure": None},
    ]
    store.put_duty(engine, "mac-01", view("mac-01", rules=rules, units=[unit, unit | {"attempt": "8-1"}]), at)
    store.put_duty(engine, "mac-02", view("mac-02", gpu_jobs="never", decides="nobody", budget=None, ceiling=None), at)
    store.put_duty(engine, "mac-03", view("mac-03", units=[unit, unit | {"measured": None}]), at)
    store.put_timeline(engine, "mac-04", [{"seq": 1, "at": at.isoformat(), "code": "AGENT_STARTED"}])
    engine.dispose()
    said = cli("protection", "duty", "--fleet")
    assert said.code == 0, said.err
    assert [re.split(r" {2,}", line.strip()) for line in said.out.splitlines()] == [
        ["node", "budget", "ceiling", "state", "beside", "pressure", "units", "measured", "as of"],
        ["mac-01", "0.3", "0.35", "running", "trainer, game", "0.21", "2", "0.28", "2026-11-29T12:00:00Z"],
        ["mac-02", "none", "none", "gpu_jobs never", "none", "–", "0", "0.00", "2026-11-29T12:00:00Z"],
        ["mac-03", "0.3", "0.35", "running", "none", "–", "2", "–", "2026-11-29T12:00:00Z"],
        ["mac-04", *(["–"] * 8)],
    ]
    asked = cli("protection", "duty", "mac-01", "--fleet", "--json").json["data"]
    assert [(row["node"], row["duty"]["budget"], row["as_of"]) for row in asked["nodes"]] == [
        ("mac-01", 0.3, "2026-11-29T12:00:00+00:00")
    ]
    wrong = cli("protection", "duty", "mac-9", "--fleet")
    assert (wrong.code, "cotenant node list --fleet" in wrong.err) == (2, True)


def test_where_there_is_no_store_the_fleets_duty_says_what_makes_one(cli: Cli) -> None:
    said = cli("protection", "duty", "--fleet")
    assert said.code == 0
    assert "cotenant up" in said.err
