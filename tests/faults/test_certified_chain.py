"""The whole chain on one node, live: a sweep certifies, the governor admits, the program changes, work waits, a run renews.

Each step must follow from the verdict before it, whichever it was: that levels pass as they should is shown in simulation. So
that a pass is likely on a machine that others share, program and fleet work have a core each, the program is short of nothing
(where this account may give it that), it stamps its own lines, and the margin is wide. What was seen is printed (``-s``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from policies.certificate.expiry import due
from tests.faults.test_whole_node import START_S, Owner
from tests.node.agent_rig import wait_for

LEVELS = (0.1, 0.2)
# 8 blocks fit: one look, so that a level takes under two minutes.
SHORT = ("--window", "5", "--washout", "1", "--margin", "0.2", "--max-hours", "0.027")
WORK = ("--work", "llmserve/selftest", "--feed", "llmserve/selftest")
# These only end a test that would hang: a busy machine takes minutes to start Prefect or a flow.
SWEEP_S, STEP_S = 1200.0, 420.0

# Busy for a third of its time (a program that uses under 5 % of a core has nothing to protect), in steps of irregular length.
TRAINER = """
import json, random, sys, time
random.seed(1)
with open(sys.argv[1], "a") as out:
    while True:
        time.sleep(random.uniform(0.02, 0.05))
        sum(i * i for i in range(150000))
        print(json.dumps({"event": "step_done", "t": time.time()}), file=out, flush=True)
"""
SECTION = """
[node]
duty_device = "cpu"
accept_demonstration = true
gpu_jobs = "{gpu_jobs}"
[node.defaults]
enter_for_s = 0
exit_after_s = 2
cooldown = {{ base_s = 2, backoff = 1.0, max_s = 2 }}
[[rule]]
id = "trainer"
match = {{ argv_regex = "{program}" }}
protect = {{ metric = "progress_rate", max_slowdown = 0.5, source = {{ jsonl = "{events}", event = "step_done", time_key = "t" }} }}
"""


class Chain(Owner):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        # That flows give way to all other work has tests of its own; here it would only make them late.
        self.env["COTENANT_FLOW_PRIORITY"] = "normal"
        cores = sorted(os.sched_getaffinity(0))
        self.cores = ({cores[0]}, set(cores[1:] or cores))  # the program's, everybody else's
        self.program = home / "trainer.py"
        self.program.write_text(TRAINER)
        self.running: subprocess.Popen[bytes] | None = None
        self._since_s = time.monotonic()

    def say(self, words: str) -> None:
        print(f"{time.monotonic() - self._since_s:6.0f} s  {words}", flush=True)

    def train(self) -> None:
        process = subprocess.Popen([sys.executable, str(self.program), str(self.rig.events)], start_new_session=True)
        self.running = process
        self.rig.started.append(process)
        os.sched_setaffinity(process.pid, self.cores[0])
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, -20)
            Path(f"/proc/{process.pid}/autogroup").write_text("-20")

    def retrain(self) -> None:
        """Another program under the same rule."""
        assert self.running is not None
        self.program.write_text(TRAINER + "# another version\n")
        self.running.terminate()
        self.running.wait(60)
        self.train()

    def put_in_force(self, gpu_jobs: str) -> None:
        file = self.home / "section.toml"
        file.write_text(SECTION.format(gpu_jobs=gpu_jobs, program=self.program, events=self.rig.events))
        done = self.types("protection", "set", "local", str(file), "--yes")
        assert done.returncode == 0, done.stderr

    def is_read(self) -> bool:
        (source,) = self.rig.client.call("sources")
        rules = self.rig.client.call("status")["rules"]
        return bool(source["state"] == "ok" and source["rate"] and rules and rules[0]["active"])

    def certificates(self, state: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.rig.client.call("certificates", _timeout_s=120.0)
        return [each for each in found if state in (None, each["validity"]["state"])]

    def job(self, number: int) -> dict[str, Any]:
        return dict(self.rig.client.call("job_show", job=number))

    def over(self, sweep: str) -> dict[str, Any] | None:
        """The report once the sweep has given the node back."""
        if not self.rig.timeline("SWEEP_RELEASED"):
            return None
        found = self.asks("protection", "ab", "show", sweep)
        return found if found["state"] != "unfinished" else None

    def governed(self) -> dict[str, Any] | None:
        view: dict[str, Any] = self.rig.client.call("duty")
        return view if view["state"] == "running" and view["budget"] else None

    def waits_uncertified(self, job: int) -> None:
        """It does not run, and says why with the code and what to do; a job that is held tells it as one that waits does."""

        def said() -> dict[str, Any] | None:
            reasons = self.rig.client.call("explain", job=job)["reasons"]
            return next((reason for reason in reasons if reason["code"] == "GPU_NOT_CERTIFIED"), None)

        reason = wait_for("the job waits, with its code", said, STEP_S)
        assert "cotenant protection ab" in reason["remedy"]
        assert self.job(job)["state"] != "running"
        budget = self.rig.client.call("duty")["budget"]
        assert not budget, f"device work is held, and yet the budget is {budget}"


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Chain]:
    found = Chain(tmp_path)
    yield found
    found.types("down", limit_s=180)
    found.rig.stop()


def up(owner: Chain) -> None:
    """As `taskset -c CORES cotenant up`: what it starts, the fleet work too, keeps to its own cores."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, owner.cores[1])
    try:
        done = owner.types("up", "--detach", limit_s=START_S)
    finally:
        os.sched_setaffinity(0, mine)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_sweep_certified_governed_stale_waiting_renewed(owner: Chain) -> None:
    rig = owner.rig
    owner.train()
    up(owner)
    owner.put_in_force("when_no_gpu_protected")
    wait_for("llmserve is ready", lambda: rig.client.call("modules")[0]["state"] == "ready", STEP_S)
    wait_for("the program is read", owner.is_read, STEP_S)
    owner.say("up, and the program is read")

    # the sweep, by the command, to its end
    levels = ",".join(f"{level:g}" for level in LEVELS)
    asked = ("--rule", "trainer", *WORK, *SHORT, "--levels", levels, "--yes", "--json")
    begun = owner.types("protection", "ab", "sweep", "local", *asked)
    assert begun.returncode == 0, begun.stderr
    sweep = json.loads(begun.stdout)["data"]["sweep"]
    report = wait_for("the sweep is over", lambda: owner.over(sweep), SWEEP_S)
    owner.say(report["sentence"])
    passed = [row["level"] for row in report["rows"] if row["state"] == "passed"]
    assert passed == list(LEVELS[: len(passed)]), "in order, from the lowest"
    assert report["certified"] == (max(passed) if passed else None)
    failed = [row for row in report["rows"] if row["state"] == "not passed"]
    assert len(failed) == (report["state"] == "stopped") == (len(passed) < len(LEVELS))
    owned = owner.certificates()
    assert sorted(each["duty_asked"] for each in owned) == passed
    assert all(0.0 < each["certified_duty"] <= each["duty_asked"] for each in owned)
    assert all(each["demonstration"] for each in owned)

    # certified admission: at the certified duty, or not at all
    owner.put_in_force("certified")
    job = rig.client.call(
        "job_submit", module="llmserve", stage="selftest", payload={"prompts": 1_000_000, "max_tokens": 32, "seed": 7}
    )["job"]
    if not passed:
        owner.waits_uncertified(job)
        owner.say("nothing is certified: the job waits, and says so")
        return
    assert {each["certificate"] for each in owner.certificates("valid")} == {each["certificate"] for each in owned}
    ceiling = max(each["certified_duty"] for each in owned)
    duty = wait_for("the governor runs", owner.governed, STEP_S)
    assert duty["ceiling"] == ceiling
    assert 0.0 < duty["budget"] <= ceiling
    wait_for("the job runs", lambda: owner.job(job)["state"] == "running", STEP_S)
    assert 0.0 < owner.job(job)["duty"] <= ceiling
    owner.say(f"the job runs at duty {owner.job(job)['duty']:g} of ceiling {ceiling:g}")

    # nothing of another program was measured
    owner.retrain()
    wait_for("the certificates are stale", lambda: len(owner.certificates("stale")) == len(owned), STEP_S)
    owner.waits_uncertified(job)
    assert {entry["data"]["certificate"] for entry in rig.timeline("CERT_STALE")} >= {
        max(owned, key=lambda each: each["certified_duty"])["certificate"]
    }
    told = due(owner.certificates(), datetime.now(UTC), timedelta(days=3))
    assert {each.state for each in told} == {"stale"}
    owner.say("another program: stale, and the job waits")

    # the command that the certificate names renews it
    newest = max(owner.certificates(), key=lambda each: each["certified_duty"])
    renew = shlex.split(newest["validity"]["renew"])[1:]
    wait_for("the new program is read", owner.is_read, STEP_S)
    again = owner.types(*renew, "--yes", "--watch", "--json", limit_s=SWEEP_S)
    record = owner.run(json.loads(again.stdout)["data"]["run"])
    assert record is not None
    owner.say(f"renewal: exit {again.returncode}, {record['ending']}")
    assert (record["ending"] == "no slowdown shown") == (again.returncode == 0), again.stderr[-2000:]
    valid = owner.certificates("valid")
    assert bool(valid) == bool(record["certificate"])
    if not valid:
        assert record["ending"] != "no slowdown shown" or record["certificate_refused"]
        owner.waits_uncertified(job)
        return
    assert [each["run"] for each in valid] == [record["run"]]
    wait_for("the job runs again", lambda: owner.job(job)["state"] == "running", STEP_S)
    duty = wait_for("the governor runs again", owner.governed, STEP_S)
    assert 0.0 < duty["budget"] <= duty["ceiling"] == valid[0]["certified_duty"]
    owner.say(f"the job runs again, at most at {valid[0]['certified_duty']:g}")
