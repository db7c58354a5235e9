"""What the launcher reports of an attempt's CPU time and memory, against what the attempt counted of itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodes.jobs import launcher
from nodes.jobs.cgroup import make_group, parents

MIB = 1 << 20
# User time, kernel time, and the time of a child, each about a fifth of a second; then what it counts of itself.
RUNNER = """
import os, sys
held = bytearray(96 << 20)
def user(until):
    while os.times()[0] < until: sum(range(2000))
user(0.2)
zero = os.open("/dev/zero", os.O_RDONLY)
while os.times()[1] < 0.2: os.read(zero, 1 << 20)
child = os.fork()
if child == 0:
    user(0.2)
    os._exit(0)
os.waitpid(child, 0)
with open(sys.argv[1], "w") as file: print(*os.times()[:4], file=file)
"""


# Its children are collected by nobody: the kernel throws their time away.
UNCOLLECTED = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(2):
    child = os.fork()
    if child == 0:
        while os.times()[0] < 0.3: sum(range(2000))
        os._exit(0)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass
with open(sys.argv[1], "w") as file: print(*os.times()[:4], file=file)
"""


def report_of(tmp_path: Path, runner: str, **more: object) -> tuple[dict[str, Any], list[float]]:
    """What the launcher reports of a runner, and that one's own ``os.times()``: user, kernel, children's user and kernel."""
    folder, work, counted = tmp_path / "attempt", tmp_path / "attempt/work", tmp_path / "counted"
    work.mkdir(parents=True)
    told = {
        "attempt_id": "1-1-x",
        "capabilities": [],
        "stop_grace_s": 5,
        "silence_s": 600,
        "adopt_s": 600,
        "argv": [sys.executable, "-I", "-S", "-c", runner, str(counted)],
        "env": {},
        "workdir": str(work),
        "cwd": str(work),
        **more,
    }
    (folder / "launch.json").write_text(json.dumps(told))
    os.mkfifo(folder / "alive")
    pipe = os.open(folder / "alive", os.O_RDWR | os.O_NONBLOCK)
    os.write(pipe, b".")
    argv = [sys.executable, "-I", "-S", str(launcher.__file__), str(folder)]
    done = subprocess.run(argv, timeout=300, check=False, capture_output=True, text=True)
    os.close(pipe)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "exit.json").read_text())
    assert report["exit_code"] == 0, (folder / "stderr.log").read_text()
    return report, [float(part) for part in counted.read_text().split()]


def test_cpu_time_of_all_kinds_and_the_peak_of_memory(tmp_path: Path) -> None:
    report, (user, kernel, *children) = report_of(tmp_path, RUNNER)
    assert min(user, kernel, sum(children)) >= 0.19, "each kind is there, so that none can be left out unseen"
    own = user + kernel + sum(children)
    # its own count has ticks of 10 ms, and after it the process still has its memory to give back
    assert own - 0.05 <= report["cpu_s"] <= own + 0.5
    assert 96 * MIB <= report["max_rss_bytes"] <= 400 * MIB


def test_time_of_children_that_nobody_collected_is_reported_where_there_is_a_control_group(tmp_path: Path) -> None:
    group = make_group("1-1-x", parents())
    if group is None:
        pytest.skip("no control group can be made here")
    report, (user, kernel, *children) = report_of(tmp_path, UNCOLLECTED, cgroup=group.path)
    assert user + kernel + sum(children) < 0.3, "what it counts of itself has none of it"
    assert 0.6 <= report["cpu_s"] <= 0.6 + 1.5
    assert not Path(group.path).exists()
