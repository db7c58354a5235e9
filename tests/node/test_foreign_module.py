"""A module written to protocol 1 elsewhere, without this project's SDK, runs here by the contract."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path

import pytest

from tests.node.jobs_rig import Rig, state_of, wait_for

COOPERATIVE = ["cancellable", "cooperative_pause", "cooperative_throttle", "progress_events"]


@pytest.fixture
def rig(tmp_path: Path):
    # a grace that a busy machine cannot use up: TERM comes at half of it, and this runner does not handle TERM
    rig = Rig.with_foreign(tmp_path, COOPERATIVE, stop_grace_s="120")
    yield rig
    rig.close()


def test_module_is_ready_and_says_what_is_not_used(rig: Rig) -> None:
    state = rig.modules.get("org.example.stranger")
    assert state is not None
    assert state.as_dict()["state"] == "ready"
    assert state.not_used == ["coordinator", "placement", "ui"]


def test_invocation_environment_and_work_directory(rig: Rig) -> None:
    job = rig.run({"do": "tell"})
    assert job["outcome"] == "done", job
    told = job["result"]["payload"]
    work = told["env"]["OARBANK_WORKDIR"]
    folder = Path(work).parent
    assert told["argv"] == [
        "run", "--spec", f"{work}/spec.json", "--workdir", work, "--out", f"{work}/result.json", "--events", f"{work}/events.ndjson",
    ]  # fmt: skip
    assert told["cwd"] == work
    data = str(rig.home / "modules" / "stranger" / "data")
    env = dict(told["env"])
    env.pop("LC_CTYPE", None)  # set by the interpreter itself
    assert env == {
        "OARBANK_WORKDIR": work,
        "OARBANK_TMP": str(folder / "tmp"),
        "TMPDIR": str(folder / "tmp"),
        "OARBANK_MODULE_DATA": data,
        "OARBANK_PLATFORM": env["OARBANK_PLATFORM"],
        "OARBANK_MODULE": "stranger",
        "OARBANK_ATTEMPT_ID": folder.name,
        "OARBANK_PROTOCOL": "1",
        "OARBANK_SETTINGS_FILE": str(folder / "settings.json"),
        "PATH": env["PATH"],
        "HOME": data,
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "STRANGER_COLOUR": "blue",
    }
    assert env["OARBANK_PLATFORM"].startswith("linux-")
    assert told["usr1_ignored"], "an early nudge must be lost, not fatal"
    assert told["settings"] == {}
    assert {"control.json", "spec.json"} <= set(told["listing"])
    spec = told["spec"]
    key = json.dumps(
        {"module_id": "org.example.stranger", "module_version": "3.2.1", "stage": "act", "payload": {"do": "tell"}},
        sort_keys=True,
        separators=(",", ":"),
    )
    assert spec == {
        "envelope": 1,
        "schema": "stranger/spec@1",
        "module_id": "org.example.stranger",
        "module_version": "3.2.1",
        "job_key": hashlib.sha256(key.encode()).hexdigest(),
        "stage": "act",
        "protocol": 1,
        "resources": {"cpu": 2.0, "mem_gb": 0.25},
        "timeout_s": 600.0,
        "platform": env["OARBANK_PLATFORM"],
        "payload": {"do": "tell"},
    }
    assert job["result"]["unheard_of"] == 1, "unknown fields are kept"
    assert not folder.exists(), "the work directory goes once the result is recorded"


def test_case_035_no_descriptor_is_inherited(rig: Rig, tmp_path: Path) -> None:
    with open(tmp_path / "card0", "w") as leaked:
        import os

        os.set_inheritable(leaked.fileno(), True)
        told = rig.run({"do": "tell"})["result"]["payload"]
    # 0, 1, 2 and the descriptor that lists the folder
    assert len(told["fds"]) == 4
    assert told["fds"][:3] == [0, 1, 2]


def test_case_086_the_kernel_takes_fleet_work_first(rig: Rig) -> None:
    assert rig.run({"do": "tell"})["result"]["payload"]["oom"] == "1000"


FAILURE = {"reason": "stranger/no", "detail": "because"}


@pytest.mark.parametrize(
    ("payload", "state", "outcome", "fault", "counted"),
    [
        ({"code": 2, "failure": FAILURE}, "ended", "failed", "job", 1),
        ({"code": 2}, "waiting", None, "module", 1),
        ({"code": 3, "failure": FAILURE}, "waiting", None, "host", 0),
        ({"code": 3}, "waiting", None, "module", 1),
        ({"code": 75, "failure": FAILURE}, "waiting", None, "transient", 0),
        ({"code": 75}, "waiting", None, "module", 1),
        ({"code": 1}, "waiting", None, "module", 1),
        ({"code": 1, "failure": {**FAILURE, "fault": "job", "retryable": False}}, "ended", "failed", "job", 1),
        ({"code": 0}, "waiting", None, "module", 1),
        ({"code": 0, "result": {"x": 1}}, "ended", "done", "none", 1),
        ({"code": 75, "failure": "no object"}, "waiting", None, "module", 1),
        ({"code": 0, "signal": int(signal.SIGSEGV)}, "waiting", None, "module", 1),
    ],
)
def test_exit_codes_mean_what_the_protocol_says(
    rig: Rig, payload: dict, state: str, outcome: str | None, fault: str, counted: int
) -> None:
    job = rig.run({"do": "exit", **payload})
    assert (job["state"], job["outcome"]) == (state, outcome)
    ended = next(data for code, data in rig.journal if code == "JOB_ENDED")
    assert ended["fault"] == fault
    assert ended["ended_by"] is None, "it ended by itself"
    assert rig.jobs.job(job["job"]).counted == counted
    if "signal" in payload:
        assert ended["signal"] == payload["signal"]


def test_attempts_are_used_up(rig: Rig) -> None:
    job = rig.jobs.submit("stranger", "act", {"do": "exit", "code": 1})
    rig.jobs.start(job.job)
    rig.until(lambda: not rig.jobs.attempts())
    rig.until(lambda: rig.jobs.waiting())
    rig.jobs.start(job.job)
    rig.until(lambda: not rig.jobs.attempts())
    shown = rig.jobs.show(job.job)
    assert (shown["state"], shown["outcome"], len(shown["attempts"])) == ("ended", "failed", 2)


def test_a_nudge_before_the_handler_is_harmless_and_limits_are_there_from_the_start(rig: Rig) -> None:
    attempt = rig.start({"do": "work"}, duty=0.25)
    first = json.loads((attempt.folder.work / "control.json").read_text())
    assert first == {"seq": 1, "stop": False, "pause": False, "gpu_duty": 0.25}
    # a storm of early nudges, most of them before the runner's handler is there
    for number in range(50):
        rig.jobs.set_duty(attempt.attempt_id, 0.25 + number / 1000)
    rig.until(lambda: any(document.get("gpu_duty") == pytest.approx(0.299) for document in rig.seen()))
    seqs = [document["seq"] for document in rig.seen()]
    assert seqs == sorted(seqs)
    assert attempt.state in ("starting", "running")


def test_without_limits_the_first_document_is_seq_0(rig: Rig) -> None:
    attempt = rig.start({"do": "work"})
    assert json.loads((attempt.folder.work / "control.json").read_text()) == {"seq": 0}


def test_pause_is_claimed_only_when_confirmed_and_ends_with_release(rig: Rig) -> None:
    attempt = rig.start({"do": "work"})
    rig.until(lambda: attempt.state == "running")
    rig.jobs.hold(attempt.attempt_id, "a phase")
    assert attempt.state == "held"
    assert not attempt.hold_confirmed
    rig.until(lambda: attempt.hold_confirmed)
    assert [document["pause"] for document in rig.seen() if "pause" in document][-1] is True
    rig.jobs.release(attempt.attempt_id)
    assert attempt.state == "running"
    rig.until(lambda: rig.seen()[-1]["pause"] is False)


def test_stop_is_acknowledged_and_costs_no_attempt(rig: Rig) -> None:
    attempt = rig.start({"do": "work"})
    rig.until(lambda: attempt.state == "running")
    rig.jobs.stop(attempt.attempt_id, "evicted", requeue=True, fault=False)
    rig.until(lambda: not rig.jobs.attempts())
    ended = next(data for code, data in rig.journal if code == "JOB_ENDED")
    assert (ended["exit"], ended["signal"], ended["ended_by"]) == (75, None, "agent")
    job = rig.jobs.job(attempt.job_id)
    assert (job.state, job.counted) == ("waiting", 0)


def test_a_result_is_not_lost_to_a_nudge_that_met_its_runner_on_the_way_out(rig: Rig) -> None:
    leaves = {"do": "exit", "result": {"n": 1}, "code": 0, "signal": int(signal.SIGUSR1), "lets_go": True}
    job = rig.run(leaves)
    ended = next(data for code, data in rig.journal if code == "JOB_ENDED")
    assert (ended["exit"], ended["signal"]) == (None, signal.SIGUSR1)
    assert (job["outcome"], job["result"]["payload"]) == ("done", {"n": 1})


def test_a_runner_that_ignores_everything_is_killed_after_its_grace(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, ["cancellable"], stop_grace_s="1")
    attempt = rig.start({"do": "work", "deaf": True, "children": 3, "detached": 2})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 5)
    tree = rig.jobs.tree(attempt.attempt_id)
    rig.jobs.stop(attempt.attempt_id, "evicted", requeue=True, fault=False)
    rig.until(lambda: not rig.jobs.attempts())
    assert {state_of(who.pid) for who in tree[1:]} == {"gone"}
    wait_for(lambda: state_of(tree[0].pid) == "gone")  # the launcher ends after it reported
    ended = next(data for code, data in rig.journal if code == "JOB_ENDED")
    assert ended["signal"] == signal.SIGKILL
    rig.close()


def test_artifacts_are_kept_and_paths_that_lead_out_are_refused(rig: Rig) -> None:
    job = rig.run({"do": "files", "files": {"out/a.txt": "hello"}, "artifacts": ["out/a.txt"]})
    assert job["outcome"] == "done", job
    assert (rig.home / "artifacts" / str(job["job"]) / "out" / "a.txt").read_text() == "hello"
    for bad in ("../../launch.json", "/etc/passwd", "out/../a", "link"):
        payload = {"do": "files", "files": {"x/a.txt": "hello"}, "artifacts": [bad], "links": {"link": "/etc/passwd"}}
        job = rig.run(payload)
        assert job["outcome"] is None, bad
        assert "result.json" in job["reason"], job["reason"]


def test_output_is_bounded(rig: Rig) -> None:
    attempt = rig.start({"do": "work", "noise": 8 << 20})
    rig.until(lambda: attempt.first_phase_mono_s is not None)  # a flood neither blocks nor fails the runner
    assert (attempt.folder.root / "stdout.log").stat().st_size == 1 << 20
