"""The protection section: what an owner writes, read whole or refused whole."""

from policies.section.models import Node, Rule, Section, timing
from policies.section.parse import SectionError, SectionErrors, digest, parse_section
from policies.section.strictest import InForce, ScopedRule, merge

__all__ = [
    "InForce",
    "Node",
    "Rule",
    "ScopedRule",
    "Section",
    "SectionError",
    "SectionErrors",
    "digest",
    "merge",
    "parse_section",
    "timing",
]
