"""A process that took another account: it cannot be signalled, the others can, and nothing claims that it is held."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from nodes.jobs.proctree import ProcSystem, signal_tree
from tests.node.jobs_rig import state_of, wait_for
from tests.node.test_jobs_holding import rig_with
from tests.node.test_unwatched import part

__all__ = ["part"]

NOBODY = 65534
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="processes of two accounts are needed, which root alone can start"
)


@pytest.fixture
def sleepers() -> Iterator[Callable[[int], int]]:
    made: list[subprocess.Popen[bytes]] = []

    def start(uid: int) -> int:
        made.append(subprocess.Popen(["sleep", "600"], user=uid))
        return made[-1].pid

    yield start
    for process in made:
        process.kill()
        process.wait()


def as_nobody(act: Callable[[], None], prepare: Callable[[], None] = lambda: None) -> int:
    """A process of another account that does ``act`` and leaves with 0; it has its parent's account while it does ``prepare``."""
    pid = os.fork()
    if pid:
        return pid
    try:
        prepare()
        os.setresuid(NOBODY, NOBODY, NOBODY)
        act()
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)
    os._exit(0)


@needs_root
def test_the_others_of_its_tree_are_signalled(sleepers: Callable[[int], int]) -> None:
    pids = [sleepers(0), sleepers(NOBODY)]
    members = [found for pid in pids if (found := ProcSystem().stat(pid)) is not None]

    def act() -> None:
        assert [proc.pid for proc in signal_tree(ProcSystem(), members, signal.SIGSTOP)] == pids[1:]

    _, status = os.waitpid(as_nobody(act), 0)
    assert status == 0
    wait_for(lambda: state_of(pids[1]) == "T")
    assert state_of(pids[0]) != "T"


@needs_root
def test_a_guardian_waits_for_it_and_ends_the_others(part: Callable[[str], ModuleType]) -> None:
    guardian = part("guardian")
    end_read, end_write = os.pipe()
    told_read, told_write = os.pipe()

    def bear(kind: str) -> None:
        pid = os.fork()
        if pid == 0:
            os.close(end_write)
            os.read(end_read, 1)
            os._exit(0)
        os.write(told_write, f"{pid} {kind}\n".encode())

    def act() -> None:
        bear("own")
        os.close(end_write)
        guardian._clear_away()

    pid = as_nobody(act, lambda: bear("root"))
    try:
        told = b""
        while told.count(b"\n") < 2:
            told += os.read(told_read, 100)
        below = {kind: int(number) for number, kind in (line.split() for line in told.decode().splitlines())}
        wait_for(lambda: state_of(below["own"]) == "gone")
        time.sleep(0.5)
        assert state_of(pid) != "gone", "it goes on waiting"
        assert state_of(below["root"]) != "gone"
    finally:
        os.close(end_write)  # it ends by itself
        _, status = os.waitpid(pid, 0)
    assert status == 0


def test_a_hold_that_does_not_reach_it_is_not_claimed_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"], [], stop_grace_s="1")
    attempt = rig.start({"do": "work", "children": 2, "detached": 1})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 4)
    *others, refuses = rig.pids(attempt)[1:]
    send = signal.pidfd_send_signal

    def refused(fd: int, sig: int) -> None:
        if f"\nPid:\t{refuses}\n" in Path(f"/proc/self/fdinfo/{fd}").read_text():
            raise PermissionError(1, "Operation not permitted")
        send(fd, sig)

    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    monkeypatch.setattr("nodes.jobs.attempt.HOLD_DEADLINE_S", 3.0)
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: {state_of(pid) for pid in others} == {"T"})
    assert not attempt.hold_confirmed
    assert state_of(refuses) != "T"
    rig.until(lambda: attempt.state == "stopping")
    (named,) = [data for code, data in rig.journal if code == "JOB_NOT_HELD"]
    assert named["pids"] == [refuses]
    monkeypatch.undo()
    rig.close()


@pytest.mark.skipif(
    "\nNoNewPrivs:\t1\n" in Path("/proc/self/status").read_text(), reason="nothing here can gain any, whatever we do"
)
def test_a_runner_gains_no_privileges(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work", "children": 1})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 3)
    for pid in rig.pids(attempt)[1:]:
        assert "\nNoNewPrivs:\t1\n" in Path(f"/proc/{pid}/status").read_text()
    rig.close()


def test_a_signal_that_comes_as_its_launcher_ends_does_not_end_a_guardian(part: Callable[[str], ModuleType]) -> None:
    guardian = part("guardian")
    collect = os.waitpid
    told_read, told_write = os.pipe()

    def launch() -> int:
        stray = os.fork()
        if stray == 0:
            time.sleep(600.0)
        os.write(told_write, f"{stray}\n".encode())
        return 7

    pid = os.fork()
    if pid == 0:

        def collected(which: int, options: int) -> tuple[int, int]:
            found = collect(which, options)
            os.kill(os.getpid(), signal.SIGTERM)
            return found

        try:
            guardian.os.waitpid = collected
            os._exit(guardian.watch_over(launch))
        finally:
            os._exit(1)
    stray = int(os.read(told_read, 100))
    try:
        _, status = collect(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        wait_for(lambda: state_of(stray) == "gone", patience_s=5.0)
    finally:
        if state_of(stray) != "gone":
            os.kill(stray, signal.SIGKILL)
