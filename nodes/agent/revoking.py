"""What harm that a run showed takes back: the certificates for the same work at that duty or more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from policies.certificate import comes_after, revocations

if TYPE_CHECKING:
    from nodes.agent.core import Agent

__all__ = ["revoke"]


def revoke(agent: Agent, record: dict[str, Any]) -> None:
    """Take back what this ended run (with its blocks) speaks against. Asked again it changes nothing; what was earned later stands."""
    if record["spec"]["kind"] != "ab":
        return
    journal = agent.journal
    kept = [each for each, revoked in agent.certificates.all() if revoked is None]
    for certificate in revocations(record, kept):
        earned_by = journal.run(certificate.run)
        if earned_by is not None and comes_after(earned_by, record):
            continue
        duty = record["spec"]["duty"] or 1
        why = f"run {record['run']} ended {record['ending']} for the same work at duty {duty:g}"
        journal.revoke_certificate(certificate.certificate, why)
        journal.write("CERT_REVOKED", {"certificate": certificate.certificate, "run": record["run"], "why": why})
