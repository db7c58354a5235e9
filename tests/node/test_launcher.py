"""The agent dying must not unleash fleet work; the launcher dying must not either (``protection.md``)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.jobs_rig import Rig, carriers, cpu_ticks, foreign, state_of, wait_for

ON_GPU = {
    "env": '{ STRANGER_COLOUR = "blue" }\ngpu = { use = "shared" }',
    "icon": '"box"\n\n[sandbox]\ndevices = { gpu = "compute" }',
}
STAND_IN = Path(__file__).with_name("agent_stand_in.py")


class StandIn:
    """A process that plays the agent; the newest line it printed."""

    def __init__(self, home: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(STAND_IN), str(home), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.newest: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.newest = json.loads(line)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def agents() -> Iterator[list[StandIn]]:
    made: list[StandIn] = []
    yield made
    for agent in made:
        agent.kill()


def begin(
    tmp_path: Path,
    agents: list[StandIn],
    capabilities: list[str],
    *options: str,
    size: int = 5,
    grace_s: str = "5",
    on_gpu: bool = False,
    **payload: Any,
) -> tuple[Path, StandIn, str, list[int]]:
    """One job at full load under a stand-in agent: home, agent, attempt id, pids (launcher first)."""
    rig = Rig(tmp_path / "node")
    state = rig.modules.add(foreign(tmp_path, capabilities, stop_grace_s=grace_s, **(ON_GPU if on_gpu else {})))
    assert state.state == "ready", state.why
    rig.jobs.submit("stranger", None, {"do": "work", "children": size - 2, "detached": 1, **payload})
    rig.db.close()
    agent = StandIn(tmp_path / "node", *options)
    agents.append(agent)
    wait_for(lambda: agent.newest and agent.newest[0]["state"] == "running" and len(agent.newest[0]["tree"]) == size)
    return tmp_path / "node", agent, agent.newest[0]["attempt"], [pid for pid, _ in agent.newest[0]["tree"]]


def calm(pids: list[int]) -> bool:
    """Whether these processes used no CPU worth the name over the next half second."""
    before = cpu_ticks(pids)
    time.sleep(0.5)
    return cpu_ticks(pids) - before <= 5


def end(home: Path) -> Rig:
    """A new agent in this process takes over and ends everything."""
    rig = Rig(home)
    rig.jobs.adopt()
    rig.close()
    return rig


def test_freeze_ok_is_frozen_when_the_agent_is_killed_and_goes_on_when_released(
    tmp_path: Path, agents: list[StandIn]
) -> None:
    home, agent, attempt_id, pids = begin(tmp_path, agents, ["freeze_ok"])
    agent.kill()
    wait_for(lambda: {state_of(pid) for pid in pids[1:]} == {"T"})
    rig = Rig(home)
    (attempt,) = rig.jobs.adopt()
    assert attempt.attempt_id == attempt_id
    assert (attempt.state, attempt.adopted) == ("held", True)
    rig.until(lambda: attempt.hold_confirmed)
    for _ in range(10):
        rig.jobs.tick(time.monotonic())
        time.sleep(0.02)
    assert {state_of(pid) for pid in pids[1:]} == {"T"}, "nothing goes on before it is released"
    rig.jobs.release(attempt_id)
    wait_for(lambda: "T" not in {state_of(pid) for pid in pids[1:]})
    before = cpu_ticks(pids)
    wait_for(lambda: cpu_ticks(pids) > before + 20)
    assert rig.codes().count("JOB_ADOPTED") == 1
    rig.close()
    wait_for(lambda: carriers(attempt_id) == [])


def test_cooperative_pause_gets_a_newer_document_and_stays_paused(tmp_path: Path, agents: list[StandIn]) -> None:
    home, agent, attempt_id, pids = begin(tmp_path, agents, ["cooperative_pause", "cancellable"], size=2)
    control = home / "jobs" / attempt_id / "work" / "control.json"
    seq = json.loads(control.read_text())["seq"]
    agent.kill()
    wait_for(lambda: json.loads(control.read_text()).get("pause") is True)
    assert json.loads(control.read_text())["seq"] == seq + 1
    wait_for(lambda: calm(pids))
    time.sleep(3.0)  # past the launcher's own look at the CPU it uses
    assert state_of(pids[1]) != "gone", "a runner that paused is not ended"
    rig = Rig(home)
    (attempt,) = rig.jobs.adopt()
    assert attempt.state == "held"
    rig.until(lambda: attempt.hold_confirmed)
    rig.jobs.release(attempt_id)
    before = cpu_ticks(pids)
    wait_for(lambda: cpu_ticks(pids) > before + 20)
    rig.close()


@pytest.mark.parametrize("confirms", [True, False])
def test_a_pause_on_a_gpu_is_believed_only_where_the_runner_confirms_it(
    tmp_path: Path, agents: list[StandIn], confirms: bool
) -> None:
    """What it does on the GPU cannot be seen while the agent is gone, and its CPU time says nothing of it."""
    home, agent, attempt_id, pids = begin(
        tmp_path, agents, ["cooperative_pause"], size=2, grace_s="1", on_gpu=True, confirms=confirms
    )
    folder = home / "jobs" / attempt_id
    assert json.loads((folder / "launch.json").read_text())["gpu"] is True
    agent.kill()
    wait_for(lambda: json.loads((folder / "work" / "control.json").read_text()).get("pause") is True)
    if not confirms:
        wait_for(lambda: (folder / "exit.json").exists())
        assert "left the GPU" in json.loads((folder / "exit.json").read_text())["ended_by"]
        rig = Rig(home)
        rig.jobs.adopt()
        rig.until(lambda: not rig.jobs.attempts())
        assert (rig.jobs.job(1).state, rig.jobs.job(1).counted) == ("waiting", 0), "queued again, without fault"
        rig.close()
        return
    wait_for(lambda: (folder / "work" / "phase").read_text() == "paused\n")
    time.sleep(3.0)  # past the launcher's own look
    assert state_of(pids[1]) != "gone"
    (folder / "work" / "phase").write_text("working\n")
    wait_for(lambda: (folder / "exit.json").exists())  # it took its word back
    end(home)


def test_a_pause_that_was_confirmed_before_is_no_confirmation_of_this_one(
    tmp_path: Path, agents: list[StandIn]
) -> None:
    home, agent, attempt_id, _ = begin(tmp_path, agents, ["cooperative_pause"], size=2, grace_s="1", on_gpu=True)
    folder = home / "jobs" / attempt_id
    (folder / "work" / "phase").write_text("paused\n")
    time.sleep(0.1)
    agent.kill()
    wait_for(lambda: (folder / "exit.json").exists())
    assert "left the GPU" in json.loads((folder / "exit.json").read_text())["ended_by"]
    end(home)


def test_a_pause_that_is_not_obeyed_ends_the_attempt(tmp_path: Path, agents: list[StandIn]) -> None:
    home, agent, _, pids = begin(tmp_path, agents, ["cooperative_pause"], deaf=True, grace_s="1")
    agent.kill()
    wait_for(lambda: {state_of(pid) for pid in pids} == {"gone"})
    rig = Rig(home)
    assert rig.jobs.adopt() == []
    job = rig.jobs.job(1)
    assert (job.state, job.counted) == ("waiting", 0), "requeued, and it costs the job nothing"
    assert "still using CPU" in (job.reason or "")


def test_neither_is_ended(tmp_path: Path, agents: list[StandIn]) -> None:
    home, agent, attempt_id, pids = begin(tmp_path, agents, ["cancellable"], deaf=True, grace_s="1")
    agent.kill()
    wait_for(lambda: {state_of(pid) for pid in pids} == {"gone"})
    wait_for(lambda: carriers(attempt_id) == [])
    rig = Rig(home)
    assert rig.jobs.adopt() == []
    assert rig.jobs.job(1).state == "waiting"
    assert not (home / "jobs" / attempt_id).exists()


def test_a_stuck_agent_protects_nobody_and_decides_anew_when_it_comes_back(
    tmp_path: Path, agents: list[StandIn]
) -> None:
    _, agent, _, pids = begin(tmp_path, agents, ["freeze_ok"], "--silence", "1.5")
    agent.signal(signal.SIGSTOP)
    wait_for(lambda: {state_of(pid) for pid in pids[1:]} == {"T"})
    agent.signal(signal.SIGCONT)
    wait_for(lambda: agent.newest[0]["state"] == "held")
    assert {state_of(pid) for pid in pids[1:]} == {"T"}
    agent.kill()
    end(tmp_path / "node")


def test_nobody_adopts_it_in_time(tmp_path: Path, agents: list[StandIn]) -> None:
    home, agent, attempt_id, pids = begin(tmp_path, agents, ["freeze_ok"], "--adopt-s", "2", deaf=True, grace_s="1")
    agent.kill()
    wait_for(lambda: {state_of(pid) for pid in pids[1:]} == {"T"})
    wait_for(lambda: {state_of(pid) for pid in pids} == {"gone"})
    assert "took the attempt over" in json.loads((home / "jobs" / attempt_id / "exit.json").read_text())["ended_by"]
    end(home)


def test_the_runner_dies_with_its_launcher_and_the_agent_clears_the_rest(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work", "deaf": True, "children": 3, "detached": 2})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 5)
    pids = rig.pids(attempt)
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: state_of(pids[1]) == "gone")  # before any tick: the kernel does it
    rig.until(lambda: not rig.jobs.attempts())
    assert {state_of(pid) for pid in pids} == {"gone"}
    assert "JOB_LAUNCHER_LOST" in rig.codes()
    job = rig.jobs.job(attempt.job_id)
    assert (job.state, job.counted) == ("waiting", 0)
    rig.close()


def test_agent_and_launcher_both_killed(tmp_path: Path, agents: list[StandIn]) -> None:
    home, agent, attempt_id, pids = begin(tmp_path, agents, ["cooperative_pause"], deaf=True)
    os.kill(pids[0], signal.SIGKILL)
    agent.kill()
    wait_for(lambda: state_of(pids[1]) == "gone")
    rig = Rig(home)
    rig.jobs.adopt()
    rig.until(lambda: not rig.jobs.attempts())
    assert {state_of(pid) for pid in pids} == {"gone"}, "orphans that carry the attempt's id are found"
    wait_for(lambda: carriers(attempt_id) == [])
    assert rig.jobs.job(1).state == "waiting"


def test_what_the_runner_leaves_behind_is_killed_when_it_ends(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work", "children": 2, "detached": 2, "seconds": 1.0})
    rig.until(lambda: len(rig.pids(attempt)) == 4)
    pids = rig.pids(attempt)
    rig.until(lambda: not rig.jobs.attempts())
    assert rig.jobs.job(attempt.job_id).outcome == "done"
    assert {state_of(pid) for pid in pids[1:]} == {"gone"}
    assert attempt.cpu_s is not None
    assert attempt.cpu_s > 0.5, "the children's CPU time is in the attempt's"
    rig.close()


def test_the_launcher_starts_nothing_without_a_word_from_the_agent(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, ["freeze_ok"])
    folder = tmp_path / "attempt"
    folder.mkdir()
    (folder / "launch.json").write_text(
        json.dumps({"attempt_id": "x", "capabilities": [], "stop_grace_s": 1, "silence_s": 10, "adopt_s": 600})
    )
    os.mkfifo(folder / "alive")
    launcher = Path(sys.modules["nodes.jobs.starting"].__file__ or "").with_name("launcher.py")
    done = subprocess.run([sys.executable, "-I", "-S", str(launcher), str(folder)], timeout=60, check=False)
    assert done.returncode == 1
    assert not (folder / "runner.json").exists()
    rig.close()


def test_the_launcher_sleeps_on_while_its_runner_is_stopped_and_let_go(tmp_path: Path) -> None:
    """Else every launcher of a node runs in the moment of a pause, on the cores that the runners need to come to their stop."""
    rig = Rig.with_foreign(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work"})
    rig.until(lambda: attempt.state == "running" and attempt.keeper is not None)
    assert attempt.keeper is not None
    keeper, runner = attempt.keeper.pid, attempt.runner_pid or 0

    def turns() -> int:
        """How often it has gone to sleep since its start."""
        status = Path(f"/proc/{keeper}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches")).split()[1])

    wait_for(lambda: state_of(keeper) == "S")
    before = turns()
    for _ in range(20):  # nobody ticks here, so nothing else wakes it
        os.kill(runner, signal.SIGSTOP)
        wait_for(lambda: state_of(runner) == "T")
        os.kill(runner, signal.SIGCONT)
        wait_for(lambda: state_of(runner) != "T")
    assert turns() - before < 10
    rig.close()
