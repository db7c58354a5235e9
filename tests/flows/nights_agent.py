"""The agent of a node without a machine (``nights_rig``).

Real: its verbs for runs and certificates, its journal, every decision. Scripted: what a block measures and which program runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodes.agent.certificates import KeptCertificates
from nodes.agent.certify import Certifier
from nodes.agent.measure import Measurer
from nodes.agent.runs import Runs
from nodes.agent.verbs import Verbs
from nodes.identity import ProcessId
from policies.certificate import Fingerprint, differences
from policies.harness.rows import BlockRow, UnitDose, WindowRow
from policies.harness.spec import RunSpec
from policies.section.models import Rule
from policies.statistics import main as statistics_main

if TYPE_CHECKING:
    from tests.flows.nights_rig import Node

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


class AgentDied(BaseException):
    """The agent's process is killed in the middle of a block."""


@dataclass(frozen=True)
class _Module:
    module: str = MODULE
    digest: str = DIGEST
    state: str = "ready"
    version: str = "1.0.0"
    changed: bool = False


class _Modules:
    def list(self) -> list[_Module]:
        return [_Module()]

    def get(self, name: str) -> None:
        return None

    def bundles(self) -> dict[str, str]:
        return {MODULE: DIGEST}


class _Track:
    longest_step_s = 0.2

    def count_between(self, begin_s: float, end_s: float, now_s: float) -> Any:
        return type("Counted", (), {"events": RATE * (end_s - begin_s)})


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


class Agent:
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
        self.modules = _Modules()
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

    def __init__(self, agent: Agent) -> None:
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

    async def look_at_copies(self) -> None:
        pass

    async def fingerprint(self, rule: str) -> Fingerprint:
        return self.agent.owner.fingerprint()

    def timed(self, spec: RunSpec) -> Any:
        return type("Timed", (), {"looks_timed": False, "words": "steps of irregular length"})

    def rule_of(self, spec: RunSpec) -> Rule:
        return RULE


class ScriptedBlock:
    """Stands for ``nodes.agent.block.BlockRunner``: two windows by the truth of the node, or what struck in them."""

    def __init__(self, agent: Agent, active: Any, number: int, order: str) -> None:
        self.node, self.active, self.number, self.order = agent.owner, active, number, order

    async def measure(self) -> BlockRow:
        node, spec = self.node, self.active.spec
        strike = node.chances.strikes("flow_dies_in_block", "agent_dies_in_block", "cancelled_in_block", "left_out")
        if strike in ("flow_dies_in_block", "agent_dies_in_block", "cancelled_in_block"):
            node.clock.advance(node.rng.uniform(0.0, spec.block_s))
            if strike == "agent_dies_in_block":
                raise AgentDied
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
