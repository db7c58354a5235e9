"""What each unit of fleet work may do now, and why: one pure judgement for running work and for work that waits.

A unit runs when nothing holds it. Every reason that holds it is kept, so that ``job show`` and the timeline can say all of
them, and so that one reason going away never lets work loose while another still stands. Source: ``protection.md``
("GPU work beside a protected program", the table of keys) and ``harness.md`` (hold and grant).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from policies.work import WorkSelector

__all__ = [
    "Desired",
    "NodeView",
    "PhaseView",
    "Reason",
    "RuleView",
    "RunView",
    "Scope",
    "Unit",
    "desired",
    "duties",
    "holding_rules",
    "in_scope",
    "reasons",
]

Scope = Literal["all", "cpu", "gpu", "io"]
Action = Literal["run", "pause", "evict"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A running attempt or, for admission, a waiting job (``attempt`` is then empty)."""

    attempt: str
    job: int
    module: str
    stage: str
    device: bool
    cooperative: bool = True
    feed_of: str | None = None


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A ``during`` block. ``on`` is already true for a phase that cannot be read."""

    index: int
    on: bool
    scope: Scope
    readable: bool = True


@dataclass(frozen=True, slots=True)
class RuleView:
    """A rule at this instant. ``uses_device`` None is unknown and counts as using it."""

    id: str
    active: bool
    holding: bool
    uses_device: bool | None = None
    protects_progress: bool = False
    pause: Scope | None = None
    evict: Scope | None = None
    phases: tuple[PhaseView, ...] = ()


@dataclass(frozen=True, slots=True)
class RunView:
    """The harness run that has the node's lock. ``hold``: OFF, and between blocks; ``grant``: ON."""

    run: str
    rule: str
    work: WorkSelector
    part: Literal["hold", "grant"]
    off: Literal["paused", "evicted"] = "paused"
    duty: float | None = None
    feed: str | None = None
    tests_work: bool = True

    def tests(self, unit: Unit) -> bool:
        """Whether this unit is the work under test. With a feed the feed's units are, and nothing else of that name."""
        if not self.tests_work:
            return False
        if self.feed is not None or unit.feed_of is not None:
            return unit.feed_of == self.run
        return self.work.selects(unit.module, unit.stage, device=unit.device)


@dataclass(frozen=True, slots=True)
class NodeView:
    mode: Literal["fleet_first", "moderate", "strict_yield"] = "moderate"
    pause: bool = False
    gpu_jobs: Literal["never", "when_no_gpu_protected", "certified", "always"] = "when_no_gpu_protected"
    duty_device: Literal["gpu", "cpu"] = "gpu"
    rules: tuple[RuleView, ...] = ()
    run: RunView | None = None
    admits: bool = True
    """False while nothing may start: the agent has not judged every rule yet, or memory is short or unknown."""
    admits_why: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a unit is held. ``run`` marks the holds of a harness run, which the ten-minute limit does not count."""

    code: str
    why: str
    remedy: str = ""
    action: Literal["pause", "evict"] = "pause"
    run: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    attempt: str
    action: Action
    reasons: tuple[Reason, ...]
    duty: float | None = None

    @property
    def unlimited(self) -> bool:
        return bool(self.reasons) and all(reason.run for reason in self.reasons)


def in_scope(unit: Unit, scope: Scope, duty_device: str) -> bool:
    """Whether work of ``scope`` includes the unit.

    With the CPU as duty device, device work is CPU work too. ``io`` binds all work: none is known to do no I/O.
    """
    if scope in ("all", "io"):
        return True
    if scope == "gpu":
        return unit.device
    return not unit.device or duty_device == "cpu"


def holding_rules(node: NodeView) -> tuple[RuleView, ...]:
    """Rules that hold device work back: they protect the program's progress and it uses the device (or may)."""
    return tuple(
        rule for rule in node.rules if rule.holding and rule.protects_progress and rule.uses_device is not False
    )


def reasons(unit: Unit, node: NodeView) -> tuple[Reason, ...]:
    """Everything that holds this unit now; empty: it may run."""
    found: list[Reason] = []
    if node.pause:
        found.append(Reason("PROTECTION_PAUSE", "the owner paused all fleet work (node.pause)", "set pause = false"))
    for rule in node.rules:
        found += _rule_reasons(unit, rule, node)
    # In OFF the run's own hold stands in the rule's place: it is no pause that the ten-minute limit should end.
    exempt = node.run.rule if node.run is not None and node.run.tests(unit) else None
    if unit.device:
        found += _device_reasons(node, exempt)
    elif node.mode != "fleet_first":
        # The graded reaction (lower, then pause, on measured harm) is stricter here: held while the rule is active.
        found += [
            Reason(
                "PROTECTION_PAUSE",
                f"rule {rule.id} protects a program that is running, and mode is {node.mode}",
                'mode = "fleet_first", or wait until the program ends',
            )
            for rule in node.rules
            if rule.holding and rule.protects_progress and rule.id != exempt
        ]
    if node.run is not None:
        found += _run_reasons(unit, node.run)
    elif unit.feed_of is not None:
        found.append(Reason("RUN_HOLD", f"it feeds run {unit.feed_of}, which does not run now", action="evict"))
    return tuple(found)


def _rule_reasons(unit: Unit, rule: RuleView, node: NodeView) -> list[Reason]:
    found = []
    if rule.holding and rule.pause is not None and in_scope(unit, rule.pause, node.duty_device):
        found.append(Reason("PROTECTION_PAUSE", f"rule {rule.id} pauses fleet work of scope {rule.pause}"))
    if rule.holding and rule.evict is not None and in_scope(unit, rule.evict, node.duty_device):
        found.append(
            Reason("PROTECTION_EVICT", f"rule {rule.id} evicts fleet work of scope {rule.evict}", action="evict")
        )
    for phase in rule.phases:
        if phase.on and in_scope(unit, phase.scope, node.duty_device):
            words = "is on" if phase.readable else "cannot be read, so it counts as on"
            found.append(Reason("PROTECTION_PHASE_ON", f"phase {phase.index + 1} of rule {rule.id} {words}"))
    if node.mode == "strict_yield" and rule.active:
        found.append(Reason("PROTECTION_PAUSE", f"rule {rule.id} is active and mode is strict_yield"))
    return found


def _device_reasons(node: NodeView, exempt: str | None) -> list[Reason]:
    if node.gpu_jobs == "never":
        return [Reason("PROTECTION_PAUSE", 'gpu_jobs = "never": no device work on this node', "change gpu_jobs")]
    if node.gpu_jobs == "always":
        return []
    return [
        Reason(
            "GPU_NOT_CERTIFIED" if node.gpu_jobs == "certified" else "PROTECTION_PAUSE",
            f"rule {rule.id} holds device work back while its program uses the device"
            + ("" if rule.uses_device else " (whether it does cannot be told)"),
            f"it runs when the program does not use the device; to measure it: cotenant protection ab start NODE --rule {rule.id}",
        )
        for rule in holding_rules(node)
        if rule.id != exempt
    ]


def _run_reasons(unit: Unit, run: RunView) -> list[Reason]:
    if run.tests(unit):
        if run.part == "grant":
            if run.duty is not None and not unit.cooperative:
                return [Reason("RUN_HOLD", f"run {run.run} asks for a duty, which it cannot hold", run=True)]
            return []
        action: Literal["pause", "evict"] = "evict" if run.off == "evicted" else "pause"
        return [Reason("RUN_HOLD", f"run {run.run} holds the work under test (OFF)", action=action, run=True)]
    if unit.feed_of is not None:
        return [Reason("RUN_HOLD", f"it feeds run {unit.feed_of}, which does not run now", action="evict")]
    named = run.tests_work and run.work.selects(unit.module, unit.stage, device=unit.device)
    if unit.device or named or not run.tests_work:
        # work of the name under test that is not the feed would blur both arms; a null or self run has no work at all
        return [Reason("RUN_HOLD", f"run {run.run} measures; other work is held", run=True)]
    return []


def duties(units: Sequence[Unit], node: NodeView) -> dict[str, float]:
    """Duty of each unit under a run's grant: equal shares of the duty asked among those that may run."""
    if node.run is None or node.run.part != "grant" or node.run.duty is None:
        return {}
    sharing = [unit for unit in units if unit.cooperative and node.run.tests(unit) and not reasons(unit, node)]
    return {unit.attempt: node.run.duty / len(sharing) for unit in sharing}


def desired(units: Sequence[Unit], node: NodeView) -> tuple[Desired, ...]:
    """What every running unit should do now."""
    shares = duties(units, node)
    found = []
    for unit in units:
        why = reasons(unit, node)
        action: Action = "run" if not why else "evict" if any(r.action == "evict" for r in why) else "pause"
        found.append(Desired(unit.attempt, action, why, shares.get(unit.attempt)))
    return tuple(found)


def admission(unit: Unit, node: NodeView) -> tuple[Reason, ...]:
    """What keeps a waiting job from starting; empty: it may start."""
    why = list(reasons(unit, node))
    if not node.admits:
        why.append(Reason("MEMORY_SOFT", node.admits_why))
    if (
        unit.device
        and node.run is not None
        and node.run.part == "grant"
        and node.run.duty is not None
        and not unit.cooperative
    ):
        why.append(Reason("GPU_NOT_CERTIFIED", "the run asks for a duty and its runner cannot throttle"))
    return tuple(why)
