"""A node without a machine: the agent's own verbs, runs, journal and certificates, on a clock that only this rig moves.

Real: the flows' code, the steps under them, the agent's verbs for runs and certificates, its journal and the store (SQLite files),
the mirror, every decision. Scripted: what a block measures (``nights_agent``), which program runs, who is alive, when something breaks.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nodes.client import AgentUnreachable
from nodes.identity import ProcessId
from nodes.journal import Journal
from policies.certificate import Fingerprint, Program
from tests.flows.nights_agent import NODE, Agent, AgentDied


class Died(BaseException):
    """The flow's process is killed. Nothing of it may be caught on the way out."""


@dataclass
class Clock:
    """The wall clock and the monotonic one, moved together."""

    now: datetime
    mono_s: float = 1000.0

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.mono_s += seconds

    def until(self, when: datetime) -> None:
        if when > self.now:
            self.advance((when - self.now).total_seconds())

    def iso(self, when: datetime | None = None) -> str:
        return (when or self.now).isoformat()


@dataclass
class Chances:
    """How likely each thing is, by call of a verb or by block. ``count`` of what came true."""

    rng: random.Random
    flow_dies: float = 0.01
    agent_dies: float = 0.01
    reboot: float = 0.002
    flow_dies_in_block: float = 0.03
    agent_dies_in_block: float = 0.03
    cancelled_in_block: float = 0.005
    left_out: float = 0.03
    count: dict[str, int] = field(default_factory=dict)

    def strikes(self, *names: str) -> str | None:
        for name in names:
            if self.rng.random() < getattr(self, name):
                self.count[name] = self.count.get(name, 0) + 1
                return name
        return None


@dataclass(frozen=True)
class _Peer:
    pid: int
    gone: asyncio.Event


class Node:
    """The machine: its clock, its processes, its agent. ``call`` is the socket's client."""

    def __init__(self, home: Path, clock: Clock, chances: Chances, truth: Callable[[float], float]) -> None:
        self.home, self.clock, self.chances, self.truth = home, clock, chances, truth
        self.rng = chances.rng
        self.boot, self.alive, self._pid = "boot-1", set[ProcessId](), 100
        self.flow: ProcessId | None = None
        self.program_version, self.section_version = 1, 1
        self.measured: list[tuple[str, int]] = []  # every block that was measured to its end
        self.cancelled = False  # as the server says of the flow run
        self.signalled = False  # and its process has not heard of it yet
        self._loop = asyncio.new_event_loop()
        self._down_until_s = 0.0
        self._start_agent()

    def close(self) -> None:
        self.journal.close()
        self._loop.close()

    # -- processes ----------------------------------------------------------------------------------------------------

    def spawn(self) -> ProcessId:
        self._pid += 1
        self.flow = ProcessId(self._pid, int(self.clock.mono_s * 100), self.boot)
        self.alive.add(self.flow)
        return self.flow

    def kill_flow(self) -> None:
        if self.flow is not None:
            self.alive.discard(self.flow)

    def liveness(self, who: ProcessId) -> str:
        return "alive" if who in self.alive else "gone"

    def reboot(self) -> None:
        """Everything dies; the machine is back some minutes later."""
        self.alive.clear()
        self.boot = f"boot-{int(self.clock.mono_s)}"
        self._restart_agent(60.0, 900.0)

    def _start_agent(self) -> None:
        self.journal = Journal(self.home / "nodes" / NODE / "journal.sqlite")
        self.agent = Agent(self)
        self.journal.write("AGENT_STARTED", {})

    def _restart_agent(self, least_s: float = 1.0, most_s: float = 90.0) -> None:
        self.journal.close()
        self._down_until_s = self.clock.mono_s + self.rng.uniform(least_s, most_s)
        self._start_agent()

    # -- the socket ---------------------------------------------------------------------------------------------------

    def call(self, method: str, /, _timeout_s: float = 30.0, **params: Any) -> Any:
        strike = self.chances.strikes("flow_dies", "agent_dies", "reboot")
        answered = self.rng.random() < 0.5  # whether the verb was carried out before it struck
        if strike is None or answered:
            result = self._carry_out(method, params)
        if strike == "flow_dies":
            self.kill_flow()
        elif strike == "agent_dies":
            self._restart_agent()
            raise AgentUnreachable(self.home, "it was killed")
        elif strike == "reboot":
            self.reboot()
        if self.flow is not None and self.flow not in self.alive:
            raise Died
        return result

    def _carry_out(self, method: str, params: dict[str, Any]) -> Any:
        if self.clock.mono_s < self._down_until_s:
            raise AgentUnreachable(self.home, "it is starting")
        self.clock.advance(0.05)
        verb = self.agent.table[method]
        if "peer" in inspect.signature(verb).parameters:
            params = {"peer": _Peer(self.flow.pid if self.flow else 0, asyncio.Event())} | params
        try:
            result = verb(**params)
            if inspect.isawaitable(result):
                result = self._loop.run_until_complete(_awaited(result))
        except AgentDied:
            self._restart_agent()
            raise AgentUnreachable(self.home, "it was killed in a block") from None
        # what goes over the socket is JSON
        return json.loads(json.dumps(result))

    def await_agent(self) -> None:
        self.clock.advance(max(0.0, self._down_until_s - self.clock.mono_s))

    def tick(self) -> None:
        """What the agent looks at every two seconds."""
        self.agent.runs.release_if_gone()
        self.agent.runs.interrupt_stale()

    # -- what there is to measure -------------------------------------------------------------------------------------

    def fingerprint(self) -> Fingerprint:
        program = Program(
            exe="/usr/bin/python3",
            exe_sha256="e" * 64,
            script="/srv/train.py",
            script_sha256=f"{self.program_version:064d}",
            argv=("python3", "train.py"),
        )
        return Fingerprint(
            cpu_model="EPYC", cores=16, memory_gib=125.6, gpus=(), os_name="debian", os_major="12", kernel="6.1",
            agent_version="1", program=(program,),
        )  # fmt: skip


async def _awaited(found: Any) -> Any:
    return await found


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
