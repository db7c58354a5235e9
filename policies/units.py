"""What each unit of fleet work may do now, and why: one pure judgement for running work and for work that waits.

A unit runs when nothing holds it. Every reason that holds it is kept, so that ``job show`` and the timeline can say all of
them, and so that one reason going away never lets work loose while another still stands. Source: ``protection.md``
("GPU work beside a protected program", the table of keys) and ``harness.md`` (hold and grant).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from policies.caps import Caps, Reserve, strictest_caps, sum_of_reserves
from policies.governed import refusals, shares
from policies.run_holds import run_reasons
from policies.section.models import Scope
from policies.views import Action, Desired, NodeView, Reason, RuleView, Unit
from policies.work import CPU

__all__ = [
    "brakes",
    "caps_in_force",
    "desired",
    "duties",
    "holding_rules",
    "in_scope",
    "is_lowered",
    "meetings",
    "over_the_caps",
    "reasons",
    "reserve_in_force",
    "rules_beside",
]

NOT_JUDGED = "its program runs, and what fleet work costs it is not known yet"


def in_scope(unit: Unit, scope: Scope, duty_device: str) -> bool:
    """Whether work of ``scope`` includes the unit.

    With the CPU as duty device, device work is CPU work too. ``io`` binds all work: none is known to do no I/O.
    """
    if scope in ("all", "io"):
        return True
    if scope == "gpu":
        return unit.device
    return not unit.device or duty_device == "cpu"


def holding_rules(node: NodeView, unit: Unit | None = None) -> tuple[RuleView, ...]:
    """Rules that hold device work back: they protect its progress or its share of the device, and it uses it (or may).

    ``unit``: only those whose program uses (or may use) a device that the unit uses (or may use).
    """
    return tuple(
        rule
        for rule in node.rules
        if rule.holding
        and (rule.protects_progress or rule.protects_share)
        and rule.uses_device is not False
        and (unit is None or _share_a_device(unit, rule))
    )


def rules_beside(unit: Unit, node: NodeView) -> tuple[RuleView, ...]:
    """The rules that hold this unit's device work back."""
    return holding_rules(node, unit) if unit.device else ()


def meetings(unit: Unit, rules: Iterable[RuleView], node: NodeView) -> dict[str, frozenset[str] | None]:
    """For each of these rules the devices on which the unit and its program may meet; None: it cannot be told."""
    return {rule.id: _meeting(unit, rule, node) for rule in rules}


def _meeting(unit: Unit, rule: RuleView, node: NodeView) -> frozenset[str] | None:
    if node.duty_device == "cpu":
        return frozenset({CPU})
    if rule.devices is None:
        return unit.devices
    return rule.devices if unit.devices is None else unit.devices & rule.devices


def _share_a_device(unit: Unit, rule: RuleView) -> bool:
    return unit.devices is None or rule.devices is None or bool(unit.devices & rule.devices)


def caps_in_force(node: NodeView) -> Caps:
    """The strictest of what active rules, and phases that are on, cap."""
    caps = [rule.cap for rule in node.rules if rule.active]
    caps += [phase.cap for rule in node.rules for phase in rule.phases if phase.on]
    return strictest_caps(caps)


def reserve_in_force(node: NodeView) -> Reserve:
    """What active rules, and phases that are on, set aside."""
    reserves = [rule.reserve for rule in node.rules if rule.active]
    reserves += [phase.reserve for rule in node.rules for phase in rule.phases if phase.on]
    return sum_of_reserves(reserves)


def is_lowered(unit: Unit, node: NodeView) -> bool:
    """Whether it belongs in the lowest scheduling class: a rule or a phase says so, or harm to a program does."""
    if node.run is not None and unit.attempt in node.run.stays_lowered:
        return True
    exempt = node.run.rule if node.run is not None and node.run.tests(unit) else None
    for rule in node.rules:
        if rule.active and rule.lower is not None and in_scope(unit, rule.lower, node.duty_device):
            return True
        if any(p.on and p.lower is not None and in_scope(unit, p.lower, node.duty_device) for p in rule.phases):
            return True
        if node.mode == "fleet_first":
            continue
        if not unit.device and rule.id != exempt and rule.level != "free":
            return True
        if _stall_binds(unit, node) and rule.stall_level != "free":
            return True
    return False


def reasons(unit: Unit, node: NodeView) -> tuple[Reason, ...]:
    """Everything that holds this unit now; empty: it may run."""
    found = brakes(unit, node)
    # In OFF the run's own hold stands in the rule's place: it is no pause that the ten-minute limit should end.
    exempt = node.run.rule if node.run is not None and node.run.tests(unit) else None
    if unit.device:
        found += _device_reasons(unit, node, exempt)
    if node.mode != "fleet_first":
        found += _reaction_reasons(unit, node, exempt)
    if node.run is not None:
        found += run_reasons(unit, node.run, node.rules)
    elif unit.feed_of is not None:
        found.append(Reason("RUN_HOLD", f"it feeds run {unit.feed_of}, which does not run now", action="evict"))
    return tuple(found)


def brakes(unit: Unit, node: NodeView) -> list[Reason]:
    """What the owner and the rules hold outright, whatever the work costs a program."""
    found: list[Reason] = list(node.unknown)
    if node.pause:
        found.append(Reason("PROTECTION_PAUSE", "the owner paused all fleet work (node.pause)", "set pause = false"))
    for rule in node.rules:
        found += _rule_reasons(unit, rule, node)
    return found


def _stall_binds(unit: Unit, node: NodeView) -> bool:
    """Whether a limit on ``cpu_stall`` binds the unit: work off the device, and with the CPU as duty device (where all work is
    device work) any. No other limit stands for it, not even in a rule that holds device work back by its progress; and the
    work under test in a run is exempt from its rule's device hold and its reaction to progress, not from this.
    """
    return not unit.device or (node.duty_device == "cpu" and node.gpu_jobs != "always")


def _reaction_reasons(unit: Unit, node: NodeView, exempt: str | None) -> list[Reason]:
    """What ``protect`` holds beyond device work: on harm, and for the stretch in which the program is measured alone."""
    found = []
    for rule in node.rules:
        if _stall_binds(unit, node) and rule.stall_level == "paused":
            found.append(Reason(rule.stall_code, f"rule {rule.id}: {rule.stall_why or NOT_JUDGED}"))
        if not rule.protects or rule.id == exempt:
            continue
        if not unit.device and rule.level == "paused":
            found.append(Reason(rule.reaction_code, f"rule {rule.id}: {rule.reaction_why or NOT_JUDGED}"))
        elif unit.device and rule.measures and node.run is None and node.gpu_jobs != "always":
            found.append(Reason("PROTECTION_BASELINE", f"rule {rule.id}: {rule.reaction_why}"))
    return found


def _rule_reasons(unit: Unit, rule: RuleView, node: NodeView) -> list[Reason]:
    found = []
    if rule.holding and rule.pause is not None and in_scope(unit, rule.pause, node.duty_device):
        found.append(Reason("PROTECTION_PAUSE", f"rule {rule.id} pauses fleet work of scope {rule.pause}"))
    if rule.holding and rule.evict is not None and in_scope(unit, rule.evict, node.duty_device):
        found.append(
            Reason("PROTECTION_EVICT", f"rule {rule.id} evicts fleet work of scope {rule.evict}", action="evict")
        )
    for phase in rule.phases:
        words = "is on" if phase.readable else "cannot be read, so it counts as on"
        said = f"phase {phase.index + 1} of rule {rule.id} {words}"
        if phase.on and phase.scope is not None and in_scope(unit, phase.scope, node.duty_device):
            found.append(Reason("PROTECTION_PHASE_ON", said))
        if phase.on and phase.evict is not None and in_scope(unit, phase.evict, node.duty_device):
            found.append(Reason("PROTECTION_EVICT", f"{said} and evicts scope {phase.evict}", action="evict"))
    if node.mode == "strict_yield" and rule.holding:
        state = "is active" if rule.active else "was active and cools down"
        found.append(Reason("PROTECTION_PAUSE", f"rule {rule.id} {state} and mode is strict_yield"))
    return found


def _device_reasons(unit: Unit, node: NodeView, exempt: str | None) -> list[Reason]:
    if node.gpu_jobs == "never":
        return [Reason("PROTECTION_PAUSE", 'gpu_jobs = "never": no device work on this node', "change gpu_jobs")]
    if node.gpu_jobs == "always":
        return []
    holding = [rule for rule in rules_beside(unit, node) if rule.id != exempt]
    if node.gpu_jobs == "certified":
        tested = exempt is not None
        run_duty = node.run.duty if node.run is not None else None
        return [
            Reason(each.code, each.why, each.remedy, "evict" if each.ends else "pause")
            for each in refusals(unit, node.governed, meetings(unit, holding, node), run=tested, run_duty=run_duty)
        ]
    return [
        Reason(
            "PROTECTION_PAUSE",
            f"rule {rule.id} holds device work back while its program uses the device"
            + ("" if rule.uses_device else f" ({rule.device_doubt or 'whether it does cannot be told'})"),
            f"it runs when the program does not use the device; to measure it: cotenant protection ab start NODE --rule {rule.id}",
        )
        for rule in holding
    ]


def duties(units: Sequence[Unit], node: NodeView) -> dict[str, float]:
    """Duty of each unit: equal shares of a run's grant among those that may run, or of the governor's budget."""
    if node.run is None:
        if node.gpu_jobs != "certified":
            return {}
        return shares([(unit, meetings(unit, rules_beside(unit, node), node)) for unit in units], node.governed)
    if node.run.part != "grant" or node.run.duty is None:
        return {}
    sharing = [unit for unit in units if unit.cooperative and node.run.tests(unit) and not reasons(unit, node)]
    # A duty is of the device: work off it (``--work all``) takes none of it away, unless there is nothing else.
    sharing = [unit for unit in sharing if unit.device] or sharing
    return {unit.attempt: node.run.duty / len(sharing) for unit in sharing}


def over_the_caps(units: Sequence[Unit], caps: Caps) -> dict[str, Reason]:
    """Of the units that would run, those beyond a ceiling, by attempt; the first of ``units`` keep their place."""
    if not caps:
        return {}
    over: dict[str, Reason] = {}
    slots, cores, gpu_jobs = 0, 0.0, 0
    for unit in units:
        gpu = 1 if unit.gpu else 0
        if why := _over(caps, slots + 1, cores + unit.cores, gpu_jobs + gpu if gpu else None):
            over[unit.attempt] = Reason("PROTECTION_CAP", why)
            continue
        slots, cores, gpu_jobs = slots + 1, cores + unit.cores, gpu_jobs + gpu
    return over


def _over(caps: Caps, slots: int, cores: float, gpu_jobs: int | None) -> str:
    """What would be exceeded, in words; empty: nothing."""
    if caps.slots is not None and slots > caps.slots:
        return f"{caps.by} allows {caps.slots} jobs at once"
    if caps.cpu_cores is not None and cores > caps.cpu_cores + 1e-9:
        return f"{caps.by} allows fleet work {caps.cpu_cores:g} cores, and {cores:g} would be taken"
    if caps.gpu_jobs is not None and gpu_jobs is not None and gpu_jobs > caps.gpu_jobs:
        return f"{caps.by} allows {caps.gpu_jobs} GPU jobs at once"
    return ""


def desired(units: Sequence[Unit], node: NodeView) -> tuple[Desired, ...]:
    """What every running unit should do now. ``units`` come oldest first: under a ceiling the oldest go on."""
    why_of = {unit.attempt: reasons(unit, node) for unit in units}
    caps = caps_in_force(node)
    for attempt, reason in over_the_caps([unit for unit in units if not why_of[unit.attempt]], caps).items():
        why_of[attempt] = (reason,)
    # Under the governor a held unit keeps its share, so that the others' does not jump.
    duty_of = duties(units if node.run is None else [unit for unit in units if not why_of[unit.attempt]], node)
    found = []
    for unit in units:
        why = why_of[unit.attempt]
        action: Action = "run" if not why else "evict" if any(r.action == "evict" for r in why) else "pause"
        found.append(
            Desired(unit.attempt, action, why, duty_of.get(unit.attempt), is_lowered(unit, node), caps.threads)
        )
    return tuple(found)
