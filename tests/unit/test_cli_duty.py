"""``protection duty``: one node, every node that has a budget, and what does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cotenant.cli import duty
from cotenant.cli.failures import Unreachable
from cotenant.settings import Settings


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


def test_where_no_node_has_a_budget_it_says_what_one_needs() -> None:
    (text,) = duty._text({"nodes": []})
    assert "certified" in str(text)
