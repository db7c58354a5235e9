"""What a run is refused for before anything starts: each by name, with the reason and what would work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodes.agent.core import Agent
from nodes.agent.plan import Planner
from nodes.agent.subject import Subject
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from tests.node.agent_rig import ROOT, Rig, runners_of, wait_for
from tests.node.test_workloads import module as serving


def refusal(rig: Rig, **changes: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        rig.client.call("run_plan", spec=rig.spec(**changes))
    assert refused.value.remedy, "a refusal says what would work"
    return refused.value


def test_the_plan_says_what_will_be_done_and_starts_nothing(measured: Rig) -> None:
    plan = measured.client.call("run_plan", spec=measured.spec())
    assert plan["rule"]["id"] == "stepper"
    assert plan["processes"][0]["pid"] == measured.started[1].pid
    assert plan["source"]["rate"] > 0
    assert plan["work"][0]["stage"] == "selftest"
    assert plan["n_max"] == 16
    assert plan["certificate_kind"] == "demonstration"
    assert plan["held"]
    assert plan["allowed"]
    assert not runners_of(measured.home)
    assert measured.client.call("run_status") is None


def test_what_can_only_fail_later_is_refused_now(measured: Rig) -> None:
    rig = measured
    assert refusal(rig, rule="trainr").code == "RUN_NO_RULE"
    assert "stepper" in refusal(rig, rule="trainr").why
    assert refusal(rig, feed=None).code == "RUN_NO_WORK"
    assert refusal(rig, feed="llmserve/nope").code == "RUN_BAD_FEED"
    assert refusal(rig, feed="nope/selftest").code == "RUN_BAD_FEED"
    unknown = refusal(rig, feed="llmserve/batch@m.gguf", work="llmserve/batch")
    assert (unknown.code, "no such model; it names: none" in unknown.why) == ("RUN_BAD_FEED", True)
    assert "for a model" in refusal(rig, feed="llmserve/selftest@m.gguf").why
    assert refusal(rig, work="other/selftest").code == "RUN_BAD_PARAMETER"
    assert refusal(rig, feed=None, work="nope").code == "RUN_NO_WORK"
    assert refusal(rig, margin=1.5).code == "RUN_BAD_PARAMETER"
    assert refusal(rig, blocks=0).code == "RUN_BAD_PARAMETER"
    assert refusal(rig, max_hours=0.01).code == "RUN_BAD_PARAMETER"
    assert not rig.client.call("run_list")


def test_a_section_that_forbids_the_work_whatever_the_run_is_said(measured: Rig) -> None:
    rig = measured
    rig.client.call("section_set", text=rig.section(extra_node='gpu_jobs = "never"'), by="test")
    assert "never" in refusal(rig).why
    rig.client.call("section_set", text=rig.section(extra_node="pause = true"), by="test")
    assert "paused" in refusal(rig).why
    rig.client.call("section_set", text=rig.section(extra_rule='pause_fleet = { scope = "all" }'), by="test")
    assert "pauses fleet work" in refusal(rig).why


def test_a_program_that_does_not_run_and_a_source_that_does_not_read(rig: Rig) -> None:
    rig.start_agent()
    rig.client.call("section_set", text=rig.section(), by="test")
    wait_for("llmserve is ready", lambda: rig.client.call("modules")[0]["state"] == "ready", 300)
    assert refusal(rig).code == "RUN_NO_PROGRAM"
    elsewhere = rig.home / "elsewhere.jsonl"
    rig.start_program(elsewhere)
    wait_for("the program is seen", lambda: rig.client.call("status")["rules"][0]["processes"])
    found = refusal(rig)
    assert found.code == "PROTECTION_SOURCE_UNREADABLE"
    assert str(rig.events) in found.what


def test_a_script_that_was_written_after_its_program_had_started_is_not_what_would_be_measured(measured: Rig) -> None:
    rig = measured

    def refused() -> bool:
        rig.stepper.write_text(rig.stepper.read_text())
        try:
            rig.client.call("run_plan", spec=rig.spec())
        except Refused as found:
            return found.code == "RUN_PROGRAM_REPLACED" and str(rig.stepper) in found.why
        return False

    wait_for("the plan is refused", refused, 60)
    rig.client.call("run_plan", spec=rig.spec(kind="null", feed=None, duty=None))


def test_a_source_on_a_timer_is_refused_and_can_be_accepted_for_a_demonstration(rig: Rig) -> None:
    """Exact gaps are put into the track, so that the host's load does not decide what the check sees."""
    rig.events.touch()
    rig.start_program(rig.home / "elsewhere.jsonl")
    agent = Agent(rig.home, "local", ROOT / "modules")
    agent.prepare_modules()
    agent.start()
    agent.set_section(rig.section(), "test")
    track = agent.progress("stepper").track
    now_s = agent.now_s()
    for step in range(60):
        track.add_events(now_s - 6.0 + 0.1 * step)
    planner = Planner(agent, Subject(agent))
    with pytest.raises(Refused) as refused:
        asyncio.run(planner.plan(RunSpec.model_validate(rig.spec())))
    assert refused.value.code == "SOURCE_LOOKS_TIMED"
    plan = asyncio.run(planner.plan(RunSpec.model_validate(rig.spec(accept_timed_source=True))))
    assert plan["certificate_kind"] == "demonstration"


def test_a_bad_section_names_key_rule_and_line_and_leaves_the_one_in_force(measured: Rig) -> None:
    rig = measured
    before = rig.client.call("section_show")
    bad = rig.section(extra_rule='pause_flet = { scope = "all" }')
    preview = rig.client.call("section_preview", text=bad)
    assert not preview["ok"]
    with pytest.raises(Refused) as refused:
        rig.client.call("section_set", text=bad, by="test")
    (error,) = refused.value.data["errors"]
    assert error["key"].endswith("pause_flet")
    assert error["rule"] == "stepper"
    assert bad.splitlines()[error["line"] - 1].startswith("pause_flet")
    assert rig.client.call("section_show") == before


def test_preview_lists_what_matches_and_changes_nothing(measured: Rig) -> None:
    rig = measured
    before = rig.client.call("hello")["section_version"]
    preview = rig.client.call("section_preview", text=rig.section(extra_node="pause = true", name="other"))
    assert preview["ok"]
    assert preview["matches"][0]["processes"][0]["pid"] == rig.started[1].pid
    assert any("pause" in change for change in preview["changes"])
    assert rig.client.call("hello")["section_version"] == before


def test_a_second_agent_for_the_node_is_refused(measured: Rig) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "nodes.agent", "--home", str(measured.home), "--node", "local"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 2
    assert "runs already" in second.stderr
    assert measured.client.call("hello")["node"] == "local"


def test_a_workload_that_runs_is_work_that_can_be_measured(measured: Rig, tmp_path: Path) -> None:
    """Without that no workload could ever be certified, and none would run beside a program under ``certified``."""
    rig = measured
    rig.client.call(
        "module_add", path=str(serving(tmp_path / "src", ["cooperative_throttle", "cooperative_pause"])), _timeout_s=300
    )
    named = {"feed": None, "work": "stranger/service:server"}
    idle = refusal(rig, **named)
    assert (idle.code, idle.remedy) == ("RUN_NO_WORK", "cotenant workload start stranger/server")
    rig.client.call("workload_start", module="stranger")
    for asked in (named, {"feed": None, "work": "stranger"}, {"feed": None, "work": "all"}):
        work = rig.client.call("run_plan", spec=rig.spec(**asked))["work"]
        (found,) = [item for item in work if item["stage"] == "service:server"]
        assert (found["module"], found["queued"] + found["running"]) == ("org.example.stranger", 1)
        assert found["capabilities"] == ["cooperative_pause", "cooperative_throttle"], (
            "its own, not its module's runner's"
        )
        assert all(item["stage"] != "act" for item in work), "the runner declares no throttle, and a duty is asked"
    fed = refusal(rig, work="stranger/service:server", feed="stranger/service:server")
    assert (fed.code, "without --feed" in fed.remedy) == ("RUN_BAD_FEED", True)
    rig.client.call("workload_stop", module="stranger")
    wait_for("it has ended", lambda: rig.client.call("workload_list") == [])
    every = rig.client.call("run_plan", spec=rig.spec(feed="llmserve/selftest", work="all"))["work"]
    assert [item["stage"] for item in every] == ["selftest"]
