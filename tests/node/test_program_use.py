"""Whether a protected program uses the CPU: one that is starved does, one that sleeps does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from nodes.agent.program_use import CpuUse
from nodes.identity import identify
from nodes.processes import ProcessTable
from tests.node.agent_rig import own_ticks, wait_for

SPIN = "while True: pass"
IDLE_CLASS = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(30)


def spawn(started: list[subprocess.Popen[bytes]], code: str, core: int) -> int:
    process = subprocess.Popen(
        [sys.executable, "-c", code], preexec_fn=lambda: os.sched_setaffinity(0, {core}), start_new_session=False
    )
    started.append(process)
    return process.pid


def cpu_s(pid: int) -> float:
    return own_ticks(pid) / os.sysconf("SC_CLK_TCK")


def looks(pid: int, times: int, apart_s: float) -> list[bool | None]:
    """What ``CpuUse`` says after each of so many readings, ten minutes apart by its own clock: nothing is kept."""
    table, use, found = ProcessTable(), CpuUse(), []
    who = identify(pid)
    assert who is not None
    for _ in range(times):
        now_s = time.monotonic()
        table.refresh(now_s)
        use.read(table.cpu_cores_used([pid], now_s), [(pid, who.start_ticks)], now_s)
        found.append(use.now(now_s))
        time.sleep(apart_s)
    return found


def test_a_starved_program_counts_as_using_the_cpu(started: list[subprocess.Popen[bytes]]) -> None:
    core = min(os.sched_getaffinity(0))
    spawn(started, SPIN, core)
    program = spawn(started, IDLE_CLASS + SPIN, core)

    def starved() -> bool:
        before, began = cpu_s(program), time.monotonic()
        time.sleep(1.0)
        return (cpu_s(program) - before) / (time.monotonic() - began) < 0.04

    wait_for("it gets next to nothing beside the other on its core", starved)
    assert looks(program, 4, 1.0)[1:] == [True, True, True]


def test_a_program_that_sleeps_does_not(started: list[subprocess.Popen[bytes]]) -> None:
    program = spawn(started, "import time; time.sleep(3600)", min(os.sched_getaffinity(0)))
    time.sleep(6.0)  # its start is over, and older than what a first reading goes back to
    found = looks(program, 4, 1.0)
    assert found[0] is None, "the first reading has no baseline"
    assert found[-1] is False
