"""The process table over fake /proc trees and over the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nodes import processes
from nodes.processes import CYCLE, UNLISTED, YOUNG_S, ProcessTable
from nodes.procfs import ProcFs

WAIT_S = 60.0


class FakeProc:
    """A /proc of files. Every read of a process's stat file is counted through ``reads``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 0.0
        self.last_pid = 0
        self.faults = 0
        (root / "loadavg").touch()
        self.table = ProcessTable(root, uptime_s=lambda: self.now_s)
        self.add(1, 0, name="init")

    def add(
        self,
        pid: int,
        ppid: int,
        *,
        start: int = 100,
        name: str = "prog",
        exe: str | None = "/bin/prog",
        argv: tuple[str, ...] = ("prog",),
        uid: int = 1000,
        state: str = "S",
        threads: int = 1,
        flags: int = 0,
        cpu_ticks: int = 0,
    ) -> None:
        home = self.root / str(pid)
        home.mkdir(exist_ok=True)
        self.faults += 1  # what execs, or is another process by now, has touched other pages
        fields = [state, ppid, 0, 0, 0, -1, flags, self.faults, 0, 0, 0, cpu_ticks, 0, 0, 0, 20, 0, threads, 0, start]
        (home / "stat").write_text(f"{pid} ({name}) {' '.join(str(field) for field in fields)} 0 0\n")
        (home / "cmdline").write_bytes(b"".join(arg.encode() + b"\0" for arg in argv))
        (home / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t0\t0\t0\n")
        (home / "exe").unlink(missing_ok=True)
        if exe is not None:
            (home / "exe").symlink_to(exe)
        self.last_pid = pid
        self.count()

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))
        self.count()

    def count(self) -> None:
        """As the kernel tells how many tasks there are, and the pid that it gave out last."""
        tasks = sum(entry.name.isdigit() for entry in self.root.iterdir())
        (self.root / "loadavg").write_text(f"0.00 0.00 0.00 1/{tasks} {self.last_pid}\n")

    def tick(self, times: int = 1, seconds: float = 2.0) -> ProcessTable:
        for _ in range(times):
            self.now_s += seconds
            self.table.refresh(self.now_s)
        return self.table


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


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


def test_only_what_may_have_changed_is_read(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(10, 310):
        fake.add(pid, 1)
    fake.tick(int(YOUNG_S / 2) + 2)
    real, opened = processes.os.open, []
    monkeypatch.setattr(processes.os, "open", lambda path, flags: opened.append(path) or real(path, flags))
    fake.tick()
    assert len(opened) <= 2 * (302 // CYCLE + 2)
    fake.tick(CYCLE)
    opened.clear()
    fake.tick(CYCLE)
    # not one of them ran: who they are was not read again
    assert {Path(path).name for path in opened} == {"loadavg", "stat"}
    opened.clear()
    fake.tick(CYCLE)
    assert {path for path in opened if path.endswith("/stat")} == {
        f"{fake.root}/{pid}/stat" for pid in (1, *range(10, 310))
    }


def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of /proc by the table, which names it by a string; this file's own looks go by a Path."""
    real, listed = processes.os.listdir, []

    def listdir(path: str | Path) -> list[str]:
        listed.extend([path] if isinstance(path, str) else [])
        return real(path)

    monkeypatch.setattr(processes.os, "listdir", listdir)
    return listed


def test_while_nobody_comes_or_goes_nothing_is_listed(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(10, 40):
        fake.add(pid, 1)
    fake.tick()
    listed = listings(monkeypatch)
    fake.tick(UNLISTED)
    assert listed == []
    fake.end(20)
    assert [info.pid for info in fake.tick().vanished] == [20]
    fake.tick()
    fake.add(50, 1)
    assert [info.pid for info in fake.tick().appeared] == [50]
    fake.tick()
    fake.end(10)  # one goes as another comes: as many as before
    fake.add(51, 1)
    table = fake.tick()
    assert ([info.pid for info in table.appeared], [info.pid for info in table.vanished]) == ([51], [10])
    assert len(listed) == 3


def test_what_the_counts_do_not_tell_is_seen_by_a_list_that_comes_all_the_same(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add(10, 1)
    fake.add(20, 1)
    fake.tick()
    fake.end(10)
    fake.add(11, 1)  # by hand, in the moment in which another ended
    fake.last_pid = 20
    fake.count()
    seen = [set(fake.tick().snapshot()) for _ in range(UNLISTED + 1)]
    assert seen[-1] == {1, 11, 20}


@pytest.mark.parametrize("told", ["", "0.00 0.00 0.00 0/0 0\n", "what is this\n"])
def test_without_counts_every_refresh_lists(fake: FakeProc, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    fake.add(10, 1)
    (fake.root / "loadavg").write_text(told)
    fake.tick()
    listed = listings(monkeypatch)
    fake.tick(3)
    assert len(listed) == 3


def test_counts_from_another_file_system_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some containers put a file over /proc/loadavg that a program of the host makes every few seconds."""
    real = processes.os.stat

    def stat(path: str) -> os.stat_result:
        found = real(path)
        return found if not path.endswith("loadavg") else os.stat_result((*found[:2], found.st_dev + 1, *found[3:10]))

    monkeypatch.setattr(processes.os, "stat", stat)
    fake = FakeProc(tmp_path)
    fake.tick()
    listed = listings(monkeypatch)
    fake.tick(3)
    assert len(listed) == 3


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


def until(table: ProcessTable, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        table.refresh(time.monotonic())
        time.sleep(0.02)


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_real_processes_their_exec_and_their_end() -> None:
    table = ProcessTable()
    table.refresh(time.monotonic())
    assert table.snapshot()[os.getpid()].argv is not None
    child = subprocess.Popen(
        ["/bin/sh", "-c", "read line; exec sleep 300"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        until(table, lambda: child.pid in table.snapshot())
        first = table.snapshot()[child.pid]
        assert first.ppid == os.getpid()
        assert first.uid == os.getuid()
        until(table, lambda: (table.snapshot()[child.pid].argv or ("",))[0].endswith("sh"))
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
        until(table, lambda: table.snapshot()[child.pid].argv == ("sleep", "300"))
        assert table.snapshot()[child.pid].start_ticks == first.start_ticks
        assert table.snapshot()[child.pid].ppid == os.getpid()
    finally:
        child.kill()
        child.wait()
    until(table, lambda: child.pid not in table.snapshot())


def arguments(table: ProcessTable, pid: int) -> tuple[str, ...] | None:
    info = table.snapshot().get(pid)
    return None if info is None else info.argv


def look_until(table: ProcessTable, pid: int, argv: tuple[str, ...]) -> None:
    """Looks at a process that is young no more, until its turn has come; whether it ever shows these arguments."""
    now_s = time.monotonic() + 2 * YOUNG_S
    for _ in range(3 * CYCLE):
        table.refresh(now_s)
        if table.snapshot()[pid].argv == argv:
            return
    raise AssertionError(f"{table.snapshot()[pid].argv} after {3 * CYCLE} looks, and not {argv}")


def test_a_real_late_exec_with_the_same_name_is_seen(tmp_path: Path) -> None:
    later = ("/bin/sh", "-c", "read b")
    child = subprocess.Popen(["/bin/sh", "-c", f"read a; exec {later[0]} -c '{later[2]}'"], stdin=subprocess.PIPE)
    try:
        table = ProcessTable()
        until(table, lambda: (arguments(table, child.pid) or ("",))[0].endswith("sh"))
        look_until(table, child.pid, table.snapshot()[child.pid].argv or ())
        for _ in range(2 * CYCLE):  # nothing happens: it is asleep, and its stat reads the same each time
            table.refresh(time.monotonic() + 2 * YOUNG_S)
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
        wait_for(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes().endswith(b"-c\0read b\0"))
        look_until(table, child.pid, later)
    finally:
        child.kill()
        child.wait()


REWRITES = """
import ctypes, sys, time
start, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[45:47])
sys.stdin.readline()
ctypes.memset(start, ord("x"), end - start - 1)
until = time.process_time() + 0.1
while time.process_time() < until:
    pass
print("written", flush=True)
sys.stdin.readline()
"""


def test_arguments_that_a_process_writes_over_are_seen_once_it_works() -> None:
    child = subprocess.Popen([sys.executable, "-c", REWRITES], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        table = ProcessTable()
        until(table, lambda: (arguments(table, child.pid) or ("",))[-1] == REWRITES)
        for _ in range(2 * CYCLE):
            table.refresh(time.monotonic() + 2 * YOUNG_S)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"written\n"
        written = Path(f"/proc/{child.pid}/cmdline").read_bytes().rstrip(b"\0")
        assert set(written) == {ord("x")}
        look_until(table, child.pid, (written.decode(),))
    finally:
        child.kill()
        child.wait()


def test_real_descendants_survive_their_parent_in_the_tree() -> None:
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', "
        "\"import subprocess; print(subprocess.Popen(['sleep', '300']).pid, flush=True); input()\"],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(p.stdout.readline().decode().strip(), p.pid, flush=True)\n"
        "input()\n"
        "p.kill(); p.wait(); print('gone', flush=True)\n"
        "input()\n"
    )
    root = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert root.stdin is not None
    assert root.stdout is not None
    leaf = 0
    try:
        leaf, middle = map(int, root.stdout.readline().split())
        table = ProcessTable()
        until(table, lambda: {root.pid, leaf, middle} <= table.snapshot().keys())
        root.stdin.write(b"\n")
        root.stdin.flush()
        assert root.stdout.readline() == b"gone\n"
        until(table, lambda: middle not in table.snapshot())
        assert table.snapshot()[leaf].ppid == root.pid
    finally:
        root.kill()
        root.wait()
        if leaf:
            os.kill(leaf, 9)
