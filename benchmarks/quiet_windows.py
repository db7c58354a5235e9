"""What the flow's process costs while a window is counted: CPU share, and flow starts on the node.

A real server and worker in a home of their own; the agent is a scripted one that only waits, since what is measured is
the flow's process and the worker. ``python -m benchmarks.quiet_windows [--json] [--quick]``
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from uuid import UUID

from benchmarks._figures import Figure, figure, run

BUDGET_SHARE_PCT = 0.1
FULL_S = 300.0
QUICK_S = 60.0
# What a task's end leaves to send is sent in the first seconds of the next block, of which the washout is a part.
WASHOUT_S = 20.0
BEGIN_WITHIN_S = 600.0


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far, to the nanosecond (a clock tick would be 10 ms)."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def measure(quick: bool) -> list[Figure]:
    window_s = QUICK_S if quick else FULL_S
    with tempfile.TemporaryDirectory(prefix="cotenant-quiet-") as folder:
        home = Path(folder)
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            del os.environ[name]
        os.environ |= {"COTENANT_HOME": str(home), "COTENANT_FLOW_PRIORITY": "normal", "DO_NOT_TRACK": "1"}
        os.environ["PREFECT_HOME"] = str(home / "client")
        return _measure(home, window_s)


def _measure(home: Path, window_s: float) -> list[Figure]:
    from cotenant import fleet
    from nodes.flow_processes import FlowProcesses
    from policies.harness.names import run_name
    from policies.refusal import Refused
    from tests.flows.fake_agent import FakeAgent

    root, node = Path(__file__).parents[1], "local"
    server = fleet.PrefectServer(home)
    url = server.start()
    worker = fleet.WorkerProcess(home, node, url, root)
    agent = FakeAgent(home, node, block_s=2 * (WASHOUT_S + window_s))
    try:
        fleet.ensure_pool(url)
        fleet.deploy(url, root)
        agent.start()
        worker.start(BEGIN_WITHIN_S)
        asked = {"node": node, "rule": "trainer", "work": "cpu", "window_s": window_s, "washout_s": WASHOUT_S}
        flow_run = fleet.run_flow(url, "ab-run/ab-run", {**asked, "max_hours": 8, "reviewed": True}, node)
        end = time.monotonic() + BEGIN_WITHIN_S
        while not any(name == run_name(flow_run) for name, _, _ in agent.memory.started):
            if time.monotonic() > end:
                raise RuntimeError(f"the run did not begin: {fleet.flow_state(url, flow_run)}")
            time.sleep(0.1)
        time.sleep(WASHOUT_S)
        process = FlowProcesses(home / "nodes" / node / "flows").of(UUID(flow_run))
        if process is None:
            raise RuntimeError("the worker noted no process for the run")

        agent.refuse["admit_flow"] = Refused("RUN_WINDOW", "a flow", "a window is being counted", "it starts by itself")
        second = fleet.run_flow(url, "ab-run/ab-run", {**asked, "max_hours": 8, "reviewed": True}, node)
        before, start = cpu_s(process.pid), time.monotonic()
        time.sleep(window_s)
        spent, length = cpu_s(process.pid) - before, time.monotonic() - start
        waiting = fleet.flow_state(url, second)
        starts = sum(1 for file in (home / "nodes" / node / "flows").glob("*.json") if file.stem != flow_run)
        for each in (second, flow_run):
            fleet.cancel_flow(url, each)
    finally:
        worker.stop()
        agent.stop()
        server.stop()
    return [
        figure(
            "CPU of the flow's process while a window is counted",
            100.0 * spent / length,
            "% of a core",
            ("<=", BUDGET_SHARE_PCT),
            f"over {length:.0f} s; a process that sleeps: 0",
        ),
        figure("flow starts on the node meanwhile", float(starts), "starts", ("=", 0.0), "one was asked for"),
        figure(
            "the flow run asked for waits with its reason",
            float(waiting["name"] == "AwaitingNode"),
            "",
            ("=", 1.0),
            str(waiting["message"]),
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(run("quiet_windows", __doc__, measure))
