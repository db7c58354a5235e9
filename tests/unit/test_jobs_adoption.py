"""What an agent takes over of an attempt: the duty that its runner was told, the time it ran, the processes that are its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.identity import ProcessId, boot_id
from nodes.jobs.adoption import carriers, revive, session_mates
from nodes.jobs.guard import Guard
from nodes.jobs.keeping import AttemptKeeper
from nodes.jobs.proctree import Proc, ProcSystem
from nodes.jobs.registry import AttemptRow
from nodes.jobs.runnerfiles import write_document
from nodes.jobs.workdir import AttemptDir

JOB = cast(Any, SimpleNamespace(module="m", short="m", stage="s", timeout_s=None, feed_of=None))


def row(duty: float | None, launcher: ProcessId | None = None, ran_s: float = 0.0) -> AttemptRow:
    return AttemptRow(attempt="1-1-a", job=1, number=1, bundle="b", capabilities=frozenset({"freeze_ok"}), cores=1.0,
                      mem_gb=1.0, stop_grace_s=5.0, launcher=launcher, runner=None, boot_id="another", duty=duty, stop=None,
                      ran_s=ran_s, cgroup=None, tree={})  # fmt: skip


@pytest.mark.parametrize(("kept", "told"), [(0.0, 0.5), (0.5, 0.0), (0.0, None), (None, 0.3)])
def test_an_agent_that_died_between_the_document_and_its_row(
    tmp_path: Path, kept: float | None, told: float | None
) -> None:
    """A duty of 0 that the row remembers is not written again to a runner that was told 0.5: nothing would look changed."""
    folder = AttemptDir(tmp_path / "1-1-a")
    folder.control.parent.mkdir(parents=True)
    write_document(folder.control, {"seq": 3, "pause": False} | ({} if told is None else {"gpu_duty": told}))
    guard = Guard(cast(Any, SimpleNamespace(stat=lambda pid: None, children=lambda pid: [])), lambda *_: None)
    assert revive(row(kept), JOB, tmp_path, guard, 100.0).duty == told


def test_without_a_document_the_row_counts(tmp_path: Path) -> None:
    guard = Guard(cast(Any, SimpleNamespace(stat=lambda pid: None, children=lambda pid: [])), lambda *_: None)
    assert revive(row(0.4), JOB, tmp_path, guard, 100.0).duty == 0.4


@pytest.mark.parametrize(
    ("launch", "gpu"), [(None, True), ({}, True), ({"gpu": None}, True), ({"gpu": True}, True), ({"gpu": False}, False)]
)
def test_an_attempt_uses_the_gpu_unless_what_it_was_started_with_says_no(
    tmp_path: Path, launch: dict[str, Any] | None, gpu: bool
) -> None:
    folder = AttemptDir(tmp_path / "1-1-a")
    folder.control.parent.mkdir(parents=True)
    if launch is not None:
        write_document(folder.root / "launch.json", launch)
    guard = Guard(cast(Any, SimpleNamespace(stat=lambda pid: None, children=lambda pid: [])), lambda *_: None)
    assert revive(row(None), JOB, tmp_path, guard, 100.0).gpu is gpu


@pytest.fixture
def sleepers() -> Iterator[Any]:
    """Starts processes of this user with an environment of the caller's choice; each has left its parent's tree for the guard."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**env: str) -> int:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child.pid

    yield start
    for child in started:
        child.kill()
        child.communicate()


def test_a_leftover_is_known_by_both_of_its_marks_and_by_neither_alone(tmp_path: Path, sleepers: Any) -> None:
    """Who only carries the attempt's name, or only works in that folder, was not started by us: a shell of its owner, say."""
    both = sleepers(OARBANK_ATTEMPT_ID="1-1-a", OARBANK_WORKDIR=str(tmp_path))
    for stranger in (
        {"OARBANK_ATTEMPT_ID": "1-1-a"},
        {"OARBANK_WORKDIR": str(tmp_path)},
        {"OARBANK_ATTEMPT_ID": "1-1-a", "OARBANK_WORKDIR": str(tmp_path / "other")},
    ):
        sleepers(**stranger)
    guard = Guard(ProcSystem(), lambda *_: None)
    found = carriers(guard, "1-1-a", tmp_path)
    assert [proc.pid for proc in found] == [both]
    assert guard.owns(both, found[0].start_ticks)


def test_a_launcher_of_an_earlier_boot_is_nobody_here(tmp_path: Path) -> None:
    """The same pid and start ticks in another boot are another process, and no signal may reach it."""
    me = ProcSystem().stat(os.getpid())
    assert me is not None
    for boot, ours in ((boot_id(), True), ("another", False)):
        guard = Guard(ProcSystem(), lambda *_: None)
        revive(row(None, ProcessId(me.pid, me.start_ticks, boot)), JOB, tmp_path, guard, 100.0)
        assert guard.owns(me.pid, me.start_ticks) is ours


def test_what_ran_under_an_earlier_agent_counts(tmp_path: Path) -> None:
    """Else a workload that an agent's every restart finds running would never have run steadily, and a limit would start anew."""
    guard = Guard(cast(Any, SimpleNamespace(stat=lambda pid: None, children=lambda pid: [])), lambda *_: None)
    assert revive(row(None, ran_s=250.0), JOB, tmp_path, guard, 100.0).unheld_s(100.0) == 250.0


LOST = ProcessId(4_000_000, 1, boot_id())
"""A launcher of this boot that is gone."""


def test_what_the_row_names_is_ours_by_pid_and_start_and_boot(tmp_path: Path, sleepers: Any) -> None:
    """Without a mark and without a parent of ours: the row is enough, and nothing less than all that it says."""
    system = ProcSystem()
    named, other = (system.stat(sleepers()) for _ in range(2))
    assert named is not None
    assert other is not None
    tree = {named.pid: named.start_ticks, other.pid: other.start_ticks + 1}
    guard = Guard(system, lambda *_: None)
    revive(replace(row(None, LOST), tree=tree), JOB, tmp_path, guard, 100.0)
    assert guard.owns(named.pid, named.start_ticks)
    assert not guard.owns(other.pid, other.start_ticks), "that pid was used again"
    for launcher in (ProcessId(LOST.pid, LOST.start_ticks, "another"), None):
        elsewhere = Guard(system, lambda *_: None)
        attempt = revive(replace(row(None, launcher), tree=tree), JOB, tmp_path, elsewhere, 100.0)
        assert not elsewhere.owns(named.pid, named.start_ticks)
        assert attempt.known == {}


LEADER = """
import os, sys
if os.fork() == 0:
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        sys.stdin.read()
    os._exit(0)
os.wait()
sys.stdin.read()
"""


@pytest.fixture
def family() -> Iterator[tuple[Proc, Proc]]:
    """A session's leader, and an orphan in that session that no parent leads to it."""
    system = ProcSystem()
    child = subprocess.Popen([sys.executable, "-c", LEADER], env={}, start_new_session=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert child.stdout is not None
    orphan = system.stat(int(child.stdout.readline()))
    leader = system.stat(child.pid)
    assert leader is not None
    assert orphan is not None
    yield leader, orphan
    child.communicate()  # the end of its input ends both


def test_who_came_after_the_last_look_is_known_by_the_session(family: tuple[Proc, Proc]) -> None:
    leader, orphan = family
    guard = Guard(ProcSystem(), lambda *_: None)
    known = {leader.pid: leader.start_ticks}
    assert session_mates(guard, "1-1-a", known) == [], "the leader itself is nobody's, as far as the guard knows"
    guard.register("1-1-a", leader.pid, leader.start_ticks)
    guard.register("1-1-a", leader.pid, leader.start_ticks + 1)
    assert session_mates(guard, "1-1-a", {leader.pid: leader.start_ticks + 1}) == [], "its pid was used again"
    assert not guard.owns(orphan.pid, orphan.start_ticks)
    assert [proc.pid for proc in session_mates(guard, "1-1-a", known)] == [orphan.pid]
    assert guard.owns(orphan.pid, orphan.start_ticks)


def test_nobody_in_the_agents_own_session_is_a_mate(sleepers: Any) -> None:
    """No process of an attempt is in it; where one seems to be, the others are those of a person's terminal."""
    system = ProcSystem()
    named, other = (system.stat(sleepers()) for _ in range(2))
    assert named is not None
    assert other is not None
    guard = Guard(system, lambda *_: None)
    guard.register("1-1-a", named.pid, named.start_ticks)
    assert session_mates(guard, "1-1-a", {named.pid: named.start_ticks}) == []
    assert not guard.owns(other.pid, other.start_ticks)


def test_a_row_gets_no_process_that_the_guard_does_not_know(sleepers: Any) -> None:
    """A runner may name a stranger as itself: that name must not come back as proof."""
    system = ProcSystem()
    ours, stranger = (system.stat(sleepers()) for _ in range(2))
    assert ours is not None
    assert stranger is not None
    guard = Guard(system, lambda *_: None)
    guard.register("1-1-a", ours.pid, ours.start_ticks)
    written: list[dict[str, Any]] = []
    registry = cast(Any, SimpleNamespace(change_attempt=lambda attempt, **change: written.append(change)))
    known = {ours.pid: ours.start_ticks, stranger.pid: stranger.start_ticks}
    attempt = SimpleNamespace(attempt_id="1-1-a", known=known, unheld_s=lambda now: 0.0, state="running")
    AttemptKeeper(registry, guard.owns).keep(cast(Any, attempt), 100.0)
    assert [json.loads(change["tree"]) for change in written] == [{str(ours.pid): ours.start_ticks}]
