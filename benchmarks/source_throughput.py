"""What a source that writes 10,000 lines a second costs the agent, and whether it misses one.

A writer appends JSON lines, one ``write`` each; a process with the agent's source hub (a progress source and a phase on
the same file) waits on its descriptor and ticks every two seconds. Its CPU time over the writing is compared with that of
``tail -F FILE | grep -c step_done`` on the same lines; its count with the lines in the file.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks._figures import Figure, figure, run

LINES_PER_S = 10_000
SECONDS, QUICK_SECONDS = 20.0, 5.0
BUDGET_SHARE = 0.05
SETTLE_S = 30.0
TICK_S = 2.0

_WRITER = """
import json, sys, time
path, lines, per_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
file = open(path, "ab", buffering=0)
began = time.monotonic()
for number in range(lines):
    fields = {"event": "step_done", "step": number, "loss": 0.1234567, "state": {"phase": "training"}}
    file.write(json.dumps(fields).encode() + b"\\n")
    ahead = number / per_s - (time.monotonic() - began)
    if ahead > 0.0005:
        time.sleep(ahead)
print(time.monotonic() - began)
"""


def _follow(path: str, expected: int, pipe: Connection) -> None:
    """The agent's side: (events counted, CPU seconds, wake-ups) once all are counted or nothing more comes."""
    from nodes.sources.hub import SourceHub
    from policies.section.models import Section

    source = {"jsonl": path, "event": "step_done"}
    phase = {"jsonl": path, "event": "status", "field": "state.phase", "on": ["uploading"]}
    rule = {
        "id": "trainer",
        "match": {"name": "trainer"},
        "protect": {"metric": "progress_rate", "max_slowdown": 0.05, "source": source},
        "during": [{"source": phase, "pause_fleet": {"scope": "all"}}],
    }
    hub = SourceHub()
    hub.configure(Section.model_validate({"rule": [rule]}), "/nowhere")
    hub.look_out(lambda events: False, lambda: None)  # the thread that the agent has, too
    pipe.send("ready")
    track = hub.progress("trainer").track
    began_cpu_s, wakeups = time.process_time(), 0
    next_tick_s = quiet_since_s = time.monotonic()
    seen = -1.0
    while track.total < expected and time.monotonic() - quiet_since_s < SETTLE_S:
        now_s = time.monotonic()
        if now_s >= next_tick_s:
            hub.poll("tick")
            next_tick_s = now_s + TICK_S
        elif select.select([hub.fileno()], [], [], next_tick_s - now_s)[0]:
            hub.poll("event")
            wakeups += 1
        if track.total != seen:
            seen, quiet_since_s = track.total, now_s
    pipe.send((track.total, time.process_time() - began_cpu_s, wakeups))


def _write(path: Path, lines: int) -> float:
    command = [sys.executable, "-c", _WRITER, str(path), str(lines), str(LINES_PER_S)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _hub(home: Path, lines: int) -> tuple[float, float, float, int]:
    """Missed lines, CPU share, lines a second, wake-ups a second."""
    path = home / "events.jsonl"
    path.write_bytes(b"")
    ours, theirs = multiprocessing.Pipe()
    follower = multiprocessing.get_context("spawn").Process(target=_follow, args=(str(path), lines, theirs))
    follower.start()
    try:
        ours.recv()
        with path.open("ab") as file:  # the first event only anchors, so it is written apart
            file.write(json.dumps({"event": "step_done"}).encode() + b"\n")
        time.sleep(0.5)
        wrote_s = _write(path, lines)
        counted, cpu_s, wakeups = ours.recv()
    finally:
        follower.join(SETTLE_S)
        if follower.is_alive():
            follower.kill()
    in_file = path.read_bytes().count(b"\n") - 1
    return in_file - counted, cpu_s / wrote_s, lines / wrote_s, round(wakeups / wrote_s)


def _tail(home: Path, lines: int) -> float | None:
    """CPU share of ``tail -F | grep -c`` on the same lines; None where they are not installed."""
    if not shutil.which("tail") or not shutil.which("grep"):
        return None
    path = home / "reference.jsonl"
    path.write_bytes(b"")
    tail = subprocess.Popen(["tail", "-n", "0", "-F", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    grep = subprocess.Popen(["grep", "-c", "step_done"], stdin=tail.stdout, stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    wrote_s = _write(path, lines)
    time.sleep(1.0)
    tail.kill()
    cpu_s = 0.0
    for process in (tail, grep):
        _, _, used = os.wait4(process.pid, 0)
        cpu_s += used.ru_utime + used.ru_stime
    return cpu_s / wrote_s


def measure(quick: bool) -> Sequence[Figure]:
    lines = int(LINES_PER_S * (QUICK_SECONDS if quick else SECONDS))
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        missed, share, rate, wakeups = _hub(home, lines)
        tail = _tail(home, lines)
    beside = "tail -F | grep -c: " + ("not installed" if tail is None else f"{tail * 100:.2f} %")
    return [
        figure("lines missed", missed, "lines", ("=", 0.0), f"{lines} lines in the file"),
        figure("CPU share of one core", share * 100, "%", ("<=", BUDGET_SHARE * 100), beside),
        figure("lines written", rate, "1/s"),
        figure("wake-ups", wakeups, "1/s"),
    ]


if __name__ == "__main__":
    sys.exit(run("source_throughput", __doc__, measure))
