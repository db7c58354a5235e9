"""Workloads with real processes: kept going, limited, held by their own ladder, stopped; and through a real agent."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from nodes.jobs import Workloads
from policies.refusal import Refused
from tests.node.agent_rig import Rig as AgentRig
from tests.node.agent_rig import wait_for as agent_wait
from tests.node.jobs_rig import Rig, cpu_ticks, foreign, state_of, wait_for

# A server by the book of the runner protocol, without this project's SDK; each document that applied is a line of ``seen``.
SERVER = """
import json, os, signal, sys, time
work = os.environ["OARBANK_WORKDIR"]
nudged, document = True, {"seq": -1}
def on_nudge(*_):
    global nudged
    nudged = True
signal.signal(signal.SIGUSR1, on_nudge)
with open(work + "/phase", "w") as file:
    file.write("serving")
with open(os.environ["OARBANK_MODULE_DATA"] + "/started", "a") as file:
    file.write(json.dumps({"argv": sys.argv[1:], "pid": os.getpid(), "cwd": os.getcwd()}) + "\\n")
if "--crash" in sys.argv:
    sys.exit(9)
while True:
    if nudged:
        nudged = False
        with open(work + "/control.json") as file:
            found = json.load(file)
        if found["seq"] > document["seq"]:
            document = found
            with open(os.environ["OARBANK_MODULE_DATA"] + "/seen", "a") as file:
                file.write(json.dumps(found) + "\\n")
    if document.get("stop"):
        sys.exit(0)
    if document.get("pause"):
        time.sleep(0.02)
        continue
    end = time.process_time() + 0.004
    while time.process_time() < end:
        pass
    duty = document.get("gpu_duty")
    if duty is not None and "--greedy" not in sys.argv:
        time.sleep(0.004 * (1 - duty) / max(duty, 0.01))
"""


def module(
    place: Path, capabilities: list[str], *, freeze_ok: bool = False, arguments: str = "", gpu: str = "none"
) -> Path:
    """``gpu``: what the service says of its use, apart from the module's runner."""
    bundle = foreign(place, ["cancellable"])
    (bundle / "serve.py").write_text(SERVER)
    manifest = bundle / "oarbank-module.toml"
    manifest.write_text(
        manifest.read_text()
        + f"""
[[services]]
name = "server"
exec = ["python", "-I", "{{bundle}}/serve.py"{arguments}]
lifecycle = "always"
stop_grace_s = 4
freeze_ok = {str(freeze_ok).lower()}
capabilities = {capabilities}
gpu = {{ use = "{gpu}" }}
[sandbox]
devices = {{ gpu = "compute" }}
"""
    )
    return bundle


class Served(Rig):
    def __init__(self, home: Path, **options: Any) -> None:
        super().__init__(home, **options)
        self.workloads = Workloads(self.jobs, self.modules, lambda code, data: self.journal.append((code, data)))

    @classmethod
    def of(cls, place: Path, capabilities: list[str], **more: Any) -> Served:
        rig = cls(place / "node")
        state = rig.modules.add(module(place, capabilities, **more))
        assert state.state == "ready", state.why
        return rig

    def lines(self, name: str) -> list[str]:
        path = self.home / "modules" / "stranger" / "data" / name
        return path.read_text().splitlines() if path.exists() else []


def test_it_is_started_given_its_duty_and_stopped(tmp_path: Path) -> None:
    rig = Served.of(tmp_path, ["cooperative_throttle", "cooperative_pause"], arguments=', "--port", "0"')
    job = rig.workloads.start("stranger")
    assert rig.workloads.start("stranger", "server").job == job.job, "one that is started stays as it is"
    attempt = rig.jobs.start(job.job, duty=0.25)
    rig.until(lambda: attempt.state == "running" and rig.lines("seen"))
    assert '"argv": ["--port", "0"]' in rig.lines("started")[0], "its whole command, and nothing added"
    assert '"seq": 1' in rig.lines("seen")[0]
    assert '"gpu_duty": 0.25' in rig.lines("seen")[0]
    rig.jobs.set_duty(attempt.attempt_id, 0.5)
    rig.until(lambda: '"gpu_duty": 0.5' in rig.lines("seen")[-1])
    assert (attempt.timeout_s, attempt.stop_grace_s) == (None, 4.0)
    assert rig.jobs.registry.jobs() == [], "it is no job"
    assert [rig.workloads.record(one)["workload"] for one in rig.jobs.registry.workloads()] == ["stranger/server"]
    rig.workloads.stop("stranger")
    rig.until(lambda: not rig.jobs.attempts())
    assert rig.jobs.registry.workloads() == []
    assert rig.jobs.job(job.job).outcome == "cancelled"
    assert rig.jobs.waiting() == [], "it is not started again"
    rig.close()


def test_one_that_ends_is_started_again_after_a_wait_that_grows(tmp_path: Path) -> None:
    rig = Served.of(tmp_path, [], arguments=', "--crash"')
    job = rig.workloads.start("stranger")
    for number in (1, 2):
        rig.until(lambda: rig.jobs.waiting())
        rig.jobs.start(job.job)
        rig.until(lambda: not rig.jobs.attempts())
        after = rig.jobs.job(job.job)
        assert (after.state, after.soft_retries, after.counted) == ("waiting", number, 0)
        assert "exit 9; it is started again" in (after.reason or "")
    (_, left_s) = rig.jobs.backing_off()[0]
    assert 0.0 < left_s <= 2.0
    rig.close()


@pytest.mark.parametrize(("capabilities", "freeze_ok"), [(["cooperative_pause"], False), ([], True)])
def test_it_is_paused_by_document_or_frozen(tmp_path: Path, capabilities: list[str], freeze_ok: bool) -> None:
    rig = Served.of(tmp_path, capabilities, freeze_ok=freeze_ok)
    attempt = rig.jobs.start(rig.workloads.start("stranger").job)
    rig.until(lambda: attempt.state == "running")
    pid = attempt.runner_pid or 0
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    assert (state_of(pid) == "T") == freeze_ok
    rig.jobs.release(attempt.attempt_id)
    before = cpu_ticks([pid])
    wait_for(lambda: cpu_ticks([pid]) > before + 20)
    assert attempt.runner_pid == pid, "the same process went on"
    rig.close()


def test_what_can_neither_is_stopped_and_comes_back_when_the_cause_is_gone(tmp_path: Path) -> None:
    rig = Served.of(tmp_path, [])
    job = rig.workloads.start("stranger")
    attempt = rig.jobs.start(job.job)
    rig.until(lambda: attempt.state == "running")
    rig.jobs.hold(attempt.attempt_id, "phase 1 of rule trainer is on")
    rig.until(lambda: not rig.jobs.attempts())
    assert (rig.jobs.job(job.job).state, rig.jobs.job(job.job).reason) == ("waiting", "phase 1 of rule trainer is on")
    rig.until(lambda: rig.jobs.waiting())
    again = rig.jobs.start(job.job)
    rig.until(lambda: again.state == "running")
    rig.close()


def test_a_restarted_agent_adopts_it(tmp_path: Path) -> None:
    rig = Served.of(tmp_path, ["cooperative_pause"])
    attempt = rig.jobs.start(rig.workloads.start("stranger").job)
    rig.until(lambda: attempt.state == "running")
    pid = attempt.runner_pid
    attempt.close()  # as the kernel does for an agent that was killed
    rig.db.close()
    second = Served(rig.home)
    (taken,) = second.jobs.adopt()
    assert (taken.runner_pid, taken.state) == (pid, "held")

    def let_on() -> bool:
        """As the agent does at each tick: the launcher's own pause may come to light after the adoption."""
        second.jobs.release(taken.attempt_id)
        return taken.state == "running"

    second.until(let_on)
    assert [second.workloads.record(one)["state"] for one in second.jobs.registry.workloads()] == ["running"]
    second.close()


def test_a_launchers_pause_that_the_runner_never_saw_is_written_again(tmp_path: Path) -> None:
    """Launcher and agent wrote a document of the same number in the same moment; the runner took the agent's and runs on."""
    rig = Served.of(tmp_path, ["cooperative_pause"])
    attempt = rig.jobs.start(rig.workloads.start("stranger").job)
    rig.until(lambda: attempt.state == "running")
    told = {"count": 1, "why": "no byte", "how": "paused", "mono_s": time.monotonic()}
    (attempt.folder.root / "lost.json").write_text(json.dumps(told))
    rig.until(lambda: attempt.hold_confirmed)
    assert attempt.state == "held"
    rig.jobs.release(attempt.attempt_id)
    rig.until(lambda: attempt.state == "running")
    rig.close()


def test_what_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    rig = Served.of(tmp_path, [])
    for ask, code in (
        (lambda: rig.workloads.start("nobody"), "JOB_NO_MODULE"),
        (lambda: rig.workloads.start("stranger", "fileserver"), "WORKLOAD_UNKNOWN"),
        (lambda: rig.workloads.stop("stranger"), "WORKLOAD_UNKNOWN"),
        (lambda: rig.jobs.submit("stranger", "service:server", {}), "JOB_NO_STAGE"),
    ):
        with pytest.raises(Refused) as caught:
            ask()
        assert caught.value.code == code
        assert caught.value.remedy
    rig.close()


def test_through_a_real_agent_and_over_its_death(rig: AgentRig, tmp_path: Path) -> None:
    rig.start_agent()
    rig.client.call("module_add", path=str(module(tmp_path / "bundle", [], freeze_ok=True)), _timeout_s=300)
    started = rig.client.call("workload_start", module="stranger")
    assert started["workload"] == "stranger/server"

    def listed() -> dict[str, Any]:
        (one,) = rig.client.call("workload_list")
        return dict(one)

    data = rig.home / "nodes" / "local" / "modules" / "stranger" / "data"
    agent_wait("it runs", lambda: (data / "started").exists() and (data / "started").read_text().endswith("\n"))
    assert listed()["state"] == "running"
    pid = int((data / "started").read_text().split('"pid": ')[1].split(",")[0])
    rig.client.call("section_set", text="[node]\npause = true", by="test")
    agent_wait("it is frozen", lambda: state_of(pid) == "T" and listed()["state"] == "held")
    assert rig.agent is not None
    rig.agent.kill()
    rig.agent.wait()
    rig.start_agent()
    assert state_of(pid) == "T"
    rig.client.call("section_set", text="", by="test")
    before = cpu_ticks([pid])
    agent_wait("it goes on", lambda: cpu_ticks([pid]) > before + 10)
    os.kill(pid, signal.SIGKILL)
    agent_wait("it is started again", lambda: len((data / "started").read_text().splitlines()) == 2)
    agent_wait("and runs", lambda: listed()["state"] == "running")
    assert listed()["restarts"] == 1
    rig.client.call("workload_stop", module="stranger", service="server")
    agent_wait("it has ended", lambda: rig.client.call("workload_list") == [])
    codes = [entry["code"] for entry in rig.timeline()]
    assert codes.count("WORKLOAD_STARTED") == codes.count("WORKLOAD_STOPPED") == 1
