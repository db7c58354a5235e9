"""A process whose main thread has ended while another runs: its own state letter is a zombie's, and it works on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.sdk import supervisor
from nodes.agent.reflex import _stopped
from nodes.identity import identify, liveness
from nodes.jobs.proctree import Proc, ProcSystem
from tests.node.jobs_rig import Rig, cpu_ticks, headless, state_of, wait_for
from tests.node.test_jobs_holding import BOTH_WAYS, rig_with
from tests.node.test_launcher import StandIn

HEADLESS = """
import ctypes, threading

def work():
    while True:
        pass

threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def pid() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", HEADLESS])
    try:
        wait_for(lambda: headless(child.pid))
        yield child.pid
    finally:
        child.kill()
        child.wait(timeout=60)


def seen(pid: int) -> Proc:
    found = ProcSystem().stat(pid)
    assert found is not None
    return found


def test_it_is_alive_until_its_last_thread_has_ended(pid: int) -> None:
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "what this test is about"
    assert not seen(pid).dead
    assert seen(pid).state in "RS"
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: seen(pid).state == "T")
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: seen(pid).state in "RS")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: seen(pid).dead)


def test_a_pause_is_not_seen_in_it_before_its_threads_are_stopped(pid: int) -> None:
    stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        assert not _stopped(stat)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: _stopped(stat))
    finally:
        os.close(stat)


def test_its_identity_is_that_of_a_live_process_and_a_supervisor_meets_it(pid: int) -> None:
    who = identify(pid)
    assert who is not None
    assert liveness(who) == "alive"
    assert supervisor._born(pid) == str(who.start_ticks)
    wait_for(lambda: supervisor._state(pid) in "RS")
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: supervisor._state(pid) == "T")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: liveness(who) == "gone")
    assert (identify(pid), supervisor._born(pid), supervisor._state(pid)) == (None, None, "Z")


@pytest.mark.parametrize("places", BOTH_WAYS)
def test_a_hold_reaches_it_and_lets_it_go_on(tmp_path: Path, places: list[str] | None) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"], places)
    attempt = rig.start({"do": "work", "headless": 1})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 3 and headless(rig.pids(attempt)[-1]))
    pids = rig.pids(attempt)[1:]
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    before = cpu_ticks(pids)
    time.sleep(1.0)
    assert cpu_ticks(pids) == before, "a hold that is confirmed holds all of it"
    rig.jobs.release(attempt.attempt_id)
    child = cpu_ticks(pids[-1:])
    wait_for(lambda: cpu_ticks(pids[-1:]) > child)
    rig.close()
    assert {state_of(pid) for pid in pids} == {"gone"}


@pytest.mark.parametrize("killed", ["the agent", "the launcher"])
def test_it_does_not_work_on_where_its_keepers_are_killed(tmp_path: Path, killed: str) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"], [])
    rig.jobs.submit("stranger", None, {"do": "work", "headless": 1, "deaf": True})
    rig.db.close()
    agent = StandIn(tmp_path / "node", "--no-cgroup")
    pids: list[int] = []
    try:
        wait_for(
            lambda: agent.newest and len(agent.newest[0]["tree"]) == 3 and headless(agent.newest[0]["tree"][-1][0])
        )
        pids = [pid for pid, _ in agent.newest[0]["tree"]]
        if killed == "the agent":
            agent.kill()
            wait_for(lambda: state_of(pids[1]) == "T")
            wait_for(lambda: state_of(pids[2]) == "T", patience_s=20.0)
        else:
            agent.signal(signal.SIGSTOP)  # so that it cannot help
            os.kill(pids[0], signal.SIGKILL)
            wait_for(lambda: {state_of(pid) for pid in pids} == {"gone"}, patience_s=20.0)
    finally:
        agent.kill()
        for pid in pids[1:]:
            if state_of(pid) != "gone":
                os.kill(pid, signal.SIGKILL)  # where it failed, nothing of it runs on
    again = Rig(tmp_path / "node")
    again.jobs.adopt()
    again.until(lambda: not again.jobs.attempts())
    again.close()
