"""The flow ``certificate-expiry``, daily: which certificates of a node need their owner, and their renewal where wanted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.states import Completed, Failed, State
from pydantic import Field

from nodes.client import AgentUnreachable
from nodes.zone import local_zone
from policies.certificate.expiry import due, renewals
from policies.harness.hours import HOURS_PATTERN, parse_hours
from policies.refusal import Refused
from tasks.agent_link import connect
from tasks.certificates import send_events, start_renewal, table
from tasks.words import refused_words

__all__ = ["certificate_expiry"]


@flow(name="certificate-expiry", persist_result=False)
def certificate_expiry(
    node: str,
    renew: bool = False,
    window: Annotated[str, Field(pattern=HOURS_PATTERN)] = "22:00-06:30",
    days: Annotated[float, Field(gt=0.0, le=14.0)] = 3.0,
) -> State[Any]:
    """List the certificates that expire soon or do not hold any more, send an event for each, and renew them where wanted.

    Args:
        node: The node whose certificates are looked at.
        renew: Also start the runs that renew them, within your hours, without another review.
        window: Your hours in the node's local time, like 22:00-06:30, for the runs that renew; empty for at once.
        days: How many days ahead to look.
    """
    log = get_run_logger()
    try:
        hours = parse_hours(window) if window.strip() else None
        rows = connect(node).call("certificates", _timeout_s=120.0)
    except Refused as refusal:
        return Failed(name="Refused", message=refused_words(refusal))
    except AgentUnreachable as gone:
        return Failed(message=f"{gone}; start it: cotenant node run {node}")
    now = datetime.now(UTC)
    dues = due(rows, now, timedelta(days=days))
    table(node, dues)
    for each in dues:
        log.warning("%s (%s, %s, duty %g) %s: %s", each.certificate, each.rule, each.work, each.certified_duty,
                    each.state, each.why)  # fmt: skip
    send_events(dues, now)
    words = f"{len(rows)} certificates, {len(dues)} need attention"
    if not renew:
        return Completed(message=words)
    started = 0
    for renewal in renewals(dues, now, hours, local_zone()):
        if renewal.spec is None or renewal.start_at is None:
            log.warning("%s is not renewed now: %s", renewal.of, renewal.why)
            continue
        flow_run = start_renewal(renewal, now, window.strip())
        started += flow_run is not None
        log.info("%s: %s", renewal.of, f"renewed by flow run {flow_run} at {renewal.start_at:%Y-%m-%d %H:%M} UTC"
                 if flow_run else "a run for the same rule and work is queued already")  # fmt: skip
    return Completed(message=f"{words}; {started} runs to renew them are queued")
