"""A node that certifies: the sample trainer protected, a certificate of it from the code that issues them, a real agent.

The trainer has one processor of its own; agent and units have another, so that contention is what a test chooses. The
agent runs at a pace: its tick and every time of governor and compliance are divided by it, the decisions are the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nodes.agent.certify import Certifier
from nodes.agent.core import Agent
from nodes.agent.subject import Subject
from nodes.clock import utc_iso
from nodes.identity import own_id
from policies.harness.rows import BlockRow, UnitDose, WindowRow
from policies.harness.schedule import coin
from policies.harness.spec import RunSpec
from policies.harness.verdict import PASS
from policies.workloads import is_workload, workload_name
from tests.node.agent_rig import ROOT, Rig, cpu_s, runners_of, wait_for

PACE = 5.0
DUTY = 0.4
TICK_S = 2.0 / PACE
PATIENCE_S = 240.0
SELFTEST = {"prompts": 1_000_000, "max_tokens": 32, "seed": 7}

# A program that takes all of the processor it is pinned to.
SPINNER = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def two_cores() -> tuple[int, int] | None:
    """A processor for the trainer and one for the rest; None where this process may use only one."""
    cores = sorted(os.sched_getaffinity(0))
    return None if len(cores) < 2 else (cores[-1], cores[0])


class PassingCertifier(Certifier):
    """Issues as the agent does, but does not recompute the verdict in a child (half a minute of SciPy on a busy machine)."""

    async def _recompute(self, run: str, spec: RunSpec) -> dict[str, Any]:
        return {"verdict": PASS, "zero_variance": False, "R": 1.0, "lo": 0.995, "hi": 1.005, "n": 8}


class GovernorRig(Rig):
    def __init__(self, home: Path, trainer_core: int, unit_core: int, pace: float = PACE, target: float = 0.5) -> None:
        super().__init__(home)
        self.trainer_core, self.unit_core, self.pace = trainer_core, unit_core, pace
        # A target so wide that what else runs on the machine is no harm: what a test adds itself is.
        self.target = target
        self.trainer: subprocess.Popen[bytes] | None = None

    def section(self, extra_node: str = 'gpu_jobs = "certified"', extra_rule: str = "", name: str = "trainer") -> str:
        text = super().section(extra_node, extra_rule, name).replace(str(self.stepper), str(self.events))
        return text.replace("max_slowdown = 0.5", f"max_slowdown = {self.target:g}")

    def start_trainer(self) -> None:
        argv = [sys.executable, str(ROOT / "examples/trainer.py"), "--events", str(self.events)]
        self.trainer = subprocess.Popen([*argv, "--pin", str(self.trainer_core)])
        self.started.append(self.trainer)
        wait_for("the trainer trains", lambda: self.steps() > 5, PATIENCE_S)

    def steps(self) -> int:
        return self.events.read_bytes().count(b"step_done") if self.events.is_file() else 0

    def rate(self, seconds: float = 5.0) -> float:
        before, began = self.steps(), time.monotonic()
        time.sleep(seconds)
        return (self.steps() - before) / (time.monotonic() - began)

    def certify(self, *works: tuple[str, str], duty: float = DUTY, extra: Path | None = None) -> dict[str, Any]:
        """A demonstration certificate for these (short, stage), issued by the agent's own code from a signed run.

        A stage ``service:NAME`` is a workload, which is started for as long.
        """
        agent = Agent(self.home, "local", ROOT / "modules")
        agent.prepare_modules()
        if extra is not None:
            assert agent.modules.add(extra).state == "ready"
        agent.start()
        agent.set_section(self.section(), "test")

        def seen() -> bool:
            agent.tick()
            return bool(agent.observer.program("trainer"))

        wait_for("the trainer is seen", seen, PATIENCE_S)
        subject = Subject(agent)
        certifier = PassingCertifier(agent, subject)
        track = agent.progress("trainer").track

        def knows() -> bool:
            agent.tick()
            return len(track.recent_reads()) > 40

        wait_for("the source is known to be no timer", knows, PATIENCE_S)
        asked = RunSpec.model_validate(self.spec(rule="trainer", work="all", feed=None, duty=duty))
        modules = {m.short: m for m in agent.modules.list()}
        jobs = [
            agent.workloads.start(short, workload_name(stage))
            if is_workload(stage)
            else agent.jobs.submit(modules[short].module, stage, {})
            for short, stage in works
        ]
        facts = asyncio.run(subject.facts(asked, None))
        facts["work"] = [w for w in facts["work"] if (w["short"], w["stage"]) in works]
        agent.runs.begin("seed", asked, own_id(), facts | {"reviewed_by": "test", "flow_run_id": None})
        chance, rate = random.Random(3), self.rate()
        units = tuple(
            UnitDose(attempt=str(n), module=modules[short].module, stage=stage, digest=modules[short].digest,
                     share=duty / len(works), by_device={"cpu": duty / len(works)})
            for n, (short, stage) in enumerate(works)
        )  # fmt: skip
        for number in range(1, 9):
            windows = {
                arm: WindowRow(
                    run="seed", block=number, arm=arm, position=1, started_at=utc_iso(), started_mono_s=0.0,
                    length_s=asked.window_s, events=asked.window_s * each, rate=each,
                    work_ran_s=asked.window_s if arm == "on" else 0.0, dose=duty if arm == "on" else None,
                    units=units if arm == "on" else (), program_on=("cpu",),
                )
                for arm in ("on", "off")
                for each in [rate * chance.gauss(1.0, 0.002)]
            }  # fmt: skip
            row = BlockRow(run="seed", number=number, order=coin(asked.seed, number), state="counted",
                           on=windows["on"], off=windows["off"])  # fmt: skip
            agent.journal.put_block("seed", number, row.model_dump())
        certifier.end("seed", PASS, "test", {"R": 1.0, "n": 8})
        kept = asyncio.run(certifier.offer("seed"))
        for job in jobs:
            agent.jobs.cancel(job.job)
        agent.hub.close()
        agent.journal.close()
        return kept

    def start_agent(self) -> None:
        with open(self.home / "agent.log", "ab") as log:
            self.agent = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "nodes.agent",
                    "--home",
                    str(self.home),
                    "--node",
                    "local",
                    "--pace",
                    str(self.pace),
                ],
                cwd=ROOT,
                stderr=log,
                stdout=log,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.started.append(self.agent)
        wait_for("the agent answers", self._answers, PATIENCE_S)
        # Runners inherit it; only now, since the agent admits no more work than it had processors at its start.
        os.sched_setaffinity(self.agent.pid, {self.unit_core})

    def compete(self, count: int = 3) -> list[subprocess.Popen[bytes]]:
        """Take the trainer's processor from it."""
        found = [subprocess.Popen([sys.executable, "-c", SPINNER, str(self.trainer_core)]) for _ in range(count)]
        self.started += found
        return found

    def submit(self, payload: dict[str, Any], module: str = "llmserve") -> int:
        return int(self.client.call("job_submit", module=module, payload=payload)["job"])

    def duty(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.call("duty")
        return found

    def until_running(self) -> dict[str, Any]:
        """Wait for a budget above 0; the view."""
        return wait_for(
            "a budget runs", lambda: (v := self.duty())["state"] == "running" and v["budget"] > 0 and v, PATIENCE_S
        )

    def units(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many units that work."""

        def seen() -> list[dict[str, Any]]:
            rows = self.duty()["units"]
            phases = [self.home / "nodes/local/jobs" / row["attempt"] / "work/phase" for row in rows]
            return rows if len(rows) == count and all(path.exists() for path in phases) else []

        return wait_for(f"{count} units work", seen, PATIENCE_S)

    def control(self, attempt: str) -> dict[str, Any]:
        return json.loads((self.home / "nodes/local/jobs" / attempt / "work/control.json").read_text())

    def runners_cpu_s(self) -> float:
        return cpu_s(runners_of(self.home))

    def codes(self, code: str) -> list[dict[str, Any]]:
        return self.timeline(code)
