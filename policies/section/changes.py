"""What one section changes against another, in words, and which of it gives protection away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from policies.section.models import GpuJobs, Mode, Section
from policies.section.strictest import stricter_of

__all__ = ["Change", "changes", "warnings"]


@dataclass(frozen=True, slots=True)
class Change:
    """``loosens``: fleet work may do more than before."""

    words: str
    loosens: bool = False


def changes(old: Section, new: Section) -> list[Change]:
    """Each key of ``[node]`` that differs, then rules removed, added, changed."""
    return [*_node_changes(old, new), *_rule_changes(old, new)]


def _node_changes(old: Section, new: Section) -> Iterator[Change]:
    before, after = old.node.model_dump(), new.node.model_dump()
    for key, value in after.items():
        was: Any = before[key]
        if was != value:
            loosens = key in _ORDERED and stricter_of(key, was, value) == was
            yield Change(f"node.{key}: {was} → {value}", loosens)


_ORDERED: dict[str, Any] = {"mode": Mode, "gpu_jobs": GpuJobs, "pause": bool}


def _rule_changes(old: Section, new: Section) -> Iterator[Change]:
    before, after = {rule.id: rule for rule in old.rules}, {rule.id: rule for rule in new.rules}
    for name in before:
        if name not in after:
            yield Change(f"rule {name}: removed", True)
    for name, rule in after.items():
        if name not in before:
            yield Change(f"rule {name}: added")
        elif before[name] != rule:
            yield Change(f"rule {name}: changed")


def warnings(old: Section, new: Section) -> list[str]:
    """What a person should read before agreeing."""
    found = []
    protecting = [rule for rule in old.rules if not rule.ignore]
    if protecting and not any(not rule.ignore for rule in new.rules):
        names = ", ".join(rule.id for rule in protecting)
        found.append(f"it has no rule: nothing of what is protected now ({names}) will be any more")
    found += [f"it protects less: {change.words}" for change in changes(old, new) if change.loosens and not found]
    return found
