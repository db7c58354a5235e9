"""Attempts held, lowered and killed whole, with the freezer of a cgroup and without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nodes.agent.process import take_lock
from nodes.jobs.cgroup import Group, make_group, parents
from nodes.jobs.workdir import told_process
from policies.refusal import Refused
from tests.node.jobs_rig import Rig, cpu_ticks, foreign, state_of, wait_for
from tests.node.test_launcher import StandIn


def freezer_here() -> bool:
    group = make_group(f"0-0-{os.getpid():x}", parents())
    return group is not None and group.remove()


needs_freezer = pytest.mark.skipif(
    not freezer_here(), reason="no cgroup2 mount here in which a child group can be made"
)
BOTH_WAYS = [pytest.param(None, id="freezer", marks=needs_freezer), pytest.param([], id="signals")]


def rig_with(place: Path, capabilities: list[str], places: list[str] | None = None, **changes: str) -> Rig:
    rig = Rig(place / "node", places=places)
    state = rig.modules.add(foreign(place, capabilities, **changes))
    assert state.state == "ready", state.why
    return rig


def frozen_by_the_kernel(path: str) -> bool:
    return "frozen 1" in (Path(path) / "cgroup.events").read_text()


@pytest.mark.parametrize("places", BOTH_WAYS)
def test_a_hold_reaches_strays_and_what_goes_on_forking(tmp_path: Path, places: list[str] | None) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"], places)
    attempt = rig.start({"do": "work", "children": 1, "detached": 1, "strays": 2, "forking": True})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) >= 6)
    assert (attempt.group is None) == (places == [])
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    pids = rig.pids(attempt)[1:]
    if attempt.group is not None:
        assert frozen_by_the_kernel(attempt.group.path)
    before = cpu_ticks(pids)
    time.sleep(1.0)
    assert (cpu_ticks(pids), rig.pids(attempt)[1:]) == (before, pids), "no process ran, none was made"
    rig.jobs.release(attempt.attempt_id)
    wait_for(lambda: cpu_ticks(pids) > before + 20)
    rig.close()
    assert {state_of(pid) for pid in pids} == {"gone"}
    assert attempt.group is None or not Path(attempt.group.path).exists()


@needs_freezer
def test_case_072_a_frozen_group_that_the_runner_has_left_is_no_pause(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work", "forking": True})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) >= 3)
    assert attempt.group is not None
    for pid in attempt.group.pids():
        try:
            (Path(attempt.group.path).parent / "cgroup.procs").write_text(str(pid))
        except OSError:
            continue  # it has ended
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    pids = rig.pids(attempt)[1:]
    before = cpu_ticks(pids)
    time.sleep(1.0)
    assert cpu_ticks(pids) == before, "the signals hold what the group does not"
    rig.close()


def test_case_070_a_cancel_leaves_no_child_of_any_kind(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"], stop_grace_s="1")
    attempt = rig.start({"do": "work", "children": 2, "detached": 1, "strays": 2, "deaf": True})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 6)
    pids = rig.pids(attempt)[1:]
    rig.jobs.cancel(attempt.job_id)
    rig.until(lambda: not rig.jobs.attempts())
    assert {state_of(pid) for pid in pids} == {"gone"}
    rig.close()


def test_a_hold_under_an_earlier_agent_costs_no_time_and_what_was_lowered_can_be_raised(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work"})
    rig.until(lambda: attempt.state == "running")
    rig.jobs.set_lowered(attempt.attempt_id, True)
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    ran_s = attempt.unheld_s(time.monotonic())
    with rig.db:
        rig.db.execute("UPDATE attempts SET ran_s = ?", (ran_s,))
    time.sleep(3.0)  # held
    attempt.close()
    rig.db.close()
    second = Rig(rig.home)
    (taken,) = second.jobs.adopt()
    assert taken.unheld_s(time.monotonic()) < ran_s + 1.0, "the three seconds held are not in it"
    assert taken.lowered
    assert second.jobs.set_lowered(taken.attempt_id, False)
    assert os.sched_getscheduler(taken.runner_pid or 0) == os.SCHED_OTHER
    second.close()


def test_a_runner_that_can_do_both_is_frozen_and_told(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, ["freeze_ok", "cooperative_pause"])
    attempt = rig.start({"do": "work"})
    rig.until(lambda: attempt.state == "running")
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    assert state_of(attempt.runner_pid or 0) == "T"
    told = (attempt.folder.work / "control.json").read_text()
    assert '"pause": true' in told
    rig.jobs.release(attempt.attempt_id)
    rig.until(lambda: len(rig.seen()) > 1 and rig.seen()[-1].get("pause") is False)
    rig.close()


@needs_freezer
def test_case_068_a_frozen_group_inside_the_group_does_not_keep_its_processes_from_ending(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"], stop_grace_s="1")
    attempt = rig.start({"do": "work", "children": 2, "deaf": True})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 4)
    assert attempt.group is not None
    child = rig.pids(attempt)[-1]
    inner = Path(attempt.group.path) / "inner"
    inner.mkdir()
    (inner / "cgroup.procs").write_text(str(child))
    (inner / "cgroup.freeze").write_text("1")
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    rig.jobs.stop(attempt.attempt_id, "evicted", requeue=True, fault=False)
    rig.until(lambda: not rig.jobs.attempts())
    ended = next(data for code, data in rig.journal if code == "JOB_ENDED")
    assert (ended["signal"], ended["reason"]) == (signal.SIGKILL, "evicted"), "the outcome is named"
    assert state_of(child) == "gone"
    assert not inner.parent.exists()
    rig.close()


def test_case_072_a_pause_is_claimed_only_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel never says "frozen 1": no pause is claimed, and at the deadline the attempt is stopped by name."""
    rig = rig_with(tmp_path, ["freeze_ok"], None if freezer_here() else [], stop_grace_s="1")
    attempt = rig.start({"do": "work"})
    rig.until(lambda: attempt.state == "running")
    monkeypatch.setattr("nodes.jobs.attempt.HOLD_DEADLINE_S", 1.5)
    if attempt.group is not None:
        monkeypatch.setattr(Group, "frozen", property(lambda self: False))
    else:
        monkeypatch.setattr(type(attempt), "_freeze", lambda self, passes=5: False)
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.state == "stopping" or attempt.hold_confirmed)
    assert not attempt.hold_confirmed
    rig.until(lambda: not rig.jobs.attempts())
    assert "JOB_NOT_HELD" in rig.codes()
    job = rig.jobs.job(attempt.job_id)
    assert (job.state, job.counted) == ("waiting", 0), "requeued, and it costs nothing"
    rig.close()


def shares(rig: Rig, pids: list[int], rival: int) -> float:
    """CPU time of ``pids`` over that of the rival on the same core, over a stretch in which they used 2 s together."""
    ours, other = cpu_ticks(pids), cpu_ticks([rival])
    rig.until(lambda: cpu_ticks(pids) - ours + cpu_ticks([rival]) - other >= 200)
    return (cpu_ticks(pids) - ours) / max(1, cpu_ticks([rival]) - other)


@pytest.mark.parametrize("places", BOTH_WAYS)
def test_case_048_lowering_takes_effect_beside_a_rival_and_is_undone(tmp_path: Path, places: list[str] | None) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"], places)
    attempt = rig.start({"do": "work", "children": 1, "detached": 1})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 3)
    pids = rig.pids(attempt)[1:]
    core = min(os.sched_getaffinity(0))
    spin = "while True: pass"
    rival = subprocess.Popen([sys.executable, "-I", "-S", "-c", spin], start_new_session=True)
    try:
        for pid in (*pids, rival.pid):
            os.sched_setaffinity(pid, {core})
        usual = shares(rig, pids, rival.pid)
        assert rig.jobs.set_lowered(attempt.attempt_id, True)
        low = shares(rig, pids, rival.pid)
        raised = rig.jobs.set_lowered(attempt.attempt_id, False)
        after = shares(rig, pids, rival.pid)
    finally:
        rival.kill()
        rival.wait()
    print(
        f"tree over rival: {usual:.2f} usual, {low:.3f} lowered, {after:.2f} after; by {sorted(attempt.lowering.how)}"
    )
    assert low < usual / 5, "what counts is the effect"
    if raised:
        assert after > low * 5
    rig.close()


@pytest.mark.parametrize("places", BOTH_WAYS)
def test_case_096_streams_that_wait_for_each_other_are_stopped_together_and_go_on_together(
    tmp_path: Path, places: list[str] | None
) -> None:
    """What gates is the whole tree: two threads and a child that pass a token round never wait for one that alone is stopped."""
    rig = rig_with(tmp_path, ["freeze_ok"], places)
    attempt = rig.start({"do": "work", "pair": True})
    path = attempt.folder.work / "rounds"

    def rounds() -> int:
        return int(path.read_text()) if path.exists() else 0

    rig.until(lambda: attempt.state == "running" and rounds() > 20)
    for _ in range(5):
        rig.jobs.hold(attempt.attempt_id, "phase")
        rig.until(lambda: attempt.hold_confirmed)
        before = rounds()
        time.sleep(0.3)
        assert rounds() == before
        rig.jobs.release(attempt.attempt_id)
        rig.until(lambda before=before: rounds() > before + 20)
    rig.close()


def test_a_process_that_comes_later_is_lowered_too(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work", "children": 1, "detached": 1})
    rig.jobs.set_lowered(attempt.attempt_id, True)  # before there is a runner
    rig.until(lambda: len(rig.pids(attempt)) == 3)
    rig.until(lambda: all(os.sched_getscheduler(pid) == os.SCHED_IDLE for pid in rig.pids(attempt)[1:]))
    assert os.sched_getscheduler(rig.pids(attempt)[0]) == os.SCHED_OTHER, "the launcher must stay quick"
    rig.close()


def test_a_runner_that_names_a_stranger_as_itself_gets_no_signal_to_it(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"], stop_grace_s="1")
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        attempt = rig.start({"do": "work", "children": 1})
        path = attempt.folder.root / "runner.json"
        wait_for(path.exists)  # no tick has read it yet
        told = json.loads(path.read_text())
        ticks = int(Path(f"/proc/{stranger.pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
        path.write_text(json.dumps({**told, "pid": stranger.pid, "start_ticks": ticks}))
        rig.until(lambda: attempt.runner is not None)
        assert attempt.runner_pid == stranger.pid
        rig.jobs.hold(attempt.attempt_id, "phase")
        rig.until(lambda: attempt.hold_confirmed and state_of(told["pid"]) == "T")
        assert state_of(stranger.pid) == "S"
        rig.jobs.cancel(attempt.job_id)
        rig.until(lambda: not rig.jobs.attempts())
        assert state_of(stranger.pid) == "S"
        refused = [data for code, data in rig.journal if code == "S16_GUARD"]
        assert [data["pid"] for data in refused] == [stranger.pid], "said once"
    finally:
        stranger.kill()
        stranger.wait()
    rig.close()


@pytest.mark.parametrize("lacks", ["pid", "start_ticks", "boot_id"])
def test_what_a_runner_damages_costs_no_tick_and_no_adoption(tmp_path: Path, lacks: str) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"], stop_grace_s="1")
    attempt = rig.start({"do": "work"})
    path = attempt.folder.root / "runner.json"
    wait_for(path.exists)  # no tick has read it yet
    whole = path.read_text()
    path.write_text(json.dumps({key: value for key, value in json.loads(whole).items() if key != lacks}))
    for _ in range(5):
        rig.jobs.tick(time.monotonic())
    assert attempt.runner is None
    assert told_process(attempt.folder.root, "runner", attempt.attempt_id) is None
    path.write_text(whole)
    rig.until(lambda: attempt.runner is not None)
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed and state_of(json.loads(whole)["pid"]) == "T")
    rig.close()


def test_case_077_nothing_starts_beside_what_survives_sigkill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work"})
    rig.until(lambda: attempt.state == "running")
    monkeypatch.setattr(type(attempt), "_left_behind", lambda self, now: True)
    rig.jobs.tick(time.monotonic())
    waiting = rig.jobs.submit("stranger", None, {"do": "work"})
    with pytest.raises(Refused, match="survives SIGKILL") as caught:
        rig.jobs.start(waiting.job)
    assert caught.value.code == "JOB_UNKILLABLE"
    rig.jobs.tick(time.monotonic())
    assert rig.codes().count("JOB_UNKILLABLE") == 1
    monkeypatch.undo()
    rig.jobs.tick(time.monotonic())
    rig.close()


def test_case_123_no_descriptor_of_the_agent_comes_along(tmp_path: Path) -> None:
    lock = take_lock(tmp_path, "node")
    assert lock is not None
    rig = rig_with(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work", "children": 1})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 3)
    mine = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    }
    assert any(name.endswith("agent.lock") for name in mine)
    for who in rig.jobs.tree(attempt.attempt_id):
        theirs = [os.readlink(f"/proc/{who.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{who.pid}/fd")]
        assert not [name for name in theirs if name.endswith(("agent.lock", "journal.sqlite", "/agent.sock"))], theirs
    os.close(lock)
    again = take_lock(tmp_path, "node")
    assert again is not None, "the attempt lives on, and the lock is free"
    os.close(again)
    rig.close()


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("places", BOTH_WAYS)
def test_agent_and_launcher_killed_leave_no_stray(tmp_path: Path, places: list[str] | None) -> None:
    """The guardian sees to it at once, before any agent comes back: a clean environment and an own session do not help."""
    rig = rig_with(tmp_path, ["freeze_ok"])
    rig.jobs.submit("stranger", None, {"do": "work", "children": 1, "detached": 1, "strays": 2, "deaf": True})
    rig.db.close()
    agent = StandIn(tmp_path / "node", *(["--no-cgroup"] if places == [] else []))
    pids: list[int] = []
    try:
        wait_for(lambda: agent.newest and len(agent.newest[0]["tree"]) == 5)
        pids = [pid for pid, _ in agent.newest[0]["tree"]]
        agent.signal(signal.SIGSTOP)  # so that it cannot help
        os.kill(pids[0], signal.SIGKILL)
        agent.kill()
        wait_for(lambda: {state_of(pid) for pid in pids} == {"gone"})
    finally:
        agent.kill()
        for pid in [one for one in pids if os.fsencode(tmp_path) in cmdline(one)]:
            os.kill(pid, signal.SIGKILL)  # where it failed, nothing of it runs on
    again = Rig(tmp_path / "node")
    again.jobs.adopt()
    again.until(lambda: not again.jobs.attempts())
    assert again.jobs.job(1).counted == 0
    again.close()


def test_the_launcher_ends_the_attempt_when_its_guardian_dies(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"], stop_grace_s="1")
    attempt = rig.start({"do": "work", "children": 1, "detached": 1, "strays": 1, "deaf": True})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 4)
    guardian, *pids = [who.pid for who in rig.jobs.tree(attempt.attempt_id)]
    os.kill(guardian, signal.SIGKILL)
    wait_for(lambda: {state_of(pid) for pid in pids[1:]} == {"gone"})  # no tick: the launcher does it
    rig.until(lambda: not rig.jobs.attempts())
    assert rig.jobs.job(attempt.job_id).counted == 0
    rig.close()
