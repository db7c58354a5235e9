"""A real agent in a home of its own, and a program that makes progress: what the agent's tests stand on."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nodes.client import AgentClient, AgentUnreachable, socket_path
from nodes.identity import own_id
from policies.harness.schedule import coin

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")

# Works in small steps of irregular length and says so; a program whose speed needs no second core.
STEPPER = """
import json, random, sys, time
random.seed(1)
with open(sys.argv[1], "a") as out:
    while True:
        time.sleep(random.uniform(0.02, 0.06))
        sum(i * i for i in range(20000))
        print(json.dumps({"event": "step_done"}), file=out, flush=True)
"""


def wait_for(what: str, seen: Callable[[], T], limit_s: float = 60.0) -> T:
    """Poll until ``seen`` gives something true; fail with ``what`` after a limit that a busy host keeps too."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        found = seen()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not seen within {limit_s:g} s: {what}")


def typed(env: Mapping[str, str], *words: str, limit_s: float, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A command as it is typed: in a process of its own, with ``stdin`` for what it asks."""
    command = [sys.executable, "-m", "cotenant.cli.main", *words]
    return subprocess.run(
        command, cwd=ROOT, env=env, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False
    )


def disk_full(*_: Any, **__: Any) -> None:
    """Stands for a write of the journal on a disk that has no room."""
    raise sqlite3.OperationalError("database or disk is full")


def own_ticks(pid: int) -> int:
    """CPU ticks of a process, its children's apart, read here and not by the product."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def cpu_s(pids: list[int]) -> float:
    """CPU seconds of those of these processes that are there."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += own_ticks(pid)
    return total / os.sysconf("SC_CLK_TCK")


def runners_of(home: Path) -> list[int]:
    """Pids of runner processes whose work lies in this home, found without asking the agent."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"OARBANK_WORKDIR=" + os.fsencode(home) in environ and b"launcher.py" not in command:
                found.append(int(entry.name))
    return found


class Rig:
    """Home, agent, program. Everything it starts it ends, by pid."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.events = home / "events.jsonl"
        self.client = AgentClient(socket_path(home, "local"))
        self.agent: subprocess.Popen[bytes] | None = None
        self.started: list[subprocess.Popen[bytes]] = []
        self.stepper = home / "stepper.py"
        self.stepper.write_text(STEPPER)

    def start_agent(self) -> None:
        with open(self.home / "agent.log", "ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "nodes.agent", "--home", str(self.home), "--node", "local"],
                cwd=ROOT,
                stderr=log,
                stdout=log,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.started.append(self.agent)
        wait_for("the agent answers", self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.client.call("hello"))
        except AgentUnreachable:
            return False

    def start_program(self, events: Path | None = None) -> subprocess.Popen[bytes]:
        program = subprocess.Popen([sys.executable, str(self.stepper), str(events or self.events)])
        self.started.append(program)
        return program

    def section(self, extra_node: str = "", extra_rule: str = "", name: str = "stepper") -> str:
        return f"""
[node]
duty_device = "cpu"
accept_demonstration = true
{extra_node}
[node.defaults]
enter_for_s = 0
exit_after_s = 2
cooldown = {{ base_s = 2, backoff = 1.0, max_s = 2 }}
[[rule]]
id = "{name}"
match = {{ argv_regex = "{self.stepper}" }}
protect = {{ metric = "progress_rate", max_slowdown = 0.5, source = {{ jsonl = "{self.events}", event = "step_done" }} }}
{extra_rule}
"""

    def protect(self, **extra: str) -> None:
        """Put the section in force and wait until the program is seen and read, and the module is ready."""
        self.client.call("section_set", text=self.section(**extra), by="test")
        wait_for("llmserve is ready", lambda: self.client.call("modules")[0]["state"] == "ready", 300)

        def seen() -> bool:
            status = self.client.call("status")
            source = next(row for row in status["sources"] if row["role"] == "progress")
            return bool(status["rules"] and status["rules"][0]["active"] and source["state"] == "ok" and source["rate"])

        wait_for("the program is active and read", seen)

    @staticmethod
    def spec(first: str = "on_first", **changes: Any) -> dict[str, Any]:
        """``first``: what the coin of block 1 says (the seed is chosen so)."""
        asked = {
            "node": "local",
            "rule": "stepper",
            "work": "llmserve/selftest",
            "feed": "llmserve/selftest",
            "duty": 0.1,
            "window_s": 5.0,
            "washout_s": 1.0,
            "margin": 0.5,
            "max_hours": 0.06,
            "seed": next(seed for seed in range(1000) if coin(seed, 1) == first),
        }
        return asked | changes

    def begin(self, run: str = "run-1", **changes: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.client.call(
            "run_begin", run=run, spec=self.spec(**changes), holder=own_id().as_dict(), reviewed_by="test"
        )
        return found

    def part(self) -> tuple[str | None, str | None]:
        """(arm, part) of the block that is measured now."""
        status = self.client.call("run_status")
        now = status["now"] if status else None
        return (now["arm"], now["part"]) if now else (None, None)

    def wait_window(self, arm: str, limit_s: float = 120.0) -> None:
        wait_for(f"the {arm} window", lambda: self.part() == (arm, "window"), limit_s)

    def timeline(self, code: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.call("timeline", code=code, limit=5000)["entries"]
        return found

    def stop(self) -> None:
        for process in reversed(self.started):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        for pid in runners_of(self.home):
            os.kill(pid, signal.SIGKILL)
