"""Why work runs or waits, in codes with remedies: what people and ``AwaitingNode`` messages are told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from policies.codes import CODES
from policies.units import caps_in_force, holding_rules, reserve_in_force
from policies.views import NodeView, Reason

__all__ = ["AWAITING", "awaiting_parts", "awaiting_words", "in_words", "limits_in_words", "node_state", "reason_rows"]

# The state of a flow run that its node does not take now.
AWAITING = "AwaitingNode"
_PLACE = re.compile(r"\b(NODE|JOB|MODULE|RULE)\b")
_AWAITING = re.compile(
    r"(?P<node>[^:\s]+): (?P<code>[A-Z][A-Z0-9_]+): (?P<why>.*?)(?:; next: (?P<remedy>.*))?", re.DOTALL
)


def reason_rows(reasons: Iterable[Reason], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """``[{code, severity, means, why, remedy}]``, the same reason once.

    Args:
        names: what stands for NODE, JOB, MODULE and RULE in a remedy.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for reason in reasons:
        known = CODES[reason.code]
        remedy = reason.remedy or known.remedy
        found.setdefault(
            (reason.code, reason.why),
            {
                "code": reason.code,
                "severity": known.severity,
                "means": known.meaning,
                "why": reason.why,
                "remedy": _PLACE.sub(lambda place: names.get(place[0], place[0]), remedy),
            },
        )
    return list(found.values())


def awaiting_words(node: str, reason: Reason) -> str:
    """The message of a flow run's state ``AwaitingNode``: ``NODE: CODE: why; next: remedy``, as ``explain`` says it too."""
    known = CODES.get(reason.code)
    remedy = _PLACE.sub(
        lambda place: node if place[0] == "NODE" else place[0], reason.remedy or (known.remedy if known else "")
    )
    return f"{node}: {reason.code}: {reason.why}" + (f"; next: {remedy}" if remedy else "")


def awaiting_parts(message: str) -> dict[str, str] | None:
    """``{node, code, why, remedy}`` of such a message; None of any other."""
    found = _AWAITING.fullmatch(message)
    return {name: part or "" for name, part in found.groupdict().items()} if found else None


def in_words(state: str, rows: Sequence[Mapping[str, Any]], lowered: bool = False, threads: int | None = None) -> str:
    """One line: ``runs, in the lowest scheduling class`` or ``waits: CODE: why``."""
    if rows:
        return f"{_DOES.get(state, state)}: " + "; ".join(f"{row['code']}: {row['why']}" for row in rows)
    limits = ["in the lowest scheduling class"] if lowered else []
    limits += [f"with {threads} threads"] if threads is not None else []
    return ", ".join([_DOES.get(state, state), *limits])


_DOES = {"waiting": "waits", "running": "runs", "held": "is held", "stopping": "is being stopped", "ended": "has ended"}


def limits_in_words(node: NodeView) -> list[str]:
    """Ceilings and reserves in force."""
    caps, reserve = caps_in_force(node), reserve_in_force(node)
    named = (
        ("jobs at once", caps.slots),
        ("cores for all fleet work", caps.cpu_cores),
        ("threads a job", caps.threads),
        ("GPU jobs at once", caps.gpu_jobs),
    )
    found = [f"at most {value:g} {what} ({caps.by})" for what, value in named if value is not None]
    if reserve.cores:
        found.append(f"{reserve.cores:g} cores set aside ({reserve.by})")
    if reserve.mem_bytes:
        found.append(f"{reserve.mem_bytes / 1e9:g} GB of memory set aside ({reserve.by})")
    return found


def node_state(node: NodeView) -> list[dict[str, Any]]:
    """Each rule and what it does now, in words."""
    found = []
    holding = (
        {rule.id for rule in holding_rules(node)} if node.gpu_jobs in ("certified", "when_no_gpu_protected") else set()
    )
    for rule in node.rules:
        does = []
        if rule.holding and rule.pause is not None:
            does.append(f"pauses fleet work of scope {rule.pause}")
        if rule.holding and rule.evict is not None:
            does.append(f"evicts fleet work of scope {rule.evict}")
        if rule.active and rule.lower is not None:
            does.append(f"lowers fleet work of scope {rule.lower}")
        does += [f"caps: {rule.cap.by}"] if rule.active and rule.cap else []
        does += [f"reserves: {rule.reserve.by}"] if rule.active and rule.reserve else []
        for phase in rule.phases:
            if phase.on:
                does.append(f"phase {phase.index + 1} is on" + ("" if phase.readable else " (it cannot be read)"))
        if rule.id in holding:
            uncertified = " that has no certificate" if node.gpu_jobs == "certified" else ""
            doubt = (
                ""
                if rule.uses_device
                else f" ({rule.device_doubt or 'whether its program uses the device cannot be told'})"
            )
            does.append(f"holds device work back{uncertified}{doubt}")
        if node.mode != "fleet_first":
            judged = ((rule.level, rule.reaction_why), (rule.stall_level, rule.stall_why))
            does += [
                f"other fleet work is {level}: {why or 'not judged yet'}" for level, why in judged if level != "free"
            ]
        if node.mode == "strict_yield" and rule.holding:
            does.append("pauses all fleet work (strict_yield)")
        state = "active" if rule.active else "cools down" if rule.holding else "not active"
        found.append({"rule": rule.id, "state": state, "does": does})
    return found
