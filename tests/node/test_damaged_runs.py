"""One run's record that was damaged, of whatever rule: the agent starts, measures, lists and certifies all others as before."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from nodes.agent.certify import Certifier
from nodes.agent.measure import Measurer
from nodes.agent.verbs import Verbs
from nodes.identity import own_id
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from tests.node.certificate_rig import Node

DAMAGES = {
    "no spec": {"spec": None},
    "a spec of words": {"spec": "text"},
    "no JSON": "{",
    "no object": "[1]",
    "nothing in it": "{}",
    "no times": {"came_at": None, "started_at": 5, "ended_at": None, "driven_at": "yesterday"},
    "times without an offset": {"came_at": "2026-01-01T00:00:00", "driven_at": "2026-01-01T00:00:00"},
    "no room for its looks": {"spec": None, "looks": 5, "begun": [1], "left": "x", "driven_by": 7, "sweep": 7},
}


def damage_it(node: Node, run: str, damage: dict[str, Any] | str) -> None:
    db = node.agent.journal.db
    if isinstance(damage, dict):
        (row,) = db.execute("SELECT record FROM runs WHERE run = ?", (run,)).fetchall()
        damage = json.dumps(json.loads(row["record"]) | damage)
    db.execute("UPDATE runs SET record = ? WHERE run = ?", (damage, run))
    node.agent.runs._newest_at = None  # as of an agent that has just begun


def renamed(node: Node, run: str) -> None:
    """Of a rule that this node has no more: no pass of the other one is owed to it."""
    spec = node.agent.runs.record(run)["spec"]
    node.agent.runs.change(run, spec=spec | {"rule": "renderer"})


def test_they_stop_no_new_run_no_list_no_start_and_no_certificate(node: Node) -> None:
    damaged = {}
    for number, damage in enumerate(DAMAGES.values()):
        for state in ("ended", "open"):
            name = f"{state}{number}"
            damaged[name] = damage
            node.begin(name)
            if state == "ended":
                node.agent.runs.end(name, "inconclusive", None, None)
            node.agent.runs.active = None
            renamed(node, name)
            damage_it(node, name, damage)
    node.run("r1")
    assert node.offer("r1")["run"] == "r1"
    assert [row["validity"]["state"] for row in node.listed()] == ["valid"]
    rows = {row["run"]: row for row in Verbs(node.agent).run_list()}
    assert rows["r1"]["damaged"] is False
    for name, damage in damaged.items():
        assert name.startswith(rows[name]["state"])
        assert Verbs(node.agent).run_status(name) is not None
        if isinstance(damage, str) or "spec" in damage:
            assert rows[name]["damaged"] is True, damage
    asyncio.run(node.planner.plan(RunSpec.model_validate(node.rig.spec(feed="llmserve/selftest"))))
    node.agent.start()
    Certifier(node.agent, node.subject)
    node.agent.tick()
    node.run("r2")
    assert [attempt["run"] for attempt in node.agent.runs.record("r2")["attempts_before"]] == ["r1"]


def test_a_damaged_one_of_the_same_rule_costs_that_rule_a_second_pass(node: Node) -> None:
    node.run("bad", counted=0, ending="inconclusive")
    damage_it(node, "bad", {"ended_at": None, "came_at": "yesterday"})
    node.run("r1")
    assert "two passes" in node.refused("r1")
    node.run("r2")
    assert node.offer("r2")["run"] == "r2"


@pytest.mark.parametrize("damage", [{"spec": None}, "{}"], ids=["no spec", "nothing in it"])
def test_an_open_run_that_is_damaged_is_refused_by_name_when_it_shall_go_on(
    node: Node, damage: dict[str, Any] | str
) -> None:
    node.begin("bad")
    node.agent.runs.active = None
    damage_it(node, "bad", damage)
    measurer = Measurer(node.agent, node.planner, node.subject)
    with pytest.raises(Refused) as refused:
        asyncio.run(measurer.begin("bad", RunSpec.model_validate(node.rig.spec()), own_id(), "test", None))
    assert refused.value.code == "RUN_CHANGED"
    assert "damaged" in refused.value.why
