"""Never a signal to a process outside the spawn registry's trees, whatever the process table does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodes.identity import ProcessId, boot_id
from nodes.jobs.attempt import Attempt
from nodes.jobs.proctree import Proc, ProcSystem
from nodes.jobs.workdir import AttemptDir
from policies.jobs import Stop

LAUNCHER = 100
RUNNER = 101
PIDS = range(90, 112)


@dataclass
class World:
    """A process table that changes under the feet of whoever reads it: after each look some pid may be somebody else."""

    table: dict[int, Proc]
    swaps: list[tuple[int, Proc | None]]
    sent: list[tuple[int, int, int]] = field(default_factory=list)

    def _turn(self) -> None:
        if self.swaps:
            pid, proc = self.swaps.pop()
            if proc is None:
                self.table.pop(pid, None)
            else:
                self.table[pid] = proc

    def stat(self, pid: int) -> Proc | None:
        found = self.table.get(pid)
        self._turn()
        return found

    def children(self, pid: int) -> list[int]:
        # stale on purpose: every pid, so that only what the parent field says can keep strangers out
        self._turn()
        return [child for child in self.table if child != pid]

    def kill(self, pid: int, start_ticks: int, sig: int) -> bool:
        found = self.table.get(pid)
        if found is None or found.start_ticks != start_ticks:
            return False  # what a pidfd does
        self.sent.append((pid, start_ticks, sig))
        return True


def proc(pid: int, ppid: int, ticks: int, state: str) -> Proc:
    return Proc(pid, ticks, ppid, state, LAUNCHER, 0, 0)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    def one(pid: int) -> Proc:
        parent = draw(st.sampled_from([1, *PIDS]))
        return proc(pid, parent, draw(st.integers(1, 60)), draw(st.sampled_from("RSDTZ")))

    table = {pid: one(pid) for pid in draw(st.sets(st.sampled_from(PIDS)))}
    if draw(st.booleans()):
        table[LAUNCHER] = proc(LAUNCHER, 1, 10, "S")
    if draw(st.booleans()):
        table[RUNNER] = proc(RUNNER, LAUNCHER, 11, "R")
    swaps = [
        (pid, one(pid) if draw(st.booleans()) else None) for pid in draw(st.lists(st.sampled_from(PIDS), max_size=12))
    ]
    return World(table, swaps)


def attempt_in(world: World, folder: Path, capabilities: set[str]) -> Attempt:
    (folder / "work").mkdir(exist_ok=True, parents=True)
    return Attempt(
        attempt_id="1-1-aa",
        number=1,
        job_id=1,
        module="m",
        short="m",
        stage="s",
        capabilities=frozenset(capabilities),
        cores=1.0,
        mem_gb=0.0,
        stop_grace_s=1.0,
        timeout_s=None,
        feed_of=None,
        gpu=False,
        folder=AttemptDir(folder),
        system=world,
        spawned_mono_s=0.0,
        launcher=ProcessId(LAUNCHER, 10, boot_id()),
        runner=ProcessId(RUNNER, 11, boot_id()),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world=worlds(),
    capabilities=st.sets(st.sampled_from(["freeze_ok", "cooperative_pause", "cancellable"])),
    acts=st.lists(
        st.sampled_from(["brake", "hold", "release", "stop", "step", "late", "lost", "leftovers", "duty"]), max_size=8
    ),
)
def test_no_signal_leaves_the_trees(tmp_path: Path, world: World, capabilities: set[str], acts: list[str]) -> None:
    attempt = attempt_in(world, tmp_path, capabilities)
    now = 0.0
    attempt.begin(now, held_reason=None)
    ever = {(LAUNCHER, 10), (RUNNER, 11)}
    for act in acts:
        now += 0.1
        before = len(world.sent)
        # everything that is, or during this act becomes, part of the tree by the kernel's own word
        ever |= lineage(world, ever)
        if act == "brake":
            attempt.brake()
        elif act == "hold":
            attempt.hold("phase", now)
        elif act == "release":
            attempt.release(now)
        elif act == "stop":
            attempt.stop(Stop("evicted", True, False), now)
        elif act == "step":
            attempt.step(now)
        elif act == "late":
            now += 1000.0
            attempt.step(now)
        elif act == "lost":
            attempt.launcher_lost = True
        elif act == "duty":
            attempt.set_limits(duty=now / 1000.0, threads=None)
        else:
            attempt.kill_leftovers([])
        ever |= lineage(world, ever)
        for pid, ticks, sig in world.sent[before:]:
            assert (pid, ticks) in ever, (act, pid, ticks, sig)
            if (pid, ticks) == (LAUNCHER, 10):
                pytest.fail("the launcher is never signalled: it reports the end")


def lineage(world: World, roots: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Independent of the code under test: climb parent fields from each process, over every table the swaps may make."""
    tables = [dict(world.table)]
    for pid, change in reversed(world.swaps):
        after = dict(tables[-1])
        if change is None:
            after.pop(pid, None)
        else:
            after[pid] = change
        tables.append(after)
    mixed: dict[int, set[Proc]] = {}
    for table in tables:
        for pid, item in table.items():
            mixed.setdefault(pid, set()).add(item)
    found = set(roots)
    grown = True
    while grown:
        grown = False
        for pid, items in mixed.items():
            for item in items:
                # a parent of that pid that started no later; a younger one cannot have borne it
                born = any(parent == item.ppid and ticks <= item.start_ticks for parent, ticks in found)
                if born and (pid, item.start_ticks) not in found:
                    found.add((pid, item.start_ticks))
                    grown = True
    return found


def test_a_used_pid_is_nobody_of_ours(tmp_path: Path) -> None:
    stranger = proc(RUNNER, 1, 99, "R")
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: stranger}, [])
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.begin(0.0, held_reason=None)
    attempt.hold("phase", 1.0)
    attempt.stop(Stop("evicted", True, False), 2.0)
    attempt.step(100.0)
    assert world.sent == []


def test_the_kernels_own_table_is_asked_who_a_pid_is_before_a_signal_goes_out() -> None:
    system = ProcSystem()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = system.stat(child.pid)
        assert found is not None
        assert system.kill(child.pid, found.start_ticks + 1, signal.SIGKILL) is False
        assert system.kill(child.pid, found.start_ticks, 0) is True
        child.communicate(b"\n", timeout=60)
        assert child.returncode == 0, "the signal that was meant for another has not reached it"
    finally:
        child.kill()
        child.wait()


def test_a_child_older_than_its_parent_is_a_stranger(tmp_path: Path) -> None:
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), 105: proc(105, LAUNCHER, 5, "R")}, [])
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.hold("phase", 1.0)
    assert world.sent == []


def test_a_child_born_while_the_tree_is_being_stopped_is_stopped_too(tmp_path: Path) -> None:
    born = proc(106, RUNNER, 50, "R")
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "R")}, [])
    kill = world.kill

    def kill_and_bear(pid: int, ticks: int, sig: int) -> bool:
        done = kill(pid, ticks, sig)
        if sig == signal.SIGSTOP:
            world.table[pid] = world.table[pid]._replace(state="T")
            world.table.setdefault(106, born)
        return done

    world.kill = kill_and_bear  # type: ignore[method-assign]
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.begin(0.0, held_reason=None)
    attempt.hold("phase", 1.0)
    attempt.step(1.1)
    assert attempt.hold_confirmed
    assert (106, 50, signal.SIGSTOP) in world.sent


def test_case_072_paused_is_claimed_only_when_confirmed(tmp_path: Path) -> None:
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "D")}, [])
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.begin(0.0, held_reason=None)
    attempt.hold("phase", 1.0)
    assert attempt.step(5.0) == []
    assert not attempt.hold_confirmed, "a process in state D does not stop"
    assert "hold_failed" in attempt.step(12.0), "the freeze has a deadline"


def test_a_hold_lasts_ten_minutes_unless_a_run_asked_for_it(tmp_path: Path) -> None:
    for unlimited, expected in ((False, True), (True, False)):
        world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "T")}, [])
        attempt = attempt_in(world, tmp_path, {"freeze_ok"})
        attempt.begin(0.0, held_reason=None)
        attempt.hold("phase", 1.0, unlimited=unlimited)
        assert "pause_limit" not in attempt.step(601.0)
        assert ("pause_limit" in attempt.step(601.2)) is expected


def test_time_held_does_not_count_against_the_timeout_nor_as_run(tmp_path: Path) -> None:
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "T")}, [])
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.timeout_s = 20.0
    attempt.begin(0.0, held_reason=None)
    attempt.first_phase_mono_s = 2.0
    attempt.hold("phase", 10.0, unlimited=True)
    attempt.release(110.0)
    assert attempt.unheld_s(115.0) == 15.0
    assert attempt.transitions == [(0.0, 10.0), (110.0, None)]
    assert "timeout" not in attempt.step(119.0)
    assert "timeout" in attempt.step(121.0)


def test_case_069_a_frozen_runner_is_continued_before_term(tmp_path: Path) -> None:
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "T")}, [])
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.begin(0.0, held_reason=None)
    attempt.hold("phase", 1.0)
    attempt.stop(Stop("cancelled", False, False), 2.0)
    signals = [sig for pid, _, sig in world.sent if pid == RUNNER]
    assert signals.index(signal.SIGCONT) < signals.index(signal.SIGTERM)
    attempt.step(3.5)
    assert world.sent[-1] == (RUNNER, 11, signal.SIGKILL)


def test_case_077_what_survives_kill_is_said(tmp_path: Path) -> None:
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "D")}, [])
    attempt = attempt_in(world, tmp_path, set())
    attempt.begin(0.0, held_reason=None)
    attempt.stop(Stop("cancelled", False, False), 2.0)
    attempt.step(10.0)
    assert not attempt.unkillable
    attempt.step(40.0)
    assert attempt.unkillable
    assert attempt.state == "stopping", "it still counts"


def test_a_runner_that_stops_itself_after_the_release_goes_on(tmp_path: Path) -> None:
    """Started held: the agent's stop may come before the runner's own, which then takes effect after the release."""
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "T")}, [])
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.begin(0.0, held_reason="held at start", stopped_at_start=True)
    attempt.release(1.0)
    world.sent.clear()
    attempt.step(1.5)
    assert world.sent == [(RUNNER, 11, signal.SIGCONT)]


def test_a_nudge_that_came_before_the_runner_was_known_is_made_up_for(tmp_path: Path) -> None:
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "S")}, [])
    attempt = attempt_in(world, tmp_path, {"cooperative_pause"})
    attempt.runner = None
    attempt.begin(0.0, held_reason=None)
    assert attempt.hold("OFF", 0.1)
    assert world.sent == []
    told = {"attempt_id": attempt.attempt_id, "pid": RUNNER, "start_ticks": 11, "boot_id": boot_id()}
    (tmp_path / "runner.json").write_text(json.dumps(told))
    attempt.step(0.2)
    assert (RUNNER, 11, signal.SIGUSR1) in world.sent


@pytest.mark.parametrize("zombie", [True, False])
def test_what_hung_below_a_launcher_that_was_killed_is_still_known(tmp_path: Path, zombie: bool) -> None:
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "S"),
                   102: proc(102, RUNNER, 12, "R")}, [])  # fmt: skip
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.begin(0.0, held_reason=None)
    attempt.step(1.0)
    world.table = {102: proc(102, 1, 12, "R")} | ({LAUNCHER: proc(LAUNCHER, 1, 10, "Z")} if zombie else {})
    attempt.step(2.0)
    attempt.launcher_lost = True
    assert not attempt.kill_leftovers([])
    assert (102, 12, signal.SIGKILL) in world.sent


def test_what_is_below_a_leftover_is_ended_with_it(tmp_path: Path) -> None:
    """Once its parent is gone nothing leads to it: it is found, and its parent stopped, before anything is killed."""
    world = World({102: proc(102, 1, 12, "R"), 103: proc(103, 102, 13, "R"), 104: proc(104, 1, 14, "R")}, [])
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.begin(0.0, held_reason=None)
    attempt.launcher_lost = True
    assert not attempt.kill_leftovers([world.table[102]])
    assert world.sent.index((102, 12, signal.SIGSTOP)) < world.sent.index((102, 12, signal.SIGKILL))
    assert (103, 13, signal.SIGKILL) in world.sent
    world.table = {103: proc(103, 1, 13, "R"), 104: proc(104, 1, 14, "R")}
    world.sent.clear()
    assert not attempt.kill_leftovers([])
    assert (103, 13, signal.SIGKILL) in world.sent, "it survived its parent, and is known"
    world.table.pop(103)
    assert attempt.kill_leftovers([])
    assert [pid for pid, _, _ in world.sent if pid == 104] == []


def test_the_ten_minutes_begin_when_a_runs_hold_becomes_a_rules(tmp_path: Path) -> None:
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "T")}, [])
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.begin(0.0, held_reason=None)
    attempt.hold("OFF", 1.0, unlimited=True)
    assert "pause_limit" not in attempt.step(5000.0)
    attempt.hold("phase", 5000.0)
    assert "pause_limit" not in attempt.step(5599.0)
    assert "pause_limit" in attempt.step(5601.0)


def test_case_077_what_outlives_its_runner_and_every_kill_is_said(tmp_path: Path) -> None:
    """The runner ended by itself; a child in state D keeps its launcher from reporting."""
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "S"),
                   102: proc(102, RUNNER, 12, "D")}, [])  # fmt: skip
    attempt = attempt_in(world, tmp_path, set())
    attempt.begin(0.0, held_reason=None)
    attempt.step(1.0)
    world.table = {LAUNCHER: proc(LAUNCHER, 1, 10, "S"), 102: proc(102, LAUNCHER, 12, "D")}
    attempt.step(2.0)
    assert not attempt.unkillable
    attempt.step(33.0)
    assert attempt.unkillable
    del world.table[102]
    attempt.step(34.0)
    assert not attempt.unkillable, "it is gone after all"


def test_case_081_a_runner_gets_the_grace_that_it_declares_and_not_another(tmp_path: Path) -> None:
    """Ninety seconds to tear its contexts down are ninety seconds; half of them are for its own way of stopping."""
    for name, capabilities, term_at in (("plain", set[str](), 0.0), ("asked", {"cancellable"}, 45.0)):
        world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "R")}, [])
        attempt = attempt_in(world, tmp_path / name, capabilities)
        attempt.stop_grace_s = 90.0
        attempt.begin(0.0, held_reason=None)
        attempt.stop(Stop("evicted", True, False), 100.0)
        sent: dict[int, float] = {}
        for second in range(100, 195):
            before = len(world.sent)
            attempt.step(float(second))
            for _, _, sig in world.sent[before if second > 100 else 0 :]:
                sent.setdefault(sig, second - 100.0)
        assert (sent[signal.SIGTERM], sent[signal.SIGKILL]) == (term_at, 90.0), name


@pytest.mark.parametrize("set_s", [3600.0, -3600.0])
def test_case_041_when_the_work_began_is_no_matter_of_the_wall_clock(tmp_path: Path, set_s: float) -> None:
    """Its first phase is seen by a file's date: a clock that was set meanwhile moves it no further back than our last look."""
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "R")}, [])
    attempt = attempt_in(world, tmp_path, {"freeze_ok"})
    attempt.begin(0.0, held_reason=None)
    attempt.step(40.0)
    assert attempt.first_phase_mono_s is None
    path = attempt.folder.work / "phase"
    path.write_text("working\n")
    written_s = path.stat().st_mtime
    os.utime(path, (written_s - set_s, written_s - set_s))
    attempt.step(42.0)
    assert 40.0 <= (attempt.first_phase_mono_s or 0.0) <= 42.0
