"""Rules on a real agent with a real program and real work: the graded reaction, ceilings, lowering, conditions."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from policies.refusal import Refused
from tests.node.agent_rig import ROOT, Rig, wait_for

MODULE = ROOT / "tests/node/foreign_module"
FAST = "[node.defaults]\nenter_for_s = 0\nexit_after_s = 2\ncooldown = { base_s = 0, max_s = 0 }\n"
PAUSE_WHEN = "pause_fleet = true\nactive_when = "


@pytest.fixture
def cpu_node(rig: Rig) -> Rig:
    """An agent with a program that is not protected yet, and a module whose work uses no device."""
    rig.start_agent()
    rig.start_program()
    rig.client.call("module_add", path=str(one_core(rig.home)), _timeout_s=300)
    return rig


def one_core(home: Path) -> Path:
    """The foreign module, declaring one core."""
    found = home / "one-core"
    found.mkdir()
    for file in MODULE.iterdir():
        if file.is_file():
            text = file.read_text().replace("cpu = 2", "cpu = 1")
            (found / file.name).write_text(text)
    return found


def rule(rig: Rig) -> str:
    return f'[[rule]]\nid = "stepper"\nmatch = {{ argv_regex = "{rig.stepper}" }}\n'


def work(rig: Rig) -> int:
    """Queue a job that spins and obeys."""
    job = rig.client.call("job_submit", module="stranger", payload={"do": "work", "seconds": 600})
    return int(job["job"])


def job(rig: Rig, number: int) -> dict[str, Any]:
    found: dict[str, Any] = rig.client.call("job_show", job=number)
    return found


def state(rig: Rig, number: int, wanted: str, code: str | None = None) -> bool:
    found = job(rig, number)
    return found["state"] == wanted and (code is None or found["code"] == code)


def codes(rig: Rig) -> list[str]:
    return [entry["code"] for entry in rig.timeline()]


def test_other_work_waits_for_a_baseline_yields_to_harm_and_says_why(cpu_node: Rig) -> None:
    rig = cpu_node
    text = f"""
[node.defaults]
enter_for_s = 0
exit_after_s = 4
cooldown = {{ base_s = 2, backoff = 1.0, max_s = 2 }}
{rule(rig)}
[rule.protect]
metric = "progress_rate"
max_slowdown = 0.4
window_s = 6
source = {{ jsonl = "{rig.events}", event = "step_done" }}
"""
    rig.client.call("section_set", text=text, by="test")
    number = work(rig)
    wait_for("it waits for the baseline", lambda: state(rig, number, "waiting", "PROTECTION_BASELINE"))
    told = rig.client.call("explain", job=number)
    assert [reason["code"] for reason in told["reasons"]] == ["PROTECTION_BASELINE"]
    assert told["reasons"][0]["remedy"]
    wait_for("the program was measured and the work runs", lambda: state(rig, number, "running"), 240)
    assert "PROTECTION_BASELINE" in codes(rig)
    # a program that stands still is harmed, whoever is at fault
    program = rig.started[1]
    os.kill(program.pid, signal.SIGSTOP)
    wait_for("the work is held", lambda: state(rig, number, "held"), 120)
    assert "PROTECTION_HARM" in codes(rig)
    assert "stepper" in job(rig, number)["reason"]
    node = rig.client.call("explain")
    assert any("paused" in words for words in node["rules"][0]["does"])
    assert [each["job"] for each in node["jobs"]] == [number]
    os.kill(program.pid, signal.SIGCONT)
    wait_for("the work goes on", lambda: state(rig, number, "running"), 240)
    assert "PROTECTION_RESUME" in codes(rig)


def test_ceilings_hold_lowering_lowers_and_both_end_with_the_rule(cpu_node: Rig) -> None:
    rig = cpu_node
    jobs = [work(rig), work(rig)]
    slots = min(2, len(os.sched_getaffinity(0)))
    for number in jobs[:slots]:
        wait_for("it runs", lambda number=number: state(rig, number, "running"))
    rig.client.call(
        "section_set", text=FAST + rule(rig) + "cap_fleet = { slots = 1, threads = 1 }\nlower_fleet = true\n", by="test"
    )
    wait_for("the newer one is held", lambda: not state(rig, jobs[1], "running"))
    assert state(rig, jobs[0], "running")
    wait_for(
        "the one that runs was told its threads",
        lambda: any(
            json.loads(path.read_text()).get("threads") == 1
            for path in rig.home.glob("nodes/local/jobs/*/work/control.json")
        ),
    )
    wait_for("it is lowered", lambda: "PROTECTION_LOWERED" in codes(rig))
    rig.client.call("section_set", text=FAST, by="test")
    for number in jobs[:slots]:
        wait_for("it runs again", lambda number=number: state(rig, number, "running"))
    wait_for("it is raised", lambda: "PROTECTION_RAISED" in codes(rig))


def test_a_condition_on_use_decides_when_the_rule_is_active(cpu_node: Rig) -> None:
    rig = cpu_node

    def active() -> bool:
        return any(found["active"] for found in rig.client.call("status")["rules"])

    rig.client.call("section_set", text=FAST + rule(rig) + PAUSE_WHEN + "{ footprint_gb_gt = 0.001 }\n", by="test")
    wait_for("a small footprint is enough", active)
    rig.client.call("section_set", text=FAST + rule(rig) + PAUSE_WHEN + "{ footprint_gb_gt = 1000 }\n", by="test")
    wait_for("it holds no terabyte", lambda: not active())
    rig.client.call(
        "section_set", text=FAST + rule(rig) + PAUSE_WHEN + "{ footprint_gb_gt = 1000, cpu_cores_gt = 0 }\n", by="test"
    )
    wait_for("any one of the conditions is enough", active)


def test_two_sections_bind_together_and_an_earlier_version_is_restored(cpu_node: Rig) -> None:
    rig = cpu_node
    number = work(rig)
    wait_for("it runs", lambda: state(rig, number, "running"))
    own = FAST + rule(rig) + "lower_fleet = true\n"
    first = rig.client.call("section_set", text=own, by="test")["version"]
    fleet = FAST + rule(rig) + "pause_fleet = true\n"
    preview = rig.client.call("section_preview", text=fleet, scope="fleet")
    assert [match["rule"] for match in preview["matches"]] == ["stepper", "fleet:stepper"]
    assert preview["held"] == [number]
    assert preview["held_why"][0]["reasons"][0]["code"] == "PROTECTION_PAUSE"
    assert state(rig, number, "running"), "a preview changes nothing"
    rig.client.call("section_set", text=fleet, by="test", scope="fleet")
    wait_for("the fleet's rule holds it", lambda: state(rig, number, "held"))
    rig.client.call("section_set", text="", by="test")
    wait_for(
        "the fleet's rule alone is judged",
        lambda: [each["id"] for each in rig.client.call("status")["rules"]] == ["fleet:stepper"],
    )
    rig.client.call("section_set", text="", by="test", scope="fleet")
    wait_for("nothing holds it any more", lambda: state(rig, number, "running"))
    kept = rig.client.call("section_show", version=first)
    assert kept["text"] == own
    assert len(rig.client.call("section_versions")) == 4


def test_what_a_cooldown_holds_stays_held_when_the_agent_is_killed(cpu_node: Rig) -> None:
    rig = cpu_node
    waits = "[node.defaults]\nenter_for_s = 0\nexit_after_s = 2\ncooldown = { base_s = 600 }\n"
    rig.client.call("section_set", text=f"{waits}{rule(rig)}pause_fleet = true\n", by="test")
    wait_for("the rule is active", lambda: [each["active"] for each in rig.client.call("status")["rules"]] == [True])
    program = rig.started[1]
    program.kill()
    program.wait()
    wait_for("it cools down", lambda: not rig.client.call("status")["rules"][0]["active"])
    assert rig.agent is not None
    rig.agent.kill()
    rig.agent.wait()
    rig.start_agent()
    (found,) = rig.client.call("status")["rules"]
    assert (found["active"], found["holds"]) == (False, True)
    assert found["resumes_in_s"] is not None
    assert found["resumes_in_s"] <= 600
    assert state(rig, work(rig), "waiting", "PROTECTION_PAUSE")


def test_no_module_is_built_or_asked_while_fleet_work_is_held_unless_a_person_insists(cpu_node: Rig) -> None:
    rig = cpu_node
    rig.client.call("section_set", text="[node]\npause = true\n", by="test")
    with pytest.raises(Refused) as refused:
        rig.client.call("module_doctor", module="stranger")
    assert refused.value.code == "MODULE_HELD"
    assert "node.pause" in refused.value.why
    assert "--now" in refused.value.remedy
    with pytest.raises(Refused) as refused:
        rig.client.call("module_add", path=str(MODULE))
    assert refused.value.code == "MODULE_HELD"
    assert rig.client.call("module_doctor", module="stranger", now=True, _timeout_s=300)["health"] == "healthy"
    assert "--now" in refused.value.remedy
    assert rig.client.call("module_add", path=str(MODULE), now=True, _timeout_s=300)["state"] == "ready"


def test_the_modules_of_the_product_wait_until_nothing_holds_fleet_work(rig: Rig) -> None:
    rig.start_agent()
    wait_for("it is ready", lambda: rig.client.call("modules")[0]["state"] == "ready", 300)
    rig.client.call("section_set", text="[node]\npause = true\n", by="test")
    assert rig.agent is not None
    rig.agent.terminate()
    rig.agent.wait(60)
    shutil.rmtree(rig.home / "nodes/local/modules")
    rig.start_agent()
    why = wait_for("it waits", lambda: "waits" in (said := rig.client.call("modules")[0]["why"]) and said, 60)
    assert "node.pause" in why
    rig.client.call("section_set", text="", by="test")
    wait_for("it is ready", lambda: rig.client.call("modules")[0]["state"] == "ready", 300)
