"""The whole chain on one node, live: a sweep certifies, the governor admits, the program changes, work waits, a run renews.

Each step must follow from the verdict before it, whichever it was: that levels pass as they should is shown in simulation. The
program sleeps between its steps and the margin is wide, so that what the machine does beside it decides little.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_whole_node import START_S, Owner
from tests.node.agent_rig import wait_for

LEVELS = (0.1, 0.2)
SHORT = ("--window", "5", "--washout", "1", "--margin", "0.5", "--max-hours", "0.06")
WORK = ("--work", "llmserve/selftest", "--feed", "llmserve/selftest")
SWEEP_S, STEP_S = 1500.0, 420.0


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    found = Owner(tmp_path)
    # That flows give way to all other work has tests of its own; here it would only make them late.
    found.env["COTENANT_FLOW_PRIORITY"] = "normal"
    yield found
    found.types("down", limit_s=180)
    found.rig.stop()


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_sweep_certified_governed_stale_waiting_renewed(owner: Owner) -> None:
    rig = owner.rig
    # Busy enough to be seen to use the device (5 % of it) on a machine that gives it little.
    rig.stepper.write_text(rig.stepper.read_text().replace("range(20000)", "range(400000)"))
    program = rig.start_program()
    up = owner.types("up", "--detach", limit_s=START_S)
    assert up.returncode == 0, up.stderr
    put_in_force(owner, rig.section())
    wait_for("llmserve is ready", lambda: rig.client.call("modules")[0]["state"] == "ready", STEP_S)
    wait_for("the program is read", lambda: rig.client.call("sources")[0]["rate"], STEP_S)

    # the sweep, by the command, to its end
    levels = ",".join(f"{level:g}" for level in LEVELS)
    begun = owner.types(
        "protection", "ab", "sweep", "local", "--rule", "stepper", *WORK, *SHORT, "--levels", levels, "--yes", "--json"
    )
    assert begun.returncode == 0, begun.stderr
    sweep = json.loads(begun.stdout)["data"]["sweep"]
    report = wait_for("the sweep is over", lambda: over(owner, sweep), SWEEP_S)
    passed = [row["level"] for row in report["rows"] if row["state"] == "passed"]
    assert report["certified"] == (max(passed) if passed else None)
    assert [row["state"] for row in report["rows"]].count("not passed") == (report["state"] == "stopped")
    owned = certificates(owner)
    assert sorted(each["duty_asked"] for each in owned) == passed
    assert all(each["certified_duty"] <= each["duty_asked"] for each in owned)
    assert rig.timeline("SWEEP_STARTED")
    assert rig.timeline("SWEEP_RELEASED")

    # certified admission: at the certified duty, or not at all
    put_in_force(owner, rig.section(extra_node='gpu_jobs = "certified"'))
    job = rig.client.call(
        "job_submit", module="llmserve", stage="selftest", payload={"prompts": 1_000_000, "max_tokens": 32, "seed": 7}
    )["job"]
    if not passed:
        waits_uncertified(owner, job)
        return
    ceiling = max(each["certified_duty"] for each in owned)
    duty = wait_for("the governor runs", lambda: running(rig.client.call("duty")), STEP_S)
    assert duty["ceiling"] == ceiling
    assert 0.0 < duty["budget"] <= ceiling
    wait_for("the job runs", lambda: rig.client.call("job_show", job=job)["state"] == "running", STEP_S)

    # another program under the same rule: nothing of it was measured
    rig.stepper.write_text(rig.stepper.read_text() + "\n# another version\n")
    program.terminate()
    program.wait(60)
    rig.start_program()
    wait_for(
        "the certificates are stale",
        lambda: {each["validity"]["state"] for each in certificates(owner)} == {"stale"},
        STEP_S,
    )
    waits_uncertified(owner, job)

    # the command that the certificate names renews it
    newest = max(certificates(owner), key=lambda each: each["certified_duty"])
    renew = shlex.split(newest["validity"]["renew"])[1:]
    wait_for("the new program is read", lambda: rig.client.call("sources")[0]["rate"], STEP_S)
    again = owner.types(*renew, "--yes", "--watch", "--json", limit_s=SWEEP_S)
    verdict = json.loads(again.stdout)["data"]
    valid = [each for each in certificates(owner) if each["validity"]["state"] == "valid"]
    assert bool(valid) == (again.returncode == 0), (verdict, again.stderr[-2000:])
    if valid:
        wait_for("the job runs again", lambda: rig.client.call("job_show", job=job)["state"] == "running", STEP_S)
    else:
        waits_uncertified(owner, job)


def put_in_force(owner: Owner, text: str) -> None:
    file = owner.home / "section.toml"
    file.write_text(text)
    done = owner.types("protection", "set", "local", str(file), "--yes")
    assert done.returncode == 0, done.stderr


def over(owner: Owner, sweep: str) -> dict[str, Any] | None:
    """The report once the sweep has given the node back."""
    if not owner.rig.timeline("SWEEP_RELEASED"):
        return None
    done = owner.types("protection", "ab", "show", sweep, "--json")
    found: dict[str, Any] = json.loads(done.stdout)["data"]
    return found if found["state"] != "unfinished" else None


def certificates(owner: Owner) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = owner.rig.client.call("certificates", _timeout_s=120.0)
    return found


def running(view: dict[str, Any]) -> dict[str, Any] | None:
    return view if view["state"] == "running" and view["budget"] else None


def waits_uncertified(owner: Owner, job: int) -> None:
    """It does not run, and says why with the code and what to do; a job that is held tells it as one that waits does."""

    def said() -> dict[str, Any] | None:
        found: dict[str, Any] = owner.rig.client.call("explain", job=job)
        return next((reason for reason in found["reasons"] if reason["code"] == "GPU_NOT_CERTIFIED"), None)

    reason = wait_for("the job waits, with its code", said, STEP_S)
    assert "cotenant protection ab" in reason["remedy"]
    assert owner.rig.client.call("job_show", job=job)["state"] != "running"
