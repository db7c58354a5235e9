"""What the launcher reports of an attempt's CPU time and memory, against what the attempt counted of itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nodes.jobs import launcher

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


def test_cpu_time_of_all_kinds_and_the_peak_of_memory(tmp_path: Path) -> None:
    folder, work, counted = tmp_path / "attempt", tmp_path / "attempt/work", tmp_path / "counted"
    work.mkdir(parents=True)
    told = {
        "attempt_id": "1-1-x",
        "capabilities": [],
        "stop_grace_s": 5,
        "silence_s": 600,
        "adopt_s": 600,
        "argv": [sys.executable, "-I", "-S", "-c", RUNNER, str(counted)],
        "env": {},
        "workdir": str(work),
        "cwd": str(work),
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
    user, kernel, *children = map(float, counted.read_text().split())
    assert min(user, kernel, sum(children)) >= 0.19, "each kind is there, so that none can be left out unseen"
    own = user + kernel + sum(children)
    # its own count has ticks of 10 ms, and after it the process still has its memory to give back
    assert own - 0.05 <= report["cpu_s"] <= own + 0.5
    assert 96 * MIB <= report["max_rss_bytes"] <= 400 * MIB
