"""The processes of flow runs: what is noted of them, and the priority that they run at."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from uuid import uuid4

from nodes.flow_processes import FlowProcesses, lower_priority
from nodes.identity import identify
from tests.flows.conftest import until


def test_flow_processes_forget_the_dead_and_keep_the_living(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    processes = FlowProcesses(tmp_path / "flows")
    dead, kept, alive = uuid4(), uuid4(), uuid4()
    for run in (dead, kept):
        child = subprocess.Popen(["sleep", "600"])
        processes.remember(run, child.pid)
        child.kill()
        child.wait()
    processes.remember(alive, sleeper.pid)
    (tmp_path / "flows" / "no-uuid.json").write_text("{}")
    (tmp_path / "flows" / f"{uuid4()}.json").write_text("{cut")
    processes.prune(keep={kept})
    assert processes.of(dead) is None
    assert processes.of(kept) is not None
    assert processes.of(alive) == identify(sleeper.pid)


def test_a_flow_process_and_its_children_run_at_idle_priority() -> None:
    child = subprocess.Popen(
        ["sh", "-c", "read go; sleep 600 & echo $!; wait"], stdin=-1, stdout=-1, start_new_session=True
    )
    try:
        lower_priority(child.pid)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
        grandchild = int(child.stdout.readline())
        for pid in (child.pid, grandchild):
            assert os.getpriority(os.PRIO_PROCESS, pid) == 19
            assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        autogroup = Path(f"/proc/{child.pid}/autogroup")
        if autogroup.exists() and autogroup.read_text().strip():
            assert autogroup.read_text().split()[-1] == "10"
    finally:
        os.killpg(child.pid, 9)
        child.wait()
        until(lambda: child.poll() is not None, "the end of the child", 60)
