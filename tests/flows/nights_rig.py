"""A node without a machine: the agent's own verbs, runs, journal and certificates, on a clock that only this rig moves.

Real: the flows' code, the steps under them, the agent's verbs for runs and certificates, its journal and the store (SQLite files),
the mirror, every decision. Scripted: what a block measures, which program runs, who is alive, when something breaks.
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

from nodes.agent.certificates import KeptCertificates
from nodes.agent.certify import Certifier
from nodes.agent.measure import Measurer
from nodes.agent.runs import Runs
from nodes.agent.verbs import Verbs
from nodes.client import AgentUnreachable
from nodes.identity import ProcessId
from nodes.journal import Journal
from policies.certificate import Certificate, Fingerprint, Program, differences
from policies.harness.rows import BlockRow, UnitDose, WindowRow
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from policies.section.models import Rule
from policies.statistics import main as statistics_main

NODE, MODULE, STAGE, DIGEST = "local", "dev.cotenant.llmserve", "selftest", "b" * 64
RATE = 10.0
IDLE = {
    "node": NODE, "gpu_jobs": "certified", "state": "free", "budget": None, "ceiling": None, "decides": "nobody", "rules": [],
    "units": [],
}  # fmt: skip
RULE = Rule.model_validate(
    {
        "id": "trainer",
        "match": {"argv_regex": "train"},
        "protect": {"metric": "progress_rate", "max_slowdown": 0.05, "source": {"jsonl": "/e.jsonl", "event": "step"}},
    }
)


class Died(BaseException):
    """The flow's process is killed. Nothing of it may be caught on the way out."""


class _AgentDied(BaseException):
    """The agent's process is killed in the middle of a block."""


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


@dataclass(frozen=True)
class _Module:
    module: str = MODULE
    digest: str = DIGEST
    state: str = "ready"
    version: str = "1.0.0"


class _Track:
    longest_step_s = 0.2

    def count_between(self, begin_s: float, end_s: float, now_s: float) -> Any:
        return type("Counted", (), {"events": RATE * (end_s - begin_s)})


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
        self.agent = _Agent(self)
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
        except _AgentDied:
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


class _Section:
    class node:
        duty_device = "cpu"

    @staticmethod
    def rule(name: str) -> Rule | None:
        return RULE if name == RULE.id else None


class _UnderTest:
    """The work under test: there is none but in the rows of blocks."""

    def held(self, active: Any) -> bool:
        return True

    def stop(self, active: Any, why: str) -> None:
        return

    def end_feed(self, run: str) -> None:
        return


class _Agent:
    """What the agent's verbs ask of the agent, for one life of its process."""

    node, section = NODE, _Section()

    def __init__(self, owner: Node) -> None:
        self.owner = owner
        self.home = owner.home
        self.journal = owner.journal
        self.runs = Runs(owner.journal)
        self.unsettled: set[str] = set()
        self.certificates = KeptCertificates(owner.journal, owner.home / "key")
        self.under_test = _UnderTest()
        self.units = type("Units", (), {"meter_words": staticmethod(lambda work: "scripted")})
        self.modules = type("Modules", (), {"list": staticmethod(lambda: [_Module()])})
        self.sections = type("Sections", (), {"show": lambda _, *where: {"version": self.section_version}})()
        plans = _Plans(self)
        verbs = Verbs(self)  # type: ignore[arg-type]
        verbs.planner = plans  # type: ignore[assignment]
        verbs.measurer = Measurer(self, plans, plans)  # type: ignore[arg-type]
        verbs.certifier = Certifier(self, plans)  # type: ignore[arg-type]
        verbs.certifier._recompute = self._recompute  # type: ignore[method-assign]
        self.verbs = verbs
        self.table = _without_the_rest(verbs)

    @property
    def section_version(self) -> int:
        return self.owner.section_version

    @property
    def section_text(self) -> str:
        return f"# version {self.owner.section_version}"

    def nothing(self, *_: Any, **__: Any) -> None:
        return None

    evaluate = tick = pulse = sources_keep_since = nothing

    def progress(self, rule: str) -> Any:
        return type("View", (), {"readable": True, "track": _Track()})

    async def next_pulse(self, within_s: float) -> None:
        self.owner.clock.advance(max(within_s, 0.01))

    async def _recompute(self, run: str, spec: RunSpec) -> dict[str, Any]:
        """The same question to the same function, without a child process."""
        rows = [row for row in self.runs.blocks(run) if row.state == "counted" and row.on and row.off]
        blocks = [[row.order, row.on.rate, row.off.rate] for row in rows]  # type: ignore[union-attr]
        question = {"blocks": blocks, "margin": spec.margin, "n_max": spec.n_max, "first_look": spec.first_look}
        status, answer = statistics_main(json.dumps(question).encode())
        assert status == 0, answer
        return dict(json.loads(answer))


def _without_the_rest(verbs: Verbs) -> dict[str, Any]:
    """Verbs of runs and certificates; the agent of this rig has no jobs, sources or governor."""
    for name in ("sources", "governing"):
        if not hasattr(verbs.agent, name):
            setattr(verbs.agent, name, type("Idle", (), {"view": staticmethod(lambda: IDLE)}))
    return verbs.table()


class _Plans:
    """What a run starts with, and the plan that is shown."""

    def __init__(self, agent: _Agent) -> None:
        self.agent = agent

    async def plan(self, spec: RunSpec, holder: ProcessId | None = None) -> dict[str, Any]:
        self.agent.runs.check_free(holder=holder)
        return {
            "spec": spec.model_dump(), "rule": {"id": spec.rule}, "processes": [],
            "source": {"kind": "jsonl", "path": "e.jsonl", "state": "ok", "rate": RATE, "timed": False},
            "work": [], "feed": None, "planned_blocks": 12, "planned_hours": 2.4, "longest_hours": 8.0, "n_max": spec.n_max,
            "looks": list(spec.looks), "held": [], "allowed": [], "warnings": [], "attempts_before": [],
            "certificate_kind": "certificate",
        }  # fmt: skip

    async def facts(self, spec: RunSpec, old: dict[str, Any] | None) -> dict[str, Any]:
        found = self.agent.owner.fingerprint()
        facts: dict[str, Any] = {
            "node": NODE,
            "section_version": self.agent.section_version,
            "section_digest": self.agent.verbs.section_show()["in_force_digest"],
            "agent_version": "1",
            "fingerprint": found.model_dump(mode="json"),
            "work": [{"module": MODULE, "short": "llmserve", "version": "1.0.0", "digest": DIGEST, "stage": STAGE}],
            "program": {"processes": []},
            "source": {"kind": "jsonl", "path": "e.jsonl", "unit": "step", "timed": False},
            "attempts_before": [],
            "newest_null": None,
            "newest_self": None,
        }
        if old is not None:
            facts["fingerprint_differences"] = differences(Fingerprint.model_validate(old["fingerprint"]), found)
        return facts

    async def fingerprint(self, rule: str) -> Fingerprint:
        return self.agent.owner.fingerprint()

    def timed(self, spec: RunSpec) -> Any:
        return type("Timed", (), {"looks_timed": False, "words": "steps of irregular length"})

    def rule_of(self, spec: RunSpec) -> Rule:
        return RULE


class ScriptedBlock:
    """Stands for ``nodes.agent.block.BlockRunner``: two windows by the truth of the node, or what struck in them."""

    def __init__(self, agent: _Agent, active: Any, number: int, order: str) -> None:
        self.node, self.active, self.number, self.order = agent.owner, active, number, order

    async def measure(self) -> BlockRow:
        node, spec = self.node, self.active.spec
        strike = node.chances.strikes("flow_dies_in_block", "agent_dies_in_block", "cancelled_in_block", "left_out")
        if strike in ("flow_dies_in_block", "agent_dies_in_block", "cancelled_in_block"):
            node.clock.advance(node.rng.uniform(0.0, spec.block_s))
            if strike == "agent_dies_in_block":
                raise _AgentDied
            if strike == "cancelled_in_block":
                node.cancelled = node.signalled = True
                return self._row("cut", "cut")
            node.kill_flow()
            node.agent.runs.release_if_gone()
            return self._row("cut", "cut")
        windows = {arm: self._window(arm) for arm in ((("on", "off")) if self.order == "on_first" else ("off", "on"))}
        if strike == "left_out":
            return self._row("left_out", node.rng.choice(("suspend", "phase", "power_source")), **windows)
        node.measured.append((self.active.run, self.number))
        return self._row("counted", None, **windows)

    def _row(self, state: str, reason: str | None, **windows: WindowRow) -> BlockRow:
        return BlockRow.model_validate(
            {
                "run": self.active.run,
                "number": self.number,
                "order": self.order,
                "state": state,
                "reason": reason,
                **windows,
            }
        )

    def _window(self, arm: str) -> WindowRow:
        node, spec = self.node, self.active.spec
        node.clock.advance(spec.washout_s)
        begun, begun_s = node.clock.iso(), node.clock.mono_s
        node.clock.advance(spec.window_s)
        ratio = node.truth(spec.duty) if arm == "on" else 1.0
        rate = RATE * ratio * (1.0 + node.rng.gauss(0.0, 0.004))
        share = spec.duty if arm == "on" else 0.0
        dose = UnitDose(attempt="1", module=MODULE, stage=STAGE, digest=DIGEST, share=share, asked=share)
        return WindowRow(
            run=self.active.run, block=self.number, arm=arm,  # type: ignore[arg-type]
            position=1 if self.order.startswith(arm) else 2,
            started_at=begun, started_mono_s=begun_s, length_s=spec.window_s, events=rate * spec.window_s, rate=rate,
            longest_step_s=0.2, work_ran_s=spec.window_s if arm == "on" else 0.0, dose=share,
            units=(dose,) if arm == "on" else (),
        )  # fmt: skip


def certificate_rows(node: Node) -> list[Certificate]:
    return [each for each, _ in node.agent.certificates.all()]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


__all__ = ["NODE", "Chances", "Clock", "Died", "Node", "Refused", "ScriptedBlock", "certificate_rows", "utc"]
