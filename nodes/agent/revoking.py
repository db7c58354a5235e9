"""What is left to do for a run that nobody drives any more: harm that it showed takes back certificates."""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING, Any

from policies.certificate import check_when, comes_after, revocations

if TYPE_CHECKING:
    from nodes.agent.core import Agent

__all__ = ["settle"]

log = logging.getLogger(__name__)


def settle(agent: Agent, run: str) -> None:
    """The run's feed ends; harm that it showed ends it and takes back what it must. What cannot be kept now stands in
    ``agent.unsettled``: it is tried again on every tick.
    """
    if agent.runs.active is not None and agent.runs.active.run == run:
        agent.unsettled.discard(run)  # somebody went on with it
        return
    said = run in agent.unsettled
    agent.unsettled.add(run)
    try:
        agent.under_test.end_feed(run)
        agent.runs.keep_unkept(run)
        agent.runs.end_with_harm(run)
        kept = agent.journal.run(run)
        if kept is not None and kept["state"] == "ended":
            _revoke(agent, agent.runs.record(run))
    except sqlite3.Error as error:
        if not said:
            log.error("how run %s ended cannot be kept yet: %s", run, error)
        return
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.error("run %s is of another version or damaged, what it says cannot be told: %s", run, error)
    agent.unsettled.discard(run)


def _revoke(agent: Agent, record: dict[str, Any]) -> None:
    """Take back the certificates for the same work at that duty or more, which this ended run (with its blocks) speaks against.

    Asked again it changes nothing; what was earned later stands.
    """
    check_when(record)  # without its time it would take back what is earned from now on, too
    journal = agent.journal
    kept = [each for each, revoked in agent.certificates.all() if revoked is None]
    for certificate in revocations(record, kept):
        if _earned_later(journal.run(certificate.run), record):
            continue
        duty = record["spec"].get("duty")
        at = ", uncapped" if duty is None else f" at duty {duty:g}"
        why = f"run {record['run']} ended {record['ending']} for the same work{at}"
        journal.revoke_certificate(certificate.certificate, why)
        journal.write("CERT_REVOKED", {"certificate": certificate.certificate, "run": record["run"], "why": why})


def _earned_later(earned_by: dict[str, Any] | None, record: dict[str, Any]) -> bool:
    """Of a run whose own time cannot be told it is not believed."""
    try:
        return earned_by is not None and comes_after(earned_by, record)
    except ValueError:
        return False
