"""Duty sweeps through a real server and worker: to the first harm, over nights, through kills and out of hours."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter

from cotenant import fleet
from cotenant.fleet.deployments import client_of
from nodes.flow_processes import FlowProcesses
from nodes.zone import local_zone
from policies.harness.names import sweep_name
from policies.harness.sweep import level_run
from tests.flows.conftest import NODE, Rig, until
from tests.flows.fake_records import steady

pytestmark = pytest.mark.timeout(900)
PASS = "no slowdown shown"


def start(rig: Rig, **over: Any) -> str:
    parameters = {
        "node": NODE,
        "rule": "trainer",
        "work": "cpu",
        "levels": [0.1, 0.2, 0.35],
        "window_s": 5.0,
        "washout_s": 1.0,
        "max_hours": 0.14,
        "reviewed": True,
        **over,
    }
    return fleet.run_flow(rig.url, "duty-sweep/duty-sweep", parameters, NODE)


def levels_of(rig: Rig, sweep: str) -> list[dict[str, Any]]:
    runs = [run for run in rig.agent.memory.runs.values() if (run["sweep"] or {}).get("sweep") == sweep]
    return sorted(runs, key=lambda run: run["sweep"]["index"])


def by_level(rig: Rig, ratios: dict[float, float]) -> None:
    """Rates that depend on the duty of the run that measures now."""
    rates: dict[float, Callable[[int], tuple[float, float]]] = {duty: steady(ratio) for duty, ratio in ratios.items()}

    def now(number: int) -> tuple[float, float]:
        assert rig.agent.active is not None
        return rates[rig.agent.memory.runs[rig.agent.active[0]]["spec"]["duty"]](number)

    rig.agent.rates = now


def artifacts_of(rig: Rig, flow_run: str) -> dict[str, Any]:
    with client_of(rig.url) as client:
        mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(flow_run)]))
        return {str(artifact.type): artifact for artifact in client.read_artifacts(artifact_filter=mine)}


def test_it_stops_at_the_first_level_that_does_not_pass_and_certifies_the_one_before(rig: Rig) -> None:
    by_level(rig, {0.1: 1.0, 0.2: 0.9, 0.35: 1.0})
    flow_run = start(rig, reviewed=False, node=NODE, rule="trainer", work="cpu", margin=0.021)
    waits = rig.wait_state(flow_run, "Suspended")
    until(lambda: fleet.flow_state(rig.url, flow_run)["message"], "the suspended state says what it waits for")
    assert flow_run in fleet.flow_state(rig.url, flow_run)["message"]
    assert waits["name"] == "Suspended"
    fleet.approve(rig.url, flow_run, "approve")
    done = rig.wait_state(flow_run, "Completed")
    assert done["message"].startswith("Certified duty 0.1 beside trainer: the sweep stopped at duty 0.2")

    sweep = sweep_name(flow_run)
    levels = levels_of(rig, sweep)
    assert [level["ending"] for level in levels] == [PASS, "slowdown"]
    assert [level["run"] for level in levels] == [level_run(sweep, 0), level_run(sweep, 1)]
    assert {level["flow_run_id"] for level in levels} == {flow_run}
    assert levels[0]["reviewed_by"].startswith("answered in Prefect")
    assert rig.agent.reserved is None, "the node is free again"

    found = artifacts_of(rig, flow_run)
    assert {"markdown", "table", "image", "progress"} <= set(found)
    assert found["progress"].data == 100.0
    assert str(found["progress"].description).startswith("Certified duty 0.1 beside trainer")
    assert str(found["image"].data).startswith("data:image/png;base64,")
    assert "stopped at duty 0.2" in str(found["markdown"].data)
    for form in ("md", "json", "png"):
        assert (rig.home / "reports" / f"{sweep}.{form}").stat().st_size > 0
    with client_of(rig.url) as client:
        children = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [flow_run]}})
        )
    assert sorted(child.name for child in children) == [f"{sweep} duty 0.1", f"{sweep} duty 0.2"]
    for child in children:
        assert {"markdown", "image", "progress"} <= set(artifacts_of(rig, str(child.id))), "each level has its report"

    again = start(rig, margin=0.021)
    rig.wait_state(again, "Completed")
    assert levels_of(rig, sweep_name(again))[0]["sweep"]["repeat_of"][-1] == sweep
    assert "This is a repeat" in (rig.home / "reports" / f"{sweep_name(again)}.md").read_text()


def test_a_killed_sweep_goes_on_and_runs_no_level_or_block_twice(rig: Rig) -> None:
    rig.agent.block_s = 1.0
    flow_run = start(rig, margin=0.022, levels=[0.1, 0.2])
    sweep = sweep_name(flow_run)

    def measured(index: int) -> int:
        return sum(1 for run, _, _ in rig.agent.memory.started if run == level_run(sweep, index))

    def kill() -> None:
        process = FlowProcesses(rig.home / "nodes" / NODE / "flows").of(UUID(flow_run))
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)

    until(lambda: measured(0) >= 2, "the first level measures")
    kill()
    until(lambda: measured(1) >= 3, "the second level measures")
    kill()
    done = rig.wait_state(flow_run, "Completed")
    assert done["message"].startswith("Certified duty 0.2 beside trainer: every level of the sweep passed")
    levels = levels_of(rig, sweep)
    assert [level["ending"] for level in levels] == [PASS, PASS]
    started = [(run, number) for run, number, _ in rig.agent.memory.started]
    assert len(started) == len(set(started)), "no block is measured twice"
    assert len(levels_of(rig, sweep)) == 2


def test_a_cancelled_sweep_keeps_what_passed_and_says_so(rig: Rig) -> None:
    rig.agent.block_s = 0.5
    flow_run = start(rig, margin=0.023)
    sweep = sweep_name(flow_run)
    until(lambda: len(levels_of(rig, sweep)) == 2, "the second level has begun")
    fleet.cancel_flow(rig.url, flow_run)
    rig.wait_state(flow_run, "Cancelled")
    until(lambda: levels_of(rig, sweep)[1]["state"] == "ended", "the level that ran is ended")
    levels = levels_of(rig, sweep)
    assert [level["ending"] for level in levels] == [PASS, "aborted"]
    assert levels[0]["certificate"] is not None
    report = until(lambda: (p := rig.home / "reports" / f"{sweep}.md").exists() and p.read_text(), "its report")
    assert "Certified duty 0.1" in report
    assert "cancelled" in report


def test_the_next_night_goes_on_with_the_next_level_and_too_little_time_starts_none(rig: Rig) -> None:
    first = start(rig, margin=0.024, levels=[0.1])
    rig.wait_state(first, "Completed")
    # the same sweep as it stands after a night in which its first level fitted
    passed = levels_of(rig, sweep_name(first))[0]
    passed["sweep"] = passed["sweep"] | {"levels": [0.1, 0.2], "asked": asked(0.024)}

    now = datetime.now(local_zone())
    minute = timedelta(minutes=1)
    closing = f"{now - 60 * minute:%H:%M}-{now + minute:%H:%M}"
    late = start(rig, margin=0.024, levels=[0.1, 0.2], window=closing)
    state = rig.wait_state(late, "Completed", "AwaitingNode")
    if state["name"] == "Completed":  # else a busy machine took it only after its hours: it waits for the next
        assert "duty 0.2 does not start" in state["message"]
    else:
        fleet.cancel_flow(rig.url, late)
    assert len(levels_of(rig, sweep_name(first))) == 1

    opens = f"{now - 60 * minute:%H:%M}-{now + 300 * minute:%H:%M}"
    night = start(rig, margin=0.024, levels=[0.1, 0.2], window=opens)
    done = rig.wait_state(night, "Completed")
    assert done["message"].startswith("Certified duty 0.2")
    levels = levels_of(rig, sweep_name(first))
    assert [(level["spec"]["duty"], level["flow_run_id"]) for level in levels] == [(0.1, first), (0.2, night)]
    assert not levels_of(rig, sweep_name(night)), "it is the same sweep"


def test_a_reviewed_sweep_waits_for_its_hours_and_says_when_they_begin(rig: Rig) -> None:
    now = datetime.now(local_zone())
    later = f"{now + timedelta(hours=5):%H:%M}-{now + timedelta(hours=7):%H:%M}"
    flow_run = start(rig, window=later)
    state = rig.wait_state(flow_run, "AwaitingNode")
    assert "outside its hours" in state["message"]
    fleet.cancel_flow(rig.url, flow_run)


def test_parameters_that_make_no_sweep_are_refused_readably(rig: Rig) -> None:
    flow_run = start(rig, levels=[0.5, 0.2])
    state = rig.wait_state(flow_run, "Refused")
    assert "they must ascend" in state["message"]
    with client_of(rig.url) as client:  # as a form or the API would, past the command line's own check
        model = client.read_deployment_by_name("duty-sweep/duty-sweep")
        made = client.create_flow_run_from_deployment(
            model.id, parameters={"node": NODE, "rule": "trainer", "lvels": [0.1]}, work_queue_name=NODE
        )
    assert "did you mean 'levels'?" in rig.wait_state(str(made.id), "Refused")["message"]


def asked(margin: float) -> str:
    from policies.harness.spec import RunSpec
    from policies.harness.sweep import Asked

    spec = RunSpec(node=NODE, rule="trainer", work="cpu", window_s=5.0, washout_s=1.0, margin=margin)
    return Asked.of(spec, (0.1, 0.2)).digest
