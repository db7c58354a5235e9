"""The process table over the real /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nodes.processes import CYCLE, YOUNG_S, ProcessTable
from tests.node.agent_rig import wait_for


def until(table: ProcessTable, holds: Callable[[], bool]) -> None:
    def looked() -> bool:
        table.refresh(time.monotonic())
        return holds()

    if not holds():
        wait_for("what the table shows", looked)


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
        wait_for("the exec", lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes().endswith(b"-c\0read b\0"))
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
