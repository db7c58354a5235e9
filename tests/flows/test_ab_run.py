"""Harness runs through a real server and worker: reviewed, refused, put off, killed at every place, cancelled."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.settings import PREFECT_API_URL, temporary_settings

from cotenant import fleet, store
from cotenant.cli.main import main
from cotenant.fleet.deployments import client_of
from flows.ab_run import ab_run
from nodes.flow_processes import FlowProcesses
from nodes.identity import liveness
from policies.harness.names import run_name
from policies.refusal import Refused
from tests.flows.conftest import NODE, ROOT, Rig, until
from tests.flows.fake_agent import FakeAgent

pytestmark = pytest.mark.timeout(900)


def blocks_started(rig: Rig, flow_run: str) -> list[int]:
    return [number for run, number, _ in rig.agent.memory.started if run == run_name(flow_run)]


def measuring(rig: Rig, flow_run: str, at_least: int = 2) -> None:
    until(lambda: len(blocks_started(rig, flow_run)) >= at_least, f"{at_least} blocks of {flow_run} begun")


def flow_process(rig: Rig, flow_run: str) -> int:
    process = FlowProcesses(rig.home / "nodes" / NODE / "flows").of(UUID(flow_run))
    assert process is not None
    assert liveness(process) == "alive"
    return process.pid


def assert_store_equals_the_journal(rig: Rig, flow_run: str) -> None:
    run = run_name(flow_run)
    engine = store.open(store.default_url(rig.home))
    journal = rig.agent.do_run_show(run)
    assert until(lambda: store.load_run(engine, run) == journal, "the store has the whole run")


def test_a_reviewed_run_goes_to_its_verdict_report_and_store(rig: Rig) -> None:
    flow_run = rig.start(reviewed=False)
    rig.wait_state(flow_run, "Suspended")
    assert run_name(flow_run) not in rig.agent.memory.runs, "nothing begins before the review"

    with client_of(rig.url) as client:
        answer = until(
            lambda: (got := client.resume_flow_run(UUID(flow_run))).details is not None and got,
            "an answer to an empty resume",
        )
    assert answer.status.value == "REJECT"
    assert fleet.flow_state(rig.url, flow_run)["name"] == "Suspended"
    with pytest.raises(Refused, match="perhaps"):
        fleet.approve(rig.url, flow_run, "perhaps")

    fleet.approve(rig.url, flow_run, "approve", "go tonight")
    done = rig.wait_state(flow_run, "Completed")
    assert done["message"].startswith("no slowdown shown: R ")
    assert done["message"].endswith("certificate kept")
    with pytest.raises(Refused, match="not paused"):
        fleet.approve(rig.url, flow_run, "approve")

    record = rig.agent.do_run_show(run_name(flow_run))
    assert record["reviewed_by"] == "answered in Prefect: go tonight"
    assert_store_equals_the_journal(rig, flow_run)
    for form in ("html", "csv", "json"):
        assert (rig.home / "reports" / f"{run_name(flow_run)}.{form}").stat().st_size > 0
    with client_of(rig.url) as client:
        mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(flow_run)]))
        artifacts = {artifact.type: artifact for artifact in client.read_artifacts(artifact_filter=mine)}
    assert {"markdown", "table", "image", "progress"} <= set(artifacts)
    assert str(artifacts["image"].data).startswith("data:image/png;base64,")


def test_a_killed_flow_is_put_back_and_goes_on_through_a_restart_of_the_server(rig: Rig) -> None:
    rig.agent.block_s = 1.5
    flow_run = rig.start()
    measuring(rig, flow_run, 3)
    os.kill(flow_process(rig, flow_run), signal.SIGKILL)
    cut = until(
        lambda: [row for row in rig.agent.do_run_show(run_name(flow_run))["blocks"] if row["state"] == "cut"],
        "the cut block",
    )
    measuring(rig, flow_run, 5)

    server = rig.server.process.identity()
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    measuring(rig, flow_run, 6)  # the run goes on without its server
    assert rig.server.start() == rig.url
    rig.wait_state(flow_run, "Completed")

    started = blocks_started(rig, flow_run)
    assert len(started) == len(set(started)), "no block is measured twice"
    record = rig.agent.do_run_show(run_name(flow_run))
    counted = [row["number"] for row in record["blocks"] if row["state"] == "counted"]
    assert len(counted) == 8
    assert [row["number"] for row in cut] not in counted
    assert_store_equals_the_journal(rig, flow_run)
    states = rig.states(flow_run)
    put_back = f"{NODE}: FLOW_PUT_BACK: put back: its process was killed by signal 9 (1 of 3); next: nothing: it goes on by itself"
    assert ("AwaitingNode", put_back) in states
    assert "Crashed" not in [name for name, _ in states]


def test_case_110_a_stopped_worker_puts_its_run_back_and_a_cancelled_run_is_aborted(rig: Rig) -> None:
    rig.agent.block_s = 3.0
    flow_run = rig.start()
    measuring(rig, flow_run, 2)
    pid = flow_process(rig, flow_run)
    assert rig.worker.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert fleet.flow_state(rig.url, flow_run)["name"] == "AwaitingNode"
    before = len(blocks_started(rig, flow_run))

    rig.worker.start(within_s=300)
    measuring(rig, flow_run, before + 1)
    fleet.cancel_flow(rig.url, flow_run)
    rig.wait_state(flow_run, "Cancelled")
    record = until(
        lambda: (got := rig.agent.do_run_show(run_name(flow_run)))["state"] == "ended" and got,
        "the run ended by the flow",
    )
    assert record["ending"] == "aborted"
    started = blocks_started(rig, flow_run)
    assert len(started) == len(set(started))
    with pytest.raises(Refused):
        fleet.cancel_flow(rig.url, flow_run)


def test_a_flow_ended_by_sigterm_stays_open_until_it_goes_on_or_is_cancelled(rig: Rig) -> None:
    rig.agent.block_s = 3.0
    flow_run = rig.start()
    measuring(rig, flow_run, 2)
    rig.agent.refuse["admit_flow"] = Refused("OWNER_PAUSE", "flow ab-run", "the owner paused the node", "wait")
    os.killpg(flow_process(rig, flow_run), signal.SIGTERM)  # as at a shutdown: nobody cancelled it
    until(
        lambda: [m for n, m in rig.states(flow_run) if n == "AwaitingNode" and "put back" in m], "the run is put back"
    )
    assert "Crashed" not in [name for name, _ in rig.states(flow_run)]
    assert rig.agent.do_run_show(run_name(flow_run))["state"] == "open"
    fleet.cancel_flow(rig.url, flow_run)
    record = until(
        lambda: (got := rig.agent.do_run_show(run_name(flow_run)))["state"] == "ended" and got,
        "the worker aborts the run",
    )
    assert record["ending"] == "aborted"


def test_a_run_cancelled_while_the_agent_is_asked_about_it_is_cancelled(rig: Rig) -> None:
    """The worker's refusal, on its way, does not set it waiting again."""
    rig.agent.refuse["admit_flow"] = Refused("OWNER_PAUSE", "flow ab-run", "the owner paused the node", "wait")
    started: list[str] = []

    def cancel_first(method: str) -> None:
        if method == "admit_flow" and started and "Cancelled" not in [name for name, _ in rig.states(started[0])]:
            fleet.cancel_flow(rig.url, started[0])

    rig.agent.on_asked = cancel_first
    started.append(rig.start())
    until(lambda: "Cancelled" in [name for name, _ in rig.states(started[0])], "it is cancelled")
    asked = rig.agent.asked.count("admit_flow")
    rig.agent.refuse.clear()
    other = rig.start()  # by the time that this one is done, the other would have been taken again
    rig.wait_state(other, "Completed")
    assert fleet.flow_state(rig.url, started[0])["name"] == "Cancelled"
    assert rig.agent.asked.count("admit_flow") == asked + 1


def test_a_run_that_the_node_does_not_admit_waits_with_the_reason_that_explain_gives(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    why = "a window of run r0 is being counted"
    rig.agent.refuse["admit_flow"] = Refused("RUN_WINDOW", "flow ab-run", why, "it starts by itself", {"left_s": 60})
    flow_run = rig.start()
    state = rig.wait_state(flow_run, "AwaitingNode")
    assert state["message"] == f"{NODE}: RUN_WINDOW: {why}; next: it starts by itself"
    nothing: dict[str, Any] = {
        "rules": [],
        "limits": [],
        "jobs": [],
        "run": None,
        "memory": None,
        "pause": False,
        "admits": True,
    }
    explained = nothing | {"node": NODE, "mode": "moderate", "gpu_jobs": "never", "flows": None}
    monkeypatch.setattr(FakeAgent, "do_explain", lambda self: explained, raising=False)
    assert main(["explain", NODE, "--json"]) == 0
    (waiting,) = [
        row for row in json.loads(capfd.readouterr().out)["data"]["flow_runs"] if row["flow_run_id"] == flow_run
    ]
    assert (waiting["code"], waiting["why"], waiting["remedy"]) == ("RUN_WINDOW", why, "it starts by itself")
    assert main(["explain", NODE]) == 0
    assert f"flow run {flow_run} is AwaitingNode: {state['message']}" in capfd.readouterr().out
    fleet.cancel_flow(rig.url, flow_run)
    rig.wait_state(flow_run, "Cancelled", "Cancelling")
    assert "Pending" not in [name for name, _ in rig.states(flow_run)]


def test_a_run_waits_for_an_agent_that_does_not_answer(rig: Rig) -> None:
    rig.agent.stop()
    try:
        flow_run = rig.start()
        assert "no agent answers" in rig.wait_state(flow_run, "AwaitingNode")["message"]
        fleet.cancel_flow(rig.url, flow_run)
    finally:
        rig.agent.start()


def test_what_the_agent_refuses_fails_with_what_why_and_remedy(rig: Rig) -> None:
    with temporary_settings({PREFECT_API_URL: rig.url}):
        state = ab_run(node=NODE, rule="trainr", work="cpu", window_s=5, washout_s=1, max_hours=0.14, return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    assert state.message == "rule 'trainr': the section has no such rule. Next: use trainer"


def test_case_109_a_flow_file_that_is_missing_fails_its_run_and_not_the_worker(rig: Rig) -> None:
    with client_of(rig.url) as client:
        model = client.read_deployment_by_name("ab-run/ab-run")
        client.create_deployment(
            flow_id=model.flow_id, name="gone", entrypoint="flows/gone.py:gone", work_pool_name="cotenant"
        )
    flow_run = fleet.run_flow(rig.url, "ab-run/gone", {}, NODE)
    assert "flows/gone.py is not in this node's checkout" in rig.wait_state(flow_run, "Failed")["message"]
    assert rig.worker.is_running()


def test_a_mistyped_node_or_parameter_is_refused_and_makes_no_queue(rig: Rig) -> None:
    with pytest.raises(Refused, match="Did you mean 'local'") as refusal:
        fleet.run_flow(rig.url, "ab-run/ab-run", {"node": "locl", "rule": "trainer"}, "locl")
    assert refusal.value.code == "NODE_UNKNOWN"
    with client_of(rig.url) as client:
        assert "locl" not in [queue.name for queue in client.read_work_queues(work_pool_name="cotenant")]
    with pytest.raises(Refused, match="did you mean 'window_s'"):
        rig.start(windw_s=3)
    with pytest.raises(Refused, match="is not one of"):
        rig.start(off="frozen")


def test_a_node_mistyped_in_a_form_fails_and_one_that_is_away_waits(rig: Rig) -> None:
    fleet.ensure_queue(rig.url, "mac-09")  # it joined, and does not run
    with client_of(rig.url) as client:  # as the UI does, whose form leaves the queue at the deployment's own
        model = client.read_deployment_by_name("ab-run/ab-run")
        away, mistyped = (
            str(client.create_flow_run_from_deployment(model.id, parameters={"node": node, "rule": "trainer"}).id)
            for node in ("mac-09", "locl")
        )
    message = rig.wait_state(mistyped, "Refused")["message"]
    assert "no such node; did you mean 'local'?" in message
    assert "cotenant node list" in message
    assert fleet.flow_state(rig.url, away)["name"] in ("Scheduled", "Late")
    fleet.cancel_flow(rig.url, away)


def test_deploying_again_changes_nothing(rig: Rig) -> None:
    assert fleet.deploy(rig.url, ROOT) is False
