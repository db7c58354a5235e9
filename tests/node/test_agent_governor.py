"""The duty governor and the compliance check live: a real trainer, real units, a certificate from the issuing code.

Everything is judged from outside where it can be: the units' processor time from /proc, the control documents on disk,
the order and times of the journal's entries.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.duty_text import duty_text
from tests.node.agent_rig import ROOT, wait_for
from tests.node.governor_rig import DUTY, PACE, PATIENCE_S, SELFTEST, TICK_S, GovernorRig, two_cores
from tests.node.jobs_rig import foreign
from tests.node.test_workloads import module as serving

pytestmark = [
    pytest.mark.skipif(two_cores() is None, reason="one processor: the test could not choose contention"),
    # Each waits for what comes when the machine lets it; a minute's baseline is twelve seconds at this pace.
    pytest.mark.timeout(1200),
]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[GovernorRig]:
    cores = two_cores()
    assert cores is not None
    found = GovernorRig(tmp_path, *cores)
    found.start_trainer()
    yield found
    found.stop()


def held_within(rig: GovernorRig, ceiling: float, seconds: float) -> float:
    """Mean processor share of all units together over a stretch, read here and not by the product."""
    before, began = rig.runners_cpu_s(), time.monotonic()
    time.sleep(seconds)
    share = (rig.runners_cpu_s() - before) / (time.monotonic() - began)
    assert share <= ceiling + 0.05, f"the units took {share:.3f} of a core, the ceiling is {ceiling}"
    return share


def test_a_budget_runs_under_the_ceiling_and_is_taken_back_when_the_source_or_the_program_fails(
    rig: GovernorRig,
) -> None:
    assert rig.certify(("llmserve", "selftest"))["certified_duty"] == DUTY
    rig.start_agent()
    rig.submit(SELFTEST)
    view = rig.until_running()
    assert view["ceiling"] == DUTY
    assert view["budget"] <= DUTY
    (unit,) = rig.units(1)
    document = rig.control(unit["attempt"])
    assert document["seq"] >= 1
    assert 0.0 < document["gpu_duty"] <= DUTY, "it started with its duty in force"
    assert rig.codes("JOB_STARTED")[0]["seq"] > rig.codes("GPU_DUTY_START")[0]["seq"], "after the first baseline"
    assert rig.codes("JOB_STARTED")[0]["data"]["duty"] > 0.0

    rig.submit(SELFTEST)
    rig.units(2)
    wait_for(
        "two units at equal shares",
        lambda: len({rig.control(u["attempt"]).get("gpu_duty") for u in rig.units(2)}) == 1,
        PATIENCE_S,
    )
    share = held_within(rig, DUTY, 10.0)
    assert share > 0.0
    text = duty_text(wait_for("both measured", lambda: _all_measured(rig.duty()), PATIENCE_S))
    assert re.match(
        r"local: gpu_duty budget 0\.\d+ of ceiling 0\.4 \(running\) beside trainer; 2 unit\(s\) at 0\.\d+ each\n"
        r"  baseline trainer: [\d.]+/s, \d+ s old, last pressure (unknown|\d+\.\d\d)(; over 10 % under .*)?\n"
        r"  dev\.cotenant\.llmserve/selftest attempt \S+ duty 0\.\d+ measured \d\.\d\d ok\n",
        text,
    ), text
    printed = subprocess.run(
        [sys.executable, "-m", "cotenant.cli.main", "protection", "duty", "local"],
        env=os.environ | {"COTENANT_HOME": str(rig.home)}, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.startswith("local: gpu_duty budget "), printed.stdout

    _unreadable(rig)
    _burst(rig)


def _all_measured(view: dict[str, Any]) -> dict[str, Any] | None:
    rows = view["units"]
    good = view["state"] == "running" and view["budget"] and all(r["measured"] is not None and r["duty"] for r in rows)
    return view if good and all(r["state"] == "holds" for r in rows) else None


def _unreadable(rig: GovernorRig) -> None:
    """The source becomes a directory: the budget is 0 on the tick that sees it, and comes back when it reads again."""
    rig.until_running()
    aside = rig.home / "aside.jsonl"
    rig.events.rename(aside)
    rig.events.mkdir()
    taken = wait_for(
        "the budget is taken back",
        lambda: [e for e in rig.codes("GPU_DUTY_TAKE_BACK") if e["data"]["cause"] == "source"],
        PATIENCE_S,
    )[-1]
    seen = rig.codes("PROTECTION_SOURCE_UNREADABLE")[-1]
    assert 0.0 <= taken["mono_s"] - seen["mono_s"] < TICK_S, "in the tick that saw it"
    assert all(rig.control(u["attempt"])["gpu_duty"] == 0 for u in rig.duty()["units"])
    assert rig.duty()["budget"] == 0
    rig.events.rmdir()
    aside.rename(rig.events)
    rig.until_running()


def _burst(rig: GovernorRig) -> None:
    """Something takes the trainer's processor: the program collapses, and the budget is 0 whoever did it."""
    rig.until_running()
    before = len(rig.codes("GPU_DUTY_TAKE_BACK"))
    rivals = rig.compete()
    taken = wait_for("the budget is taken back", lambda: rig.codes("GPU_DUTY_TAKE_BACK")[before:], PATIENCE_S)[0]
    assert taken["data"]["cause"] in ("harm", "collapse")
    assert taken["data"]["rate"] < taken["data"]["baseline"]
    assert all(rig.control(u["attempt"])["gpu_duty"] == 0 for u in rig.duty()["units"])
    for rival in rivals:
        rival.kill()


def test_a_unit_that_overruns_is_held_at_the_third_sample_and_stopped_the_third_time(
    rig: GovernorRig, tmp_path: Path
) -> None:
    throttles = ["cancellable", "cooperative_pause", "cooperative_throttle"]
    # Certified so low that it overruns on a machine that gives it little, too.
    greedy = foreign(tmp_path / "src", throttles, requires="{ resources = { cpu = 1, mem_gb = 0.1 } }")
    rig.certify(("stranger", "act"), duty=0.05, extra=greedy)
    rig.start_agent()
    job = rig.submit({"do": "work", "greedy": True}, "stranger")
    rig.until_running()
    entries = wait_for(
        "it is stopped", lambda: (e := rig.codes("GPU_DUTY_EXCEEDED")) and e[-1]["data"]["action"] == "stopped" and e,
        PATIENCE_S,
    )  # fmt: skip
    entries = [e for e in entries if "time" in e["data"]]  # the others are of all units together
    assert [(e["data"]["action"], e["data"]["time"]) for e in entries] == [("held", 1), ("held", 2), ("stopped", 3)]
    assert all(e["data"]["measured"] > e["data"]["duty"] + 0.1 for e in entries)
    for earlier, later in itertools.pairwise(entries):
        # held for 60 s, then three more samples
        assert (later["mono_s"] - earlier["mono_s"]) * PACE >= 60.0 + 2 * 2.0
    waits = wait_for(
        "its job waits",
        # just after it was put back it says that, until the next judgement
        lambda: (found := rig.client.call("job_show", job=job))["code"] not in (None, "JOB_REQUEUED") and found,
        PATIENCE_S,
    )
    assert waits["code"] == "GPU_DUTY_EXCEEDED"
    held = [e for e in rig.codes("PROTECTION_PAUSE") if "over its duty in 3 samples" in " ".join(e["data"]["why"])]
    assert len(held) == 2
    # A new agent does not trust it either.
    assert rig.agent is not None
    rig.agent.kill()
    rig.agent.wait(30)
    rig.start_agent()
    again = wait_for(
        "the restarted agent judged", lambda: rig.duty()["state"] in ("baseline", "running", "taken_back"), PATIENCE_S
    )
    assert again
    rig.until_running()
    time.sleep(2 * TICK_S)
    found = rig.client.call("job_show", job=job)
    assert (found["code"], len(found["attempts"])) == ("GPU_DUTY_EXCEEDED", 1), "nor does it start another attempt"


def test_a_workload_shares_the_budget_with_a_job_and_is_held_and_stopped_by_its_own_ladder(
    rig: GovernorRig, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    server = serving(
        tmp_path / "src", ["cooperative_throttle", "cooperative_pause"], arguments=', "--greedy"', gpu="shared"
    )
    work = (("llmserve", "selftest"), ("stranger", "service:server"))
    assert rig.certify(*work, duty=0.1, extra=server)["work"][1]["stage"] == "service:server"
    rig.start_agent()
    rig.submit(SELFTEST)
    rig.client.call("workload_start", module="stranger")
    rig.until_running()
    data = rig.home / "nodes/local/modules/stranger/data/seen"
    shared = wait_for(
        "both have the same share of the budget",
        lambda: (v := rig.duty())["shared_by"] == 2 and v["budget"] and v["share"] == v["budget"] / 2 and v,
        PATIENCE_S,
    )
    assert {unit["stage"] for unit in shared["units"]} == {"selftest", "service:server"}
    wait_for("its document says so", lambda: data.exists() and '"gpu_duty": 0.05' in data.read_text(), PATIENCE_S)
    wait_for(
        "it is stopped", lambda: [e for e in rig.codes("GPU_DUTY_EXCEEDED") if e["data"]["action"] == "stopped"], PATIENCE_S
    )  # fmt: skip
    of_unit = [e["data"] for e in rig.codes("GPU_DUTY_EXCEEDED") if "time" in e["data"]]
    assert [(e["module"], e["action"]) for e in of_unit] == [
        ("org.example.stranger", action) for action in ("held", "held", "stopped")
    ], "the job beside it holds its duty"
    assert '"pause": true' in data.read_text(), "held by its document"

    def waits() -> bool:
        (one,) = rig.client.call("workload_list")
        return (one["state"], one["code"]) == ("waiting", "GPU_DUTY_EXCEEDED")

    wait_for("it is not started again while its module is not trusted", waits, PATIENCE_S)
    rig.until_running()
    wait_for("the job has the whole budget", lambda: (v := rig.duty())["shared_by"] == 1 and v["budget"], PATIENCE_S)


def test_a_certificate_that_becomes_stale_closes_within_a_tick_of_being_seen(rig: GovernorRig) -> None:
    rig.certify(("llmserve", "selftest"))
    rig.start_agent()
    rig.submit(SELFTEST)
    rig.until_running()
    rig.units(1)
    # The program starts anew as another one: other arguments.
    assert rig.trainer is not None
    argv = [*rig.trainer.args, "--seed", "8"]  # type: ignore[misc]
    second = subprocess.Popen(argv)
    rig.started.append(second)
    stale = wait_for("the certificate is stale", lambda: rig.codes("CERT_STALE"), PATIENCE_S)[0]
    assert "→" in stale["data"]["why"]
    refused = wait_for("the budget is closed", lambda: rig.codes("GPU_NOT_CERTIFIED"), PATIENCE_S)[-1]
    assert 0.0 <= refused["mono_s"] - stale["mono_s"] < TICK_S
    assert refused["data"]["remedy"] == ["cotenant protection ab sweep local --rule trainer"]
    clamp = rig.codes("GPU_DUTY_CLAMP")[-1]
    assert clamp["data"]["budget"] == 0
    job = wait_for(
        "the unit is held",
        lambda: next((j for j in rig.client.call("job_list") if j["state"] == "held"), None),
        PATIENCE_S,
    )
    assert "certificate" in job["reason"]
    assert rig.duty()["state"] == "closed"
