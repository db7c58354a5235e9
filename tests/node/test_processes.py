"""The process table over fake /proc trees: who a process is, and when it is another one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nodes import processes
from nodes.processes import CYCLE, YOUNG_S
from nodes.procfs import ProcFs
from tests.node.proc_rig import FakeProc


def test_facts_of_a_process(fake: FakeProc) -> None:
    fake.add(10, 1, start=500, name="a) (b c", exe="/opt/x/run (deleted)", argv=("run", "--a b", ""), uid=7)
    info = fake.tick().snapshot()[10]
    assert (info.pid, info.ppid, info.start_ticks, info.name) == (10, 1, 500, "a) (b c")
    assert info.exe == "/opt/x/run", "a program that was replaced while it runs is still that program"
    assert info.argv is not None
    assert info.argv[:2] == ("run", "--a b")
    assert info.uid == 7
    assert not info.kernel_thread


def test_kernel_threads_are_flagged(fake: FakeProc) -> None:
    fake.add(2, 0, name="kthreadd", exe=None, argv=(), flags=0x00200040)
    info = fake.tick().snapshot()[2]
    assert info.kernel_thread
    assert info.argv == ()


def test_unreadable_facts_are_none_and_a_snapshot_never_changes(fake: FakeProc) -> None:
    fake.add(10, 1, exe=None)
    (fake.root / "10" / "cmdline").unlink()
    (fake.root / "10" / "status").unlink()
    before = fake.tick().snapshot()
    assert (before[10].exe, before[10].argv, before[10].uid) == (None, None, None)
    fake.end(10)
    fake.tick()
    assert 10 in before
    assert 10 not in fake.table.snapshot()


def test_a_stat_that_cannot_be_understood_is_an_unknown_process(fake: FakeProc) -> None:
    fake.add(10, 1)
    (fake.root / "10" / "stat").write_text("10 nonsense")
    info = fake.tick().snapshot()[10]
    assert (info.start_ticks, info.ppid, info.name) == (None, None, None)


def test_case_042_what_cannot_be_read_again_stays_what_it_was(fake: FakeProc) -> None:
    fake.add(10, 1, start=500, exe="/opt/trainer/run")
    known = fake.tick().snapshot()[10]
    (fake.root / "10" / "stat").write_text("unreadable")
    assert fake.tick(CYCLE + 5).snapshot()[10] == known
    assert fake.table.vanished == ()


def test_case_041_no_clock_can_change_who_a_process_is(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.add(10, 1, start=500)
    known = fake.tick().snapshot()[10]
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert fake.tick(CYCLE + 5).snapshot()[10] == known
    assert (fake.table.appeared, fake.table.vanished, fake.table.changed) == ((), (), ())


def test_a_reused_pid_is_another_process_at_once(fake: FakeProc) -> None:
    fake.add(10, 1, start=500, name="old")
    fake.add(900, 1, start=600)
    fake.tick(20)
    fake.add(10, 1, start=70_000, name="new")  # the kernel's pids went round: 900 … 10
    table = fake.tick()
    assert table.snapshot()[10].name == "new"
    assert [(info.pid, info.start_ticks) for info in table.vanished] == [(10, 500)]
    assert [(info.pid, info.start_ticks) for info in table.appeared] == [(10, 70_000)]


def test_a_pid_set_by_hand_is_noticed_within_a_cycle(fake: FakeProc) -> None:
    for pid in range(10, 60):
        fake.add(pid, 1, start=500, name="old")
    fake.tick(20)
    last = fake.last_pid
    fake.add(30, 1, start=70_000, name="new")
    fake.last_pid = last
    fake.count()
    for _ in range(2 * CYCLE):
        if fake.tick().snapshot()[30].name == "new":
            break
    assert fake.table.snapshot()[30].name == "new"


def test_an_exec_of_a_young_process_is_seen_at_the_next_look(fake: FakeProc) -> None:
    fake.add(10, 1, start=500, name="sh", exe="/bin/sh", argv=("sh", "run.sh"))
    fake.tick()
    fake.add(10, 1, start=500, name="trainer", exe="/opt/trainer/run", argv=("run",))
    table = fake.tick()
    assert table.snapshot()[10].exe == "/opt/trainer/run"
    assert [info.pid for info in table.changed] == [10]


def test_a_late_exec_with_the_same_name_is_seen_within_a_cycle(fake: FakeProc) -> None:
    for pid in range(10, 60):
        fake.add(pid, 1, start=500, name="python", argv=("python", "wrapper.py"))
    fake.tick(int(YOUNG_S / 2) + 5)
    fake.add(30, 1, start=500, name="python", argv=("python", "train.py"))
    fake.last_pid = 59
    fake.count()
    for _ in range(2 * CYCLE):
        if fake.tick().snapshot()[30].argv == ("python", "train.py"):
            break
    assert fake.table.snapshot()[30].argv == ("python", "train.py")


def test_a_program_whose_folder_is_renamed_is_the_program_that_it_was(fake: FakeProc, tmp_path: Path) -> None:
    folder = tmp_path / "current"
    folder.mkdir()
    (folder / "trainer").touch()
    fake.add(10, 1, start=500, exe=str(folder / "trainer"))
    fake.tick()
    folder.rename(tmp_path / "before")
    fake.add(10, 1, start=500, name="renamed", exe=str(tmp_path / "before/trainer"))
    info = fake.tick().snapshot()[10]
    assert (info.name, info.exe) == ("renamed", str(folder / "trainer"))


def test_an_exec_of_the_same_file_under_another_path_has_that_path(fake: FakeProc, tmp_path: Path) -> None:
    wrapper, trainer = tmp_path / "wrapper", tmp_path / "trainer"
    wrapper.touch()
    trainer.hardlink_to(wrapper)
    fake.add(10, 1, start=500, name="wrapper", exe=str(wrapper))
    fake.tick()
    fake.add(10, 1, start=500, name="trainer", exe=str(trainer))
    assert fake.tick().snapshot()[10].exe == str(trainer)


def test_an_exec_while_it_is_read_first_is_seen_at_the_next_look(
    fake: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, trainer = tmp_path / "sh", tmp_path / "trainer"
    shell.touch()
    trainer.touch()
    fake.add(10, 1, start=500, name="sh", exe=str(shell))
    reads = ProcFs._argv

    def then_it_executes(procfs: ProcFs, pid: int, kernel: bool) -> tuple[str, ...] | None:
        monkeypatch.setattr(ProcFs, "_argv", reads)
        found = reads(procfs, pid, kernel)
        fake.add(10, 1, start=500, name="trainer", exe=str(trainer))
        return found

    monkeypatch.setattr(ProcFs, "_argv", then_it_executes)
    fake.tick()
    assert fake.tick().snapshot()[10].exe == str(trainer)


def test_what_is_looked_at_closely_is_seen_to_end_and_to_exec_at_once(fake: FakeProc, tmp_path: Path) -> None:
    """As of a program that starts itself anew through a link to its newest release: its name and arguments are the same."""
    old, new = tmp_path / "release-1", tmp_path / "release-2"
    old.touch()
    new.touch()
    for pid in range(10, 100):
        fake.add(pid, 1, start=500, exe=str(old))
    fake.tick(int(YOUNG_S / 2) + CYCLE)
    fake.add(20, 1, start=500, exe=None, state="Z")  # nobody collects it: it stays in the list
    fake.add(30, 1, start=500, exe=str(new))
    fake.last_pid = 99
    fake.count()
    fake.table.refresh(fake.now_s, (20, 30, 40, 7))
    assert [info.pid for info in fake.table.vanished] == [20]
    assert [(info.pid, info.exe) for info in fake.table.changed] == [(30, str(new))]


def test_the_exec_that_a_script_ends_in_is_seen_at_once(
    fake: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, trainer = tmp_path / "bash", tmp_path / "trainer"
    shell.touch()
    trainer.touch()
    for pid in range(10, 100):
        fake.add(pid, 1, start=500, name="bash", exe=str(shell), argv=("bash", "-"))
    fake.add(200, 1, start=600, name="bash", exe=str(shell), argv=("bash", "run.sh"))
    fake.tick(int(YOUNG_S / 2) + CYCLE)
    fake.add(200, 1, start=600, name="trainer", exe=str(trainer), argv=("trainer",))
    assert [info.exe for info in fake.tick().changed] == [str(trainer)]
    fake.tick(int(YOUNG_S / 2) + 1)
    real, looked = processes.os.stat, []
    monkeypatch.setattr(processes.os, "stat", lambda path: looked.append(path) or real(path))
    fake.tick()
    assert len(looked) <= processes.SHELLS_AT_MOST + 92 // CYCLE + 1, "not at each of them"


def test_a_process_that_vanishes_midway_is_no_error(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(10, 20):
        fake.add(pid, 1)
    real, calls = processes.os.open, []

    def open_and_end(path: str, flags: int) -> int:
        calls.append(path)
        if len(calls) == 7:
            for pid in range(12, 18):
                (fake.root / str(pid)).rename(fake.root / f"gone-{pid}")
        return real(path, flags)

    monkeypatch.setattr(processes.os, "open", open_and_end)
    fake.tick()
    monkeypatch.undo()
    assert set(fake.tick(3).snapshot()) == {1, 10, 11, 18, 19}


def test_a_zombie_is_no_process_unless_threads_of_it_run(fake: FakeProc) -> None:
    fake.add(10, 1, state="Z", threads=1)
    fake.add(11, 1, state="Z", threads=4)
    assert set(fake.tick().snapshot()) == {1, 11}
    fake.add(11, 1, state="Z", threads=1)
    assert set(fake.tick().snapshot()) == {1}


def test_a_descendant_stays_one_when_its_parent_dies(fake: FakeProc) -> None:
    fake.add(10, 1, start=500)
    fake.add(11, 10, start=600)
    fake.add(12, 11, start=700)
    fake.tick()
    fake.end(11)
    fake.add(12, 1, start=700)  # the kernel gives it to init
    table = fake.tick(3)
    assert table.snapshot()[12].ppid == 10
    fake.end(10)
    assert fake.tick(3).snapshot()[12].ppid == 1


def test_cpu_time_and_cores(fake: FakeProc) -> None:
    hz = os.sysconf("SC_CLK_TCK")
    fake.now_s = 10_000.0
    fake.add(10, 1, start=500, cpu_ticks=100 * hz)
    fake.add(11, 1, start=600, cpu_ticks=3 * hz)
    table = fake.tick()
    assert table.cpu_cores_used([10, 11], fake.now_s) is None, "the first reading has nothing to compare with"
    fake.add(10, 1, start=500, cpu_ticks=101 * hz)
    fake.tick()
    assert table.cpu_cores_used([10, 11], fake.now_s) == pytest.approx(0.5)
    assert table.cpu_cores_used([10], fake.now_s) == pytest.approx(0.5), "asked again at once: the same answer"
    # a child that was just born counts with its whole life
    fake.now_s += 2.0
    fake.add(12, 10, start=int((fake.now_s - 1.0) * hz), cpu_ticks=hz // 2)
    fake.table.refresh(fake.now_s)
    assert table.cpu_cores_used([11, 12], fake.now_s) == pytest.approx(0.5)
    # another process under a known pid is not the one that was asked about
    fake.add(11, 1, start=90_000, cpu_ticks=hz)
    assert table.cpu_cores_used([11], fake.now_s) == 0.0
