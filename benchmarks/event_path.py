"""From a line written to a phase source to the last of four runners seen stopped: the agent beside the bare floor.

A real agent with four ``freeze_ok`` runners and a rule with ``immediate = true``. The floor, interleaved with it in the same
run: a process that blocks in an inotify read, parses the new line and sends SIGSTOP to four processes of the same program.
One observer times both: the clock starts before the write and stops when ``/proc`` shows state T for all four. Once with the
machine as it is, once with every core taken by processes that only count.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._figures import Figure, figure, run
from nodes.client import AgentClient, AgentUnreachable, socket_path

ROOT = Path(__file__).resolve().parents[1]
CHANGES, QUICK_CHANGES = 1000, 100
RUNNERS = 4
TIMES_FLOOR = 1.5
# Between two looks of the observer: a spinning one would take a core from those it times.
LOOK_EVERY_S = 50e-6
CHANGE_WITHIN_S = 30.0
NODE = "bench"

MANIFEST = """
manifest = 1
[module]
id = "bench.still"
version = "1.0.0"
compat = ">=2.8"
license = "Apache-2.0"
description = "Waits, and may be frozen."
[requires]
platforms = ["linux-amd64", "linux-arm64"]
runner_protocol = 1
[runner]
exec = ["python", "-I", "-S", "{bundle}/still.py"]
runtime = { kind = "python" }
capabilities = ["freeze_ok"]
stop_grace_s = 1
[[stages]]
name = "wait"
default = true
determinism = "none"
timeout_s = 86400
requires = { resources = { cpu = 0.1, mem_gb = 0.05 } }
retry = { max_attempts = 1 }
[results]
schema = "still/result"
schema_version = 1
"""

# Also what the floor stops: the same program, without an agent.
RUNNER = """
import json, sys, time
if "doctor" in sys.argv:
    report = {"runner_protocol": {"supported": [1]}, "health": "healthy", "checks": [], "attrs": {}}
    print(json.dumps(report))
    sys.exit(0)
if "--workdir" in sys.argv:
    open(sys.argv[sys.argv.index("--workdir") + 1] + "/phase", "w").write("work")
while True:
    time.sleep(0.05)
"""

# argv: file, pids. What cannot be left out: wait in the kernel, read, parse, four signals.
FLOOR = """
import inotify_simple, json, os, signal, sys
pids = [int(text) for text in sys.argv[2:]]
watch = inotify_simple.INotify()
watch.add_watch(sys.argv[1], inotify_simple.flags.MODIFY)
file = open(sys.argv[1], "rb", buffering=0)
print("ready", flush=True)
while True:
    watch.read()
    for line in file.read().splitlines():
        event = json.loads(line)["event"]
        if event in ("begin", "end"):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP if event == "begin" else signal.SIGCONT)
"""

COMPETITOR = "while True: pass"


class Side:
    """One of the two: a file that is written, and the processes that must stop."""

    def __init__(self, path: Path, pids: Sequence[int]) -> None:
        self._out = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._stats = [os.open(f"/proc/{pid}/stat", os.O_RDONLY) for pid in pids]
        self.latencies_ms: list[float] = []

    def close(self) -> None:
        for fd in (self._out, *self._stats):
            os.close(fd)

    def change(self) -> None:
        """One phase begins and ends."""
        line = json.dumps({"event": "begin", "time": time.time()}).encode() + b"\n"
        began = time.monotonic()
        os.write(self._out, line)
        self._until("stopped", lambda state: state in b"Tt")
        self.latencies_ms.append((time.monotonic() - began) * 1e3)
        os.write(self._out, b'{"event": "end"}\n')
        self._until("running again", lambda state: state not in b"Tt")

    def _until(self, what: str, holds: Callable[[bytes], bool]) -> None:
        left, deadline = list(self._stats), time.monotonic() + CHANGE_WITHIN_S
        while True:
            left = [fd for fd in left if not holds(_state(fd))]
            if not left:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(left)} of {len(self._stats)} runners not seen {what}")
            time.sleep(LOOK_EVERY_S)

    def quantile(self, share: float) -> float:
        return statistics.quantiles(self.latencies_ms, n=100, method="inclusive")[round(share * 100) - 1]


def _state(fd: int) -> bytes:
    raw = os.pread(fd, 512, 0)
    return raw[raw.rindex(b")") + 2 :][:1]


@contextlib.contextmanager
def _ended(*started: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in started:
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in started:
            process.wait(60)


def _start(*argv: str, **more: Any) -> subprocess.Popen[Any]:
    """In a session of its own, as runners are: a session is a scheduling group where autogroup is on."""
    return subprocess.Popen([sys.executable, *argv], start_new_session=True, cwd=ROOT, **more)


@contextlib.contextmanager
def _floor(home: Path) -> Iterator[Side]:
    path = _fresh(home / "floor")
    still = home / "still.py"
    still.write_text(RUNNER)
    with contextlib.ExitStack() as stack:
        stopped = [_start("-I", "-S", str(still)) for _ in range(RUNNERS)]
        stack.enter_context(_ended(*stopped))
        pids = [str(process.pid) for process in stopped]
        floor = _start("-c", FLOOR, str(path), *pids, stdout=subprocess.PIPE, text=True)
        stack.enter_context(_ended(floor))
        assert floor.stdout is not None
        floor.stdout.readline()
        side = Side(path, [process.pid for process in stopped])
        stack.callback(side.close)
        yield side


@contextlib.contextmanager
def _agent(home: Path) -> Iterator[tuple[Side, AgentClient, int]]:
    path = _fresh(home / "program")
    bundle = home / "modules" / "still"
    bundle.mkdir(parents=True)
    (bundle / "oarbank-module.toml").write_text(MANIFEST)
    (bundle / "still.py").write_text(RUNNER)
    client = AgentClient(socket_path(home, NODE))
    with open(home / "agent.log", "wb") as log:
        argv = ["-m", "nodes.agent", "--home", str(home), "--node", NODE, "--modules", str(bundle.parent)]
        agent = _start(*argv, "--slots", str(RUNNERS), stdout=log, stderr=log)
    try:
        _wait("the agent", lambda: _answers(client))
        client.call("section_set", text=_section(path), by="benchmark")
        _wait("the module", lambda: any(row["state"] == "ready" for row in client.call("modules")))
        for _ in range(RUNNERS):
            client.call("job_submit", module="still")
        jobs = home / "nodes" / NODE / "jobs"
        _wait("four runners", lambda: len(list(jobs.glob("*/work/phase"))) == RUNNERS)
        told = [json.loads(document.read_text()) for document in jobs.glob("*/runner.json")]
        side = Side(path, [int(runner["pid"]) for runner in told])
        yield side, client, agent.pid
        side.close()
    finally:
        agent.terminate()
        try:
            agent.wait(60)
        except subprocess.TimeoutExpired:
            agent.kill()  # its launchers end the runners
            agent.wait(60)


def _fresh(folder: Path) -> Path:
    """A file in a directory of its own: a neighbour's writes are events too."""
    folder.mkdir()
    path = folder / "events.jsonl"
    path.write_bytes(b"")
    return path


def _answers(client: AgentClient) -> bool:
    try:
        return bool(client.call("hello"))
    except AgentUnreachable:
        return False


def _wait(what: str, seen: Callable[[], bool], limit_s: float = 120.0) -> None:
    until = time.monotonic() + limit_s
    while not seen():
        if time.monotonic() > until:
            raise RuntimeError(f"not seen within {limit_s:g} s: {what}")
        time.sleep(0.1)


def _section(path: Path) -> str:
    return f"""
[node]
mode = "fleet_first"
gpu_jobs = "always"
memory = {{ soft_free_pct = 0.2, hard_free_pct = 0.1 }}
[[rule]]
id = "program"
match = {{ path_prefix = "/no/such/program/" }}
immediate = true
[[rule.during]]
source = {{ jsonl = "{path}", enter = "begin", exit = "end" }}
pause_fleet = {{ scope = "all" }}
"""


def _both(agent: Side, floor: Side, changes: int) -> None:
    """The two take turns, in random order and at random moments of the agent's tick."""
    rng = random.Random(7)
    for _ in range(changes):
        for side in rng.sample([agent, floor], 2):
            side.change()
            time.sleep(rng.uniform(0.03, 0.1))


def measure(quick: bool) -> Sequence[Figure]:
    changes = QUICK_CHANGES if quick else CHANGES
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with _floor(home) as floor, _agent(home) as (agent, client, pid):
            before_s = _cpu_s(pid)
            for how, competitors in (("idle", 0), ("all cores busy", os.cpu_count() or 1)):
                agent.latencies_ms.clear()
                floor.latencies_ms.clear()
                with _ended(*(_start("-c", COMPETITOR) for _ in range(competitors))):
                    _both(agent, floor, changes)
                for share in (0.5, 0.99):
                    ours, bare = agent.quantile(share), floor.quantile(share)
                    # the 99th of a hundred is one sample: a ratio of two of those says nothing
                    bound = None if quick and share > 0.5 else ("<=", TIMES_FLOOR)
                    seen = f"{ours:.3f} ms; floor {bare:.3f} ms"
                    figures.append(figure(f"{how}: p{share * 100:g} over the floor's", ours / bare, "x", bound, seen))
            used_ms = 1e3 * (_cpu_s(pid) - before_s) / (2 * changes)
            own = next(row for row in client.call("sources") if row["role"] == "phase")
    figures.append(figure("the agent's own figure, p50", own["latency_p50_ms"], "ms", None, "write to last SIGSTOP"))
    figures.append(figure("the agent's own figure, p99", own["latency_p99_ms"], "ms"))
    figures.append(figure("the agent's CPU time a change, begin to end", used_ms, "ms"))
    return figures


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(run("event_path", __doc__, measure))
