"""Runners that multiply, that ignore everything, and whose pids are somebody else's by now, under a real agent."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.faults.beside import Beside
from tests.node.agent_rig import wait_for
from tests.node.jobs_rig import cpu_ticks, state_of

BOMB = 120
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def test_a_fork_bomb_is_held_whole_and_ended_whole_while_the_agent_answers(node: Beside) -> None:
    (job,) = node.begin(["freeze_ok"], {"do": "work", "bomb": BOMB})
    wait_for("they are many", lambda: len(node.runners()) > BOMB, 90)
    node.say("busy")
    node.is_held()
    wait_for("the hold is there", lambda: node.job(job)["state"] == "held", 60)
    pids = node.runners()
    before = cpu_ticks(pids)
    assert node.still(lambda: node.runners() == pids), "none was made, none went"
    assert cpu_ticks(pids) == before
    node.say("idle")
    node.goes_on()
    node.client.call("job_cancel", job=job)
    wait_for("all of it is gone", lambda: not node.runners(), 90)
    node.until(job, "ended")
    assert not node.timeline("JOB_UNKILLABLE")


def test_a_runner_that_ignores_everything_is_stopped_by_what_cannot_be_ignored(node: Beside) -> None:
    payload = {"do": "work", "deaf": True, "children": 2, "detached": 1}
    (job,) = node.begin(["cooperative_pause", "cancellable"], payload, stop_grace_s="1")
    wait_for("its children run", lambda: len(node.runners()) == 3, 60)
    deaf = node.runners()
    node.say("busy")
    wait_for("it did not pause, so it is gone", lambda: all(state_of(pid) == "gone" for pid in deaf), 90)
    wait_for("it waits for the phase to end", lambda: node.job(job)["state"] == "waiting", 60)
    (told,) = node.timeline("JOB_NOT_HELD")
    assert set(told["data"]["pids"]) & set(deaf)
    assert node.job(job)["attempts"][0]["verdict"] == "did not pause"


def stranger_with_pid(pid: int) -> subprocess.Popen[bytes] | None:
    """A process of somebody else's under a pid that was used before."""
    until = time.monotonic() + 20.0
    while time.monotonic() < until:
        LAST_PID.write_text(str(pid - 1))
        other = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if other.pid == pid:
            return other
        other.kill()
        other.wait()
    return None


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="the next pid can be chosen by root alone")
def test_the_pid_of_a_dead_runner_is_nobody_of_ours(node: Beside) -> None:
    (job,) = node.begin(["freeze_ok"], {"do": "work"})
    (runner,) = node.runners()
    assert node.agent is not None
    # agent, launcher and guardian go with the runner: what is left is what stands in the registry
    parents = [_parent(runner), _parent(_parent(runner))]
    os.kill(node.agent.pid, signal.SIGKILL)
    node.agent.wait()
    for pid in (*reversed(parents), runner):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    wait_for("they are gone", lambda: all(state_of(pid) == "gone" for pid in (runner, *parents)), 30)
    strangers = [stranger_with_pid(pid) for pid in (runner, *parents)]
    try:
        if None in strangers:
            pytest.skip("those pids did not come up again")
        node.say("busy")
        node.start_agent()
        node.until(job, "waiting")
        assert node.job(job)["attempts"][0]["verdict"].startswith("nobody saw the attempt end")
        node.say("idle")
        node.until(job, "running")
        # held before it is a runner it would be stopped as its launcher's child, which is none of those looked at here
        wait_for("its runner runs", lambda: bool(node.runners()), 90)
        node.say("busy")
        node.is_held()
        assert [state_of(other.pid) for other in strangers if other is not None] == ["S", "S", "S"]
        assert all(other.poll() is None for other in strangers if other is not None)
        assert set(node.runners()).isdisjoint({runner, *parents})
    finally:
        for other in strangers:
            if other is not None:
                other.kill()
                other.wait()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
