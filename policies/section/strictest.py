"""The node's own section and the fleet's, as one: each ``[node]`` dimension the stricter, the rules of both.

A key that a section does not write takes no part: a fleet section that says nothing about ``gpu_jobs`` does not pull
a node down to that key's default. Where neither writes a key its default holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel

from policies.section.models import Cooldown, Defaults, GpuJobs, Memory, Mode, Node, Rule, Section, Timing, timing

__all__ = ["InForce", "ScopedRule", "merge", "stricter_of"]

Of = Literal["node", "fleet"]
Model = TypeVar("Model", bound=BaseModel)
Stricter = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class ScopedRule:
    """A rule and whose section it is from. The same id may come from both; both apply."""

    scope: Of
    rule: Rule
    timing: Timing

    @property
    def key(self) -> str:
        """``trainer`` or ``fleet:trainer``: unique among the rules in force."""
        return self.rule.id if self.scope == "node" else f"fleet:{self.rule.id}"


@dataclass(frozen=True, slots=True)
class InForce:
    """What binds a node: one ``[node]`` table and the rules of both scopes, the node's first."""

    node: Node
    rules: tuple[ScopedRule, ...]


# from lenient to strict
_MODES: tuple[str, ...] = get_args(Mode)
_GPU_JOBS: tuple[str, ...] = tuple(reversed(get_args(GpuJobs)))


def _further(order: tuple[str, ...]) -> Stricter:
    return lambda a, b: max(a, b, key=order.index)


_NODE: dict[str, Stricter] = {
    "mode": _further(_MODES),
    "pause": lambda a, b: a or b,
    "gpu_jobs": _further(_GPU_JOBS),
    # on "cpu" all fleet work is device work, so more of it is held back and metered
    "duty_device": _further(("gpu", "cpu")),
    "accept_demonstration": lambda a, b: a and b,
    "memory": lambda a, b: _memory(a, b),
    "defaults": lambda a, b: _defaults(a, b),
}
_MEMORY: dict[str, Stricter] = {
    "soft_free_pct": max,
    "hard_free_pct": max,
    "swap_growth_soft_mb_min": min,
    "swap_growth_hard_mb_min": min,
    "min_reclaim_gb": max,
}
_DEFAULTS: dict[str, Stricter] = {
    "enter_for_s": min,
    "exit_after_s": max,
    "cooldown": lambda a, b: _cooldown(a, b),
}
_COOLDOWN: dict[str, Stricter] = {"base_s": max, "backoff": max, "max_s": max, "window_s": max}


def stricter_of(key: str, a: Any, b: Any) -> Any:
    """Of two values of a key of ``[node]`` the stricter."""
    return _NODE[key](a, b)


def merge(node: Section, fleet: Section | None = None) -> InForce:
    """What binds the node that holds ``node`` as its own section and ``fleet`` as the fleet's (None: none was sent)."""
    table = node.node if fleet is None else _merged(_NODE, node.node, fleet.node)
    scoped: list[tuple[Of, Section]] = [("node", node)]
    if fleet is not None:
        scoped.append(("fleet", fleet))
    rules = tuple(
        ScopedRule(scope, rule, timing(rule, table.defaults)) for scope, section in scoped for rule in section.rules
    )
    return InForce(table, rules)


def _merged(how: dict[str, Stricter], a: Model, b: Model) -> Model:
    return type(a)(**_written(how, a, b))


def _written(how: dict[str, Stricter], a: BaseModel, b: BaseModel) -> dict[str, Any]:
    """The keys that either writes, the stricter where both do."""
    values: dict[str, Any] = {}
    for key, stricter in how.items():
        written = [getattr(each, key) for each in (a, b) if key in each.model_fields_set]
        if written:
            values[key] = written[0] if len(written) == 1 else stricter(*written)
    return values


def _memory(a: Memory, b: Memory) -> Memory:
    """Levels of two sections may cross where each writes one of a pair; then the outer level follows the inner."""
    filled = {**Memory().model_dump(), **_written(_MEMORY, a, b)}
    filled["soft_free_pct"] = max(filled["soft_free_pct"], filled["hard_free_pct"])
    filled["swap_growth_soft_mb_min"] = min(filled["swap_growth_soft_mb_min"], filled["swap_growth_hard_mb_min"])
    return Memory(**filled)


def _defaults(a: Defaults, b: Defaults) -> Defaults:
    return _merged(_DEFAULTS, a, b)


def _cooldown(a: Cooldown, b: Cooldown) -> Cooldown:
    filled = {**Cooldown().model_dump(), **_written(_COOLDOWN, a, b)}
    filled["max_s"] = max(filled["max_s"], filled["base_s"])
    return Cooldown(**filled)
