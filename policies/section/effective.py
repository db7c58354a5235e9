"""What of the two sections is in force, as one section whose rule ids are unique, and what of it names a source."""

from __future__ import annotations

from policies.section.models import Section
from policies.section.strictest import InForce, merge

__all__ = ["as_section", "effective", "for_sources", "protect_key"]


def as_section(in_force: InForce) -> Section:
    """One section: the merged ``[node]`` table, and each rule under its key (``trainer``, ``fleet:trainer``)."""
    rules = tuple(
        scoped.rule if scoped.key == scoped.rule.id else scoped.rule.model_copy(update={"id": scoped.key})
        for scoped in in_force.rules
    )
    return Section.model_construct(schema_=1, node=in_force.node, rules=rules)


def effective(node: Section, fleet: Section | None = None) -> Section:
    """What binds a node: its own section, or the stricter of it and the fleet's."""
    return node if fleet is None else as_section(merge(node, fleet))


def protect_key(rule_id: str, phase: int) -> str:
    """The name under which the source of a phase's own ``protect`` is read."""
    return f"{rule_id}/phase{phase + 1}"


def for_sources(section: Section) -> Section:
    """``section``, and for each phase with a ``protect`` of its own one more entry that names its progress source."""
    more = [
        rule.model_copy(update={"id": protect_key(rule.id, index), "protect": during.protect, "during": ()})
        for rule in section.rules
        for index, during in enumerate(rule.during)
        if during.protect is not None
    ]
    return section if not more else section.model_copy(update={"rules": (*section.rules, *more)})
