"""A block on a real agent, with a real program and real fleet work: hold, grant, counts, dose, and what leaves it out."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from policies.harness.rows import BlockRow
from policies.harness.schedule import coin
from policies.harness.validity import harm_suspected
from policies.refusal import Refused
from tests.node.agent_rig import Rig, cpu_s, runners_of, wait_for

# For tests that break into a window: on a busy host a short one would be over before they could.
LONG = {"window_s": 60.0, "max_hours": 1.0}


def in_background(rig: Rig, number: int, order: str) -> tuple[threading.Thread, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []

    def ask() -> None:
        rows.append(rig.client.call("run_block", run="run-1", number=number, order=order, _timeout_s=400))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, rows


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def test_a_block_counts_what_the_program_did_and_meters_what_the_work_used(measured: Rig) -> None:
    rig = measured
    rig.begin()
    thread, rows = in_background(rig, 1, "on_first")
    rig.wait_window("on")
    before, used = lines(rig.events), cpu_s(runners_of(rig.home))
    wait_for("the ON window's end", lambda: rig.part()[1] != "window", 60)
    on_lines, on_used = lines(rig.events) - before, cpu_s(runners_of(rig.home)) - used
    rig.wait_window("off", 60)
    used = cpu_s(runners_of(rig.home))
    wait_for("the OFF window's end", lambda: rig.part()[1] != "window", 60)
    off_used = cpu_s(runners_of(rig.home)) - used
    thread.join(120)
    (row,) = rows
    assert row["state"] == "counted", row
    assert row["on"]["position"] == 1
    assert row["off"]["position"] == 2
    # What the test counted in the file itself, give or take the edges that it saw late.
    assert row["on"]["events"] == pytest.approx(on_lines, rel=0.35)
    # The dose is what the kernel says the runner used (the test looks a little later than the agent at both edges).
    assert row["on"]["dose"] * row["on"]["length_s"] == pytest.approx(on_used, abs=0.3)
    assert 0.8 * 0.1 <= row["on"]["dose"] <= 0.1 + 0.1
    assert row["on"]["units"][0]["asked"] == pytest.approx(0.1)
    assert off_used <= 0.1, "the work ran in the OFF window"
    assert row["off"]["dose"] <= 0.02
    assert rig.client.call("run_block", run="run-1", number=1, order="on_first") == row, (
        "a journaled block is not measured again"
    )
    rig.client.call("run_end", run="run-1", ending="aborted")
    wait_for("the feed is gone with its run", lambda: not runners_of(rig.home))


def arm_of(rig: Rig) -> tuple[dict[int, Any], dict[int, Any]]:
    """(program, work) as they are now: by pid since when it runs, its folder, command and whole environment."""

    def facts(pid: int) -> tuple[str, str, bytes, bytes]:
        place = Path(f"/proc/{pid}")
        started = (place / "stat").read_text().rsplit(")", 1)[1].split()[19]
        return (
            started,
            str((place / "cwd").readlink()),
            (place / "cmdline").read_bytes(),
            (place / "environ").read_bytes(),
        )

    return {rig.started[1].pid: facts(rig.started[1].pid)}, {pid: facts(pid) for pid in runners_of(rig.home)}


def test_case_115_the_arms_of_a_block_differ_in_nothing_but_whether_the_work_may_run(measured: Rig) -> None:
    rig = measured
    rig.begin()
    thread, rows = in_background(rig, 1, "on_first")
    seen = {}
    for arm in ("on", "off"):
        rig.wait_window(arm)
        seen[arm] = arm_of(rig)
    thread.join(120)
    assert rows[0]["state"] == "counted", rows
    assert seen["on"][1], "the work was there"
    assert seen["on"] == seen["off"]
    rig.client.call("run_abort", run="run-1")


def test_other_flows_wait_while_a_run_measures_and_the_section_stays(measured: Rig) -> None:
    rig = measured
    rig.begin(**LONG, first="off_first")
    thread, rows = in_background(rig, 1, "off_first")
    rig.wait_window("off")
    with pytest.raises(Refused) as refused:
        rig.client.call("admit_flow", flow="llmserve-batch")
    assert "run-1" in refused.value.why
    told = refused.value
    flows = rig.client.call("explain")["flows"]
    assert (flows["code"], flows["why"], flows["remedy"]) == (told.code, told.why, told.remedy), "as its worker is told"
    with pytest.raises(Refused) as refused:
        rig.client.call("section_set", text="", by="test")
    assert refused.value.code == "RUN_LOCKED"
    with pytest.raises(Refused) as refused:
        rig.client.call("module_add", path=str(rig.home))
    assert refused.value.code == "RUN_LOCKED"
    with pytest.raises(Refused) as refused:
        rig.client.call("module_doctor", module="llmserve", now=True)
    assert refused.value.code == "RUN_LOCKED"
    with pytest.raises(Refused) as refused:
        rig.begin(run="run-2")
    assert refused.value.code == "RUN_LOCKED"
    assert "run-1" in refused.value.why
    rig.client.call("run_abort", run="run-1")
    thread.join(60)
    assert rows[0]["state"] == "cut"
    assert rig.client.call("run_show", run="run-1")["ending"] == "aborted"
    assert rig.client.call("admit_flow", flow="llmserve-batch") == {}
    assert rig.client.call("explain")["flows"] is None


def test_a_program_that_dies_while_the_work_runs_leaves_the_block_out_and_is_held_against_the_work(
    measured: Rig,
) -> None:
    rig = measured
    rig.begin(**LONG)
    thread, rows = in_background(rig, 1, "on_first")
    rig.wait_window("on")
    rig.started[1].kill()
    thread.join(60)
    (row,) = rows
    assert (row["state"], row["reason"], row["reason_arm"], row["extra"]["part"]) == (
        "left_out",
        "program_died",
        "on",
        "window",
    )
    assert row["on"] is None, "a window that was cut short has no count"


def test_a_program_that_dies_between_two_blocks_died_in_the_arm_before(measured: Rig) -> None:
    rig = measured
    seed = next(s for s in range(1000) if coin(s, 1) == "off_first")
    rig.begin(seed=seed)
    first = rig.client.call("run_block", run="run-1", number=1, order="off_first", _timeout_s=400)
    assert first["state"] == "counted", first
    old = rig.started[1]
    old.kill()
    old.wait(30)
    rig.start_program()

    def another_runs() -> bool:
        processes = rig.client.call("status")["rules"][0]["processes"]
        return bool(processes) and all(process["pid"] != old.pid for process in processes)

    wait_for("the program was started again", another_runs)
    second = rig.client.call("run_block", run="run-1", number=2, order=coin(seed, 2), _timeout_s=400)
    assert (second["state"], second["reason"], second["reason_arm"]) == ("left_out", "program_died", "on")
    assert harm_suspected([BlockRow.model_validate(row) for row in (first, second)]) is not None


def test_a_source_that_stops_reading_leaves_the_block_out(measured: Rig) -> None:
    rig = measured
    rig.begin(**LONG, first="off_first")
    thread, rows = in_background(rig, 1, "off_first")
    rig.wait_window("off")
    rig.events.unlink()
    rig.events.mkdir()
    thread.join(120)
    assert (rows[0]["state"], rows[0]["reason"], rows[0]["reason_arm"]) == ("left_out", "source_unreadable", "off")


def add_module(rig: Rig, name: str, does: str) -> None:
    """A module with one stage ``sit`` for the CPU, whose runner is healthy and ``does`` this; ready on the node."""
    bundle = rig.home / name
    bundle.mkdir()
    (bundle / "oarbank-module.toml").write_text(
        f'manifest = 1\n[module]\nid = "dev.example.{name}"\nversion = "1"\n[requires]\nrunner_protocol = 1\n'
        f'[runner]\nexec = ["python", "-I", "{{bundle}}/{name}.py"]\nruntime = {{ kind = "python" }}\n'
        'capabilities = ["cancellable", "cooperative_pause", "cooperative_throttle"]\n'
        'stop_grace_s = 5\ngpu = { use = "none" }\n'
        '[[stages]]\nname = "sit"\ndefault = true\ndeterminism = "none"\ntimeout_s = 600\n'
        "requires = { resources = { cpu = 1, mem_gb = 0.1 } }\n"
    )
    (bundle / f"{name}.py").write_text(
        "import json, os, sys, time\n"
        "if sys.argv[1] == 'doctor':\n"
        "    said = {'runner_protocol': {'supported': [1]}, 'health': 'healthy', 'capabilities': [], 'attrs': {}, 'checks': []}\n"
        "    print(json.dumps(said))\n"
        "    sys.exit(0)\n" + does
    )
    (bundle / "conformance.json").write_text(
        '{"duty_specs": [{"name": "x", "stage": "sit", "duty": 0.3, "window_s": 4, "payload": {}}]}'
    )
    assert rig.client.call("module_add", path=str(bundle), _timeout_s=300)["state"] == "ready"


IDLES = """
from cotenant.sdk.control import Control, Stopped
ctl = Control()
ctl.phase('work')
try:
    while True:
        ctl.safe_point()
        time.sleep(0.05)
except Stopped:
    sys.exit(ctl.acknowledge_stop())
"""


def test_work_that_does_not_use_its_duty_is_no_dose(measured: Rig) -> None:
    """Its runner runs, obeys and does nothing: its ON window must not count as harmless."""
    rig = measured
    add_module(rig, "idle", IDLES)
    rig.begin(work="idle/sit", feed="idle/sit")
    row = rig.client.call("run_block", run="run-1", number=1, order="on_first", _timeout_s=400)
    assert (row["state"], row["reason"], row["reason_arm"]) == ("left_out", "no_dose", "on")
    assert row["on"]["dose"] < 0.08


FAILS = """
with open(os.path.join(os.environ['OARBANK_WORKDIR'], 'failure.json'), 'w') as file:
    json.dump({'reason': 'bad_input', 'retryable': False, 'detail': 'no'}, file)
sys.exit(2)
"""


def test_a_feed_that_fails_for_good_ends_its_block_at_once(measured: Rig) -> None:
    """Its runner says that it will never do; the block is left out without waiting five minutes for it."""
    rig = measured
    add_module(rig, "never", FAILS)
    rig.begin(work="never/sit", feed="never/sit")
    row = rig.client.call("run_block", run="run-1", number=1, order="on_first", _timeout_s=120)
    assert (row["state"], row["reason"], row["reason_arm"]) == ("left_out", "no_dose", "on")
    assert "failed for good: bad_input" in row["reason_detail"]
    assert len(rig.client.call("job_list")) == 1


def test_a_phase_of_the_rule_leaves_the_block_out_and_holds_the_work(rig: Rig) -> None:
    phases = rig.home / "phases.jsonl"
    phases.write_text('{"event": "upload_end"}\n')
    rig.start_agent()
    rig.start_program()
    during = (
        f'immediate = true\n[[rule.during]]\nsource = {{ jsonl = "{phases}", enter = "upload", exit = "upload_end" }}\n'
        'pause_fleet = { scope = "gpu" }\n'
    )
    rig.protect(extra_rule=during)
    rig.begin(**LONG)
    thread, rows = in_background(rig, 1, "on_first")
    rig.wait_window("on")
    with phases.open("a") as out:
        out.write('{"event": "upload"}\n')
    thread.join(60)
    assert (rows[0]["state"], rows[0]["reason"]) == ("left_out", "phase")
    used = cpu_s(runners_of(rig.home))
    wait_for("the phase in the timeline", lambda: rig.timeline("PROTECTION_PHASE_ON"))
    wait_for("the work is held", lambda: rig.client.call("job_list")[0]["state"] == "held")
    assert cpu_s(runners_of(rig.home)) - used < 0.5


def test_null_and_self_runs_run_no_work_in_either_window(measured: Rig) -> None:
    rig = measured
    for kind in ("null", "self"):
        run = f"run-{kind}"
        rig.begin(run=run, kind=kind, feed=None, duty=None)
        row = rig.client.call("run_block", run=run, number=1, order="on_first", _timeout_s=400)
        assert row["state"] == "counted", row
        assert not runners_of(rig.home)
        rig.client.call("run_end", run=run, ending="inconclusive")
        with pytest.raises(Refused):
            rig.client.call("certificate_offer", run=run)
