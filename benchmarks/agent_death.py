"""From the agent's death or silence to fleet work that is held: four runners at full load, one of each kind.

The kinds are what a runner can declare: it may be frozen, it pauses at a safe point, both, neither. The agent is killed (SIGKILL), started
again, stopped (SIGSTOP) and continued. Everything is seen from outside: states and CPU ticks under /proc, the control documents.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._figures import Figure, figure, run
from nodes.client import AgentClient, AgentUnreachable, node_dir, socket_path
from tests.node.jobs_rig import cpu_ticks, foreign, state_of

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "freeze": ["freeze_ok"],
    "pause": ["cooperative_pause", "cancellable"],
    "both": ["freeze_ok", "cooperative_pause"],
    "neither": ["cancellable"],
}
HELD_AFTER_KILL_S, HELD_AFTER_SILENCE_S, BACK_S = 1.0, 11.0, 5.0
PATIENCE_S = 120.0
LOOK_S = 0.005
CALM_S = 0.3
CALM_TICKS = 3


class FourRunners:
    """An agent in a home of its own with one running attempt of each kind. ``close`` ends all of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.client = AgentClient(socket_path(home, "bench"))
        self.agent: subprocess.Popen[bytes] | None = None
        self.pids: dict[str, list[int]] = {}
        """Runner and children of each kind, as last found; never a launcher."""
        self.attempts: dict[str, str] = {}

    def start_agent(self) -> float:
        """Monotonic time at which it was started; returns once it answers."""
        began = time.monotonic()
        with open(self.home / "agent.log", "ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "nodes.agent", "--home", str(self.home), "--node", "bench", "--slots", "8"],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        until(self._answers)
        return began

    def _answers(self) -> bool:
        try:
            return bool(self.client.call("hello"))
        except AgentUnreachable:
            return False

    def submit(self) -> None:
        for kind, capabilities in KINDS.items():
            bundle = foreign(
                self.home / kind,
                capabilities,
                id=f'"org.example.kind-{kind}"',
                stop_grace_s="2",
                requires="{ resources = { cpu = 0.1, mem_gb = 0.02 } }",  # four are to run, whatever the machine has
            )
            self.client.call("module_add", path=str(bundle))
            children = 1 if "freeze_ok" in capabilities else 0
            payload = {"do": "work", "children": children, "detached": children}
            self.client.call("job_submit", module=f"kind-{kind}", stage=None, payload=payload)

    def running(self) -> bool:
        """Whether every kind has a running attempt; finds their processes."""
        jobs = {job["module"].rsplit("-", 1)[1]: job for job in self.client.call("job_list", limit=50)}
        if set(jobs) != set(KINDS) or any(job["state"] != "running" for job in jobs.values()):
            return False
        self.attempts = {kind: job["attempt"] for kind, job in jobs.items()}
        self.pids = {kind: runners_of(attempt) for kind, attempt in self.attempts.items()}
        return all(len(pids) == (2 if "freeze_ok" in KINDS[kind] else 1) for kind, pids in self.pids.items())

    def folder(self, kind: str) -> Path:
        return node_dir(self.home, "bench") / "jobs" / self.attempts[kind]

    def control(self, kind: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder(kind) / "work" / "control.json").read_text()))
        except (OSError, ValueError):
            return {}

    def held(self, kind: str) -> bool:
        """Whether it is held as its kind is to be held, at this moment."""
        if kind == "neither":
            return all(state_of(pid) == "gone" for pid in self.pids[kind])
        if "freeze_ok" in KINDS[kind]:
            return all(state_of(pid) == "T" for pid in self.pids[kind])
        return self.control(kind).get("pause") is True

    def time_to_hold(self, since: float) -> dict[str, float]:
        """Seconds after ``since`` at which each kind was first seen held; for the one that only pauses: at rest as well."""
        seen: dict[str, float] = {}
        deadline = since + PATIENCE_S
        while len(seen) < len(KINDS) and time.monotonic() < deadline:
            for kind in KINDS:
                if kind not in seen and self.held(kind):
                    seen[kind] = time.monotonic() - since
            time.sleep(LOOK_S)
        if "pause" in seen:
            seen["pause"] = max(seen["pause"], self._at_rest(self.pids["pause"], deadline) - since)
        return seen

    @staticmethod
    def _at_rest(pids: list[int], deadline: float) -> float:
        """When a stretch began in which these used no CPU to speak of."""
        while time.monotonic() < deadline:
            began, before = time.monotonic(), cpu_ticks(pids)
            time.sleep(CALM_S)
            if cpu_ticks(pids) - before <= CALM_TICKS:
                return began
        return float("inf")

    def time_to_go_on(self, since: float) -> dict[str, float]:
        """Seconds after ``since`` at which each kind that was held was first seen using CPU again."""
        kept = [kind for kind in KINDS if kind != "neither"]
        before = {kind: cpu_ticks(self.pids[kind]) for kind in kept}
        seen: dict[str, float] = {}
        deadline = since + PATIENCE_S
        while len(seen) < len(kept) and time.monotonic() < deadline:
            for kind in kept:
                if kind not in seen and cpu_ticks(self.pids[kind]) > before[kind] + 2:
                    seen[kind] = time.monotonic() - since
            time.sleep(LOOK_S)
        return seen

    def close(self) -> None:
        if self.agent is not None and self.agent.poll() is None:
            self.agent.send_signal(signal.SIGCONT)
            self.agent.terminate()
            try:
                self.agent.wait(60)
            except subprocess.TimeoutExpired:
                self.agent.kill()
                self.agent.wait(10)
        for attempt in self.attempts.values():
            for pid in runners_of(attempt):
                os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not seen within {PATIENCE_S:g} s: {condition}")
        time.sleep(0.05)


def runners_of(attempt: str) -> list[int]:
    """Live processes that carry the attempt's id, launchers left out."""
    mark, found = f"OARBANK_ATTEMPT_ID={attempt}".encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                launcher = b"launcher.py" in Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if mark in environ and not launcher and state_of(int(name)) != "gone":
                found.append(int(name))
    return found


def measure(quick: bool) -> Sequence[Figure]:
    rounds = 1 if quick else 5
    killed: list[float] = []
    back: list[float] = []
    silent: list[float] = []
    again: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        four = FourRunners(Path(folder))
        try:
            four.start_agent()
            four.submit()
            for _ in range(rounds):
                until(four.running)
                assert four.agent is not None
                at = time.monotonic()
                four.agent.kill()
                killed.append(_last(four.time_to_hold(at), len(KINDS)))
                four.agent.wait()
                began = four.start_agent()
                back.append(_last(four.time_to_go_on(began), 3))
                until(four.running)
                at = time.monotonic()
                four.agent.send_signal(signal.SIGSTOP)
                silent.append(_last(four.time_to_hold(at), len(KINDS)))
                at = time.monotonic()
                four.agent.send_signal(signal.SIGCONT)
                again.append(_last(four.time_to_go_on(at), 3))
        finally:
            four.close()
    times = f"slowest of {rounds}, last of four runners"
    return [
        figure("agent killed: all held", max(killed), "s", ("<=", HELD_AFTER_KILL_S), times),
        figure("agent silent (SIGSTOP): all held", max(silent), "s", ("<=", HELD_AFTER_SILENCE_S), times),
        figure("agent started again: adopted, judged, going on", max(back), "s", ("<=", BACK_S), "from its exec on"),
        figure("agent continued: judged, going on", max(again), "s", ("<=", BACK_S), "from SIGCONT on"),
    ]


def _last(seen: dict[str, float], expected: int) -> float:
    return max(seen.values()) if len(seen) == expected else PATIENCE_S


if __name__ == "__main__":
    sys.exit(run("agent_death", __doc__, measure))
