"""A real agent with real fleet work beside a phase source: what the faults are done to, and how its state is seen from outside."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.node.agent_rig import ROOT, Rig, wait_for
from tests.node.agent_rig import runners_of as runners_in
from tests.node.jobs_rig import foreign, state_of

PATIENCE_S = 90.0
PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2

# What is watched is a source alone: its phase holds all fleet work, and whatever cannot be read of it counts as the phase.
SECTION = """
[node]
mode = "fleet_first"
gpu_jobs = "always"
memory = {{ soft_free_pct = 0.2, hard_free_pct = 0.1 }}
[[rule]]
id = "program"
match = {{ argv_regex = "no-such-program-runs-here" }}
immediate = true
protect = {{ metric = "progress_rate", max_slowdown = 0.05, source = {{ jsonl = "{source}", event = "step" }} }}
[[rule.during]]
source = {{ jsonl = "{source}", event = "status", field = "phase", on = ["busy"] }}
pause_fleet = {{ scope = "all" }}
"""


def mortal() -> None:
    """Before the exec: an agent of root's reads only what it may, as any other account's."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


class Beside(Rig):
    """``home`` holds the node; ``source`` is what the program writes. ``module``: how the agent is started (``-m``)."""

    def __init__(
        self, home: Path, place: Path, *, module: str = "nodes.agent", env: dict[str, str] | None = None
    ) -> None:
        super().__init__(home)
        self.place = place
        self.source = place / "run.jsonl"
        self.module, self.env = module, os.environ | (env or {})

    def start_agent(self) -> None:
        with open(self.place / "agent.log", "ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", self.module, "--home", str(self.home), "--node", "local", "--slots", "4"],
                cwd=ROOT,
                stderr=log,
                stdout=log,
                env=self.env,
                preexec_fn=mortal,
            )
        self.started.append(self.agent)
        wait_for("the agent answers", self._answers, PATIENCE_S)

    def say(self, phase: str) -> None:
        self.append(json.dumps({"event": "status", "phase": phase}).encode() + b"\n")

    def append(self, data: bytes) -> None:
        with self.source.open("ab") as file:
            file.write(data)

    def begin(self, capabilities: list[str], payload: dict[str, Any], jobs: int = 1, **changes: str) -> list[int]:
        """Agent up, source idle, the jobs running; their numbers."""
        self.say("idle")
        self.start_agent()
        self.client.call("section_set", text=SECTION.format(source=self.source), by="test")
        small = {"requires": "{ resources = { cpu = 0.1, mem_gb = 0.02 } }", "stop_grace_s": "2"} | changes
        self.client.call("module_add", path=str(foreign(self.place, capabilities, **small)), _timeout_s=300)
        made = [
            self.client.call("job_submit", module="stranger", stage=None, payload=payload)["job"] for _ in range(jobs)
        ]
        for job in made:
            self.until(job, "running")
        wait_for("the runners run", lambda: len(self.runners()) >= jobs, PATIENCE_S)
        return made

    def job(self, number: int) -> dict[str, Any]:
        return dict(self.client.call("job_show", job=number))

    def until(self, job: int, *states: str) -> None:
        wait_for(f"job {job} is {' or '.join(states)}", lambda: self.job(job)["state"] in states, PATIENCE_S)

    def phase_row(self) -> dict[str, Any]:
        return next(row for row in self.client.call("sources") if row["role"] == "phase")

    def runners(self) -> list[int]:
        return [pid for pid in runners_in(self.home) if state_of(pid) != "gone"]

    def stopped(self) -> bool:
        """Whether there are runners, and each is stopped by the kernel's word."""
        pids = self.runners()
        return bool(pids) and all(state_of(pid) == "T" for pid in pids)

    def running(self) -> bool:
        return any(state_of(pid) in ("R", "S", "D") for pid in self.runners())

    def is_held(self) -> None:
        wait_for("the work is held", self.stopped, PATIENCE_S)

    def goes_on(self) -> None:
        wait_for("the work goes on", lambda: self.running() and not self.stopped(), PATIENCE_S)

    def still(self, seen: Callable[[], bool], stretch_s: float = 1.0) -> bool:
        """Whether ``seen`` holds all the time."""
        until = time.monotonic() + stretch_s
        while time.monotonic() < until:
            if not seen():
                return False
            time.sleep(0.05)
        return True
