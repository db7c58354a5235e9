"""The certificate of a run as its report shows it, or the first reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.harness.validity import no_certificate
from policies.harness.verdict import PASS
from policies.report.base import Base
from policies.report.document import Certificate
from policies.report.evidence import measured, shown, unknown
from policies.report.words import clean, day

__all__ = ["certificate"]


def certificate(base: Base) -> Certificate:
    """The certificate that the agent kept, or the first reason why there is none."""
    kept = base.record.get("certificate")
    if isinstance(kept, Mapping):
        return _kept(base, kept)
    says, remedy = _why_none(base)
    return Certificate(
        "none", f"No certificate: {says}", remedy, None, unknown("there is no certificate", "agent"), None, None
    )


def _kept(base: Base, kept: Mapping[str, Any]) -> Certificate:
    demonstration = bool(kept.get("demonstration", base.spec.demonstration))
    duty = measured(kept.get("certified_duty"), "certificate", otherwise="the certificate names none")
    until = clean(kept.get("expires_at"))
    at = shown(duty, lambda v: f"duty {v:.2f}", why=True)
    says = f"Certified at {at}" + (f", valid until {day(until)}" if until else "")
    says += f" while node, program and agent ({clean(base.record.get('agent_version')) or 'version not recorded'}) stay the same."
    if demonstration:
        why = "windows under a minute" if base.spec.window_s < 60.0 else "an accepted timed source"
        says = f"Demonstration only ({why}): it admits work only where the section says accept_demonstration = true. {says}"
    return Certificate(
        "demonstration" if demonstration else "kept",
        says,
        None,
        clean(kept.get("certificate")) or None,
        duty,
        clean(kept.get("issued_at")) or None,
        until or None,
    )


def _why_none(base: Base) -> tuple[str, str | None]:
    if base.ending is None:
        return "the run has not ended.", None
    if base.spec.kind == "null":
        return "an A/A run earns none; its result stands on later certificates of this node.", None
    if base.spec.kind == "self":
        return "a self-cost run earns none; its result stands on later certificates of this node.", None
    if base.ending != PASS:
        return "only a run that shows no slowdown earns one.", None
    refused = clean(base.record.get("certificate_refused"))
    if refused:
        return f"{refused}.", None
    against = no_certificate(base.spec, base.rows, base.decision)
    if against:
        return f"{'; '.join(against)}.", None
    if base.decision.verdict != PASS:
        return "the windows do not give the verdict that was recorded.", None
    return (
        "the agent has kept none of this run, and the record does not say why.",
        "cotenant protection certificates NODE",
    )
