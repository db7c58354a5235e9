"""The reference module, run as the agent runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.modules import ModuleStore, bundle_digest
from tests.node.jobs_rig import Rig, cpu_ticks, wait_for

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "modules" / "llmserve"
GOLDEN = json.loads((BUNDLE / "goldens" / "selftest.json").read_text())
DUTY_SPEC = json.loads((BUNDLE / "conformance.json").read_text())["duty_specs"][0]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "node", builtin=ROOT / "modules")
    before = rig.modules.get("llmserve")
    assert before is not None
    assert (before.state, before.bundle) == ("not_ready", None)
    assert "llmserve" in rig.modules.pending()
    state = rig.modules.prepare("llmserve")
    assert state is not None
    assert state.state == "ready", state.why
    assert "llmserve" not in rig.modules.pending()
    yield rig
    rig.close()


def finish(rig: Rig, payload: object, **options: object) -> dict:
    job = rig.jobs.submit("llmserve", "selftest", payload)
    rig.jobs.start(job.job, **options)  # type: ignore[arg-type]
    rig.until(lambda: not rig.jobs.attempts(), 200.0)
    return rig.jobs.show(job.job)


def test_the_golden_compares(rig: Rig) -> None:
    job = finish(rig, GOLDEN["payload"])
    assert job["outcome"] == "done", job["reason"]
    assert job["result"]["payload"] == GOLDEN["result"]
    events = [json.loads(line) for line in job["events"]]
    assert [event["done"] for event in events if event["type"] == "progress"] == [1, 2]


def test_the_same_texts_in_another_place_and_language(tmp_path: Path) -> None:
    """Exact: another locale, hash seed and length of path change nothing."""
    spec = {"stage": "selftest", "payload": GOLDEN["payload"]}
    for place, language in (("a", "C"), ("b" * 100, "tr_TR.UTF-8")):
        work = tmp_path / place
        work.mkdir()
        (work / "spec.json").write_text(json.dumps(spec))
        (work / "control.json").write_text('{"seq": 0}')
        env = {
            "LANG": language,
            "LC_ALL": language,
            "PYTHONHASHSEED": str(len(place)),
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ["PATH"],
        }
        argv = [
            sys.executable,
            str(BUNDLE / "llmserve.py"),
            "run",
            "--spec",
            str(work / "spec.json"),
            "--workdir",
            str(work),
        ]
        subprocess.run([*argv, "--out", str(work / "result.json")], env=env, check=True, timeout=200)
        assert json.loads((work / "result.json").read_text())["payload"] == GOLDEN["result"]


@pytest.mark.parametrize(
    "payload", [None, {"prompts": 0}, {"prompts": [1]}, {"max_tokens": True}, {"colour": 1}, {"seed": "x"}]
)
def test_a_payload_that_can_never_succeed_is_the_jobs_fault(rig: Rig, payload: object) -> None:
    job = finish(rig, payload)
    assert (job["outcome"], job["attempts"][-1]["exit_code"], job["failure"]["fault"]) == ("failed", 2, "job")


def test_stop_pause_and_resume(rig: Rig) -> None:
    job = rig.jobs.submit("llmserve", None, DUTY_SPEC["payload"])
    attempt = rig.jobs.start(job.job)
    rig.until(lambda: attempt.state == "running")
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    pid = attempt.runner_pid or 0
    before = cpu_ticks([pid])
    rig.jobs.release(attempt.attempt_id)
    wait_for(lambda: cpu_ticks([pid]) > before + 5)
    rig.jobs.cancel(job.job)
    rig.until(lambda: not rig.jobs.attempts())
    shown = rig.jobs.show(job.job)
    assert (shown["outcome"], shown["attempts"][-1]["exit_code"]) == ("cancelled", 75)
    assert shown["failure"]["reason"] == "llmserve/stopped"


def test_its_duty_is_held_and_reported(rig: Rig) -> None:
    """Judged by the kernel's own count of the process, not by what the module says."""
    job = rig.jobs.submit("llmserve", None, DUTY_SPEC["payload"], feed_of="run")
    attempt = rig.jobs.start(job.job, duty=DUTY_SPEC["duty"])
    rig.until(lambda: attempt.state == "running")
    rig.until(lambda: rig.jobs.show(job.job)["events"])
    begin, used = time.monotonic(), cpu_ticks([attempt.runner_pid or 0])
    rig.until(lambda: time.monotonic() - begin >= 10.0)
    share = (cpu_ticks([attempt.runner_pid or 0]) - used) / 100.0 / (time.monotonic() - begin)
    assert 0.0 < share <= DUTY_SPEC["duty"] + 0.02
    reports = [json.loads(line) for line in rig.jobs.show(job.job)["events"] if "gpu_duty" in line]
    assert reports
    for report in reports:
        assert (report["duty"], report["device"]) == (DUTY_SPEC["duty"], "cpu")
        assert report["value"] <= DUTY_SPEC["duty"] + 0.1
    rig.jobs.cancel(job.job)
    rig.until(lambda: not rig.jobs.attempts())
    assert rig.jobs.show(job.job)["result"] is None


def test_only_the_sdk_can_be_imported(tmp_path: Path) -> None:
    store = ModuleStore(tmp_path, ROOT / "modules")
    state = store.prepare("llmserve")
    assert state is not None
    assert state.python is not None
    assert state.digest == bundle_digest(BUNDLE)
    script = (
        "import oarbank_sdk.control, oarbank_sdk.duty, cotenant.sdk.duty as d; assert oarbank_sdk.duty.Duty is d.Duty"
    )
    subprocess.run([state.python, "-I", "-c", script], check=True, timeout=60)
    for name in ("nodes", "pydantic", "psutil", "cotenant.cli", "pip", "prefect"):
        tried = subprocess.run(
            [state.python, "-I", "-c", f"import {name}"], capture_output=True, timeout=60, check=False
        )
        assert tried.returncode == 1, name
