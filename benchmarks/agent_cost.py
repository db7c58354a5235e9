"""What the idle agent costs: CPU share, memory, growth over 2,000 ticks, with 500 processes, 5 rules and 4 sources.

The agent runs as an owner runs it, in a home of its own; its CPU time and resident memory are read from /proc by this
process. The reference is what one full look at every process with psutil costs at the agent's period. The growth is that of a
second agent, which ticks twenty times as often: what a tick leaves behind shows by the number of ticks, not by the hour.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks._figures import Figure, figure, run
from nodes.client import AgentClient, AgentUnreachable, socket_path

ROOT = Path(__file__).resolve().parents[1]
PROCESSES, QUICK_PROCESSES = 500, 120
SECONDS, QUICK_SECONDS = 120.0, 20.0
TICKS, QUICK_TICKS = 2000, 200
PACE = 20
SETTLE_S = 15.0
TICK_S = 2.0
CPU_BUDGET, RSS_BUDGET_MIB = 0.003, 45.0


def measure(quick: bool) -> Sequence[Figure]:
    count, span_s = (QUICK_PROCESSES, QUICK_SECONDS) if quick else (PROCESSES, SECONDS)
    ticks = QUICK_TICKS if quick else TICKS
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        started = _sleepers(max(0, count - len(psutil.pids())))
        try:
            agent = _start(home, started)
            time.sleep(SETTLE_S)
            cpu_s = _cpu_s(agent.pid)
            began = time.monotonic()
            time.sleep(span_s)
            took_s = time.monotonic() - began
            used_s, rss = _cpu_s(agent.pid) - cpu_s, _rss_mib(agent.pid)
            processes = len(psutil.pids())
            scan_share = _full_scan_s() / TICK_S
            agent.terminate()
            agent.wait(60)
            grown, each_ms = _growth(home, started, ticks)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(60)
    against = f"a full psutil scan of {processes} processes a tick: {100 * scan_share:.2f} % of a core"
    return [
        figure("CPU share of a core, idle", used_s / took_s, "", ("<=", CPU_BUDGET), against),
        figure("resident memory", rss, "MiB", ("<=", RSS_BUDGET_MIB), "a bare interpreter: 12 MiB"),
        figure(
            "growth of resident memory",
            grown,
            "MiB",
            ("<=", 1.0),
            f"over {ticks:,} ticks, {PACE} times as often, each {each_ms:.1f} ms of CPU",
        ),
    ]


def _growth(home: Path, started: list[subprocess.Popen[bytes]], ticks: int) -> tuple[float, float]:
    """``(MiB, ms)``: how much an agent's memory grew over so many ticks, and CPU time a tick."""
    agent = _start(home, started, "--pace", str(PACE))
    time.sleep(SETTLE_S)
    rss, cpu_s = _rss_mib(agent.pid), _cpu_s(agent.pid)
    time.sleep(ticks * TICK_S / PACE)
    return _rss_mib(agent.pid) - rss, 1e3 * (_cpu_s(agent.pid) - cpu_s) / ticks


def _sleepers(count: int) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen(["sleep", "3600"]) for _ in range(count)]


def _start(home: Path, started: list[subprocess.Popen[bytes]], *more: str) -> subprocess.Popen[bytes]:
    with open(home / "agent.log", "wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "nodes.agent", "--home", str(home), "--node", "bench", *more],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    started.append(agent)
    client, until = AgentClient(socket_path(home, "bench")), time.monotonic() + 60
    while True:
        try:
            client.call("hello")
            break
        except AgentUnreachable:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    client.call("section_set", text=_section(home), by="benchmark")
    return agent


def _section(home: Path) -> str:
    """Five rules, four of them with a source that exists and is quiet."""
    text = '[node]\nduty_device = "cpu"\n'
    for number in range(5):
        source = home / f"events-{number}.jsonl"
        source.write_text('{"event": "step_done"}\n')
        text += f'[[rule]]\nid = "rule-{number}"\nmatch = {{ argv_regex = "program-{number}", path_prefix = "/opt/p{number}/" }}\n'
        if number < 4:
            where = f'source = {{ jsonl = "{source}", event = "step_done" }}'
            text += f'protect = {{ metric = "progress_rate", max_slowdown = 0.05, {where} }}\n'
        else:
            text += 'pause_fleet = { scope = "all" }\n'
    return text


def _cpu_s(pid: int) -> float:
    raw = Path(f"/proc/{pid}/stat").read_text()
    fields = raw[raw.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _full_scan_s() -> float:
    """CPU seconds of one full psutil look at name, path, arguments and parent of every process."""
    began = time.process_time()
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                process.name(), process.exe(), process.cmdline(), process.ppid()
        except psutil.Error:
            pass
    return time.process_time() - began


if __name__ == "__main__":
    sys.exit(run("agent_cost", __doc__, measure))
