"""What the daily check of certificates does besides deciding: tell (table, events) and start the runs that renew."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.events import Event
from prefect.states import Scheduled

from policies.certificate.expiry import Due, Renewal
from policies.pages import PAGE, pages
from tasks.artifacts import artifact_key

__all__ = ["EVENTS", "send_events", "start_renewal", "table"]

RUN_DEPLOYMENT = "ab-run/ab-run"
# Named by state; an automation can act on each.
EVENTS = {
    "expires soon": "cotenant.certificate.expiring",
    "expired": "cotenant.certificate.expired",
    "stale": "cotenant.certificate.stale",
    "revoked": "cotenant.certificate.revoked",
    "invalid": "cotenant.certificate.invalid",
}
OPEN = ["SCHEDULED", "PENDING", "RUNNING", "PAUSED"]


def table(node: str, dues: Sequence[Due]) -> None:
    """The table artifact, also where it is empty: an old one must not be taken for today's."""
    rows = [each.as_dict() for each in dues] or [{"node": node, "state": "nothing expires soon or is stale"}]
    create_table_artifact(
        key=artifact_key("certificates", node),
        table=rows,
        description=f"Certificates of node {node} that need attention",
    )


def send_events(dues: Sequence[Due], now: datetime) -> list[str]:
    """One event a certificate, its state and day: sent again, it has the same id. Gives their names.

    Raises:
        httpx.HTTPError: the server did not take them.
    """
    events = [
        Event(
            id=uuid5(NAMESPACE_URL, f"cotenant:{each.certificate}:{each.state}:{now:%Y-%m-%d}"),
            event=EVENTS[each.state],
            occurred=now,
            resource={"prefect.resource.id": f"cotenant.node.{each.node}", "prefect.resource.name": each.node},
            related=[
                {
                    "prefect.resource.id": f"cotenant.certificate.{each.certificate}",
                    "prefect.resource.role": "certificate",
                }
            ],
            payload=each.as_dict(),
        )
        for each in dues
    ]
    if events:
        with get_client(sync_client=True) as client:
            answer = client._client.post("/events", json=[event.model_dump(mode="json") for event in events])
            answer.raise_for_status()
    return [event.event for event in events]


def start_renewal(renewal: Renewal, now: datetime, window: str = "") -> str | None:
    """Queue the run that renews; its flow run's id, or None where one for the same thing has not ended yet.

    Asked twice on one day it makes one. ``window``: the owner's hours, which it keeps to however long the node makes it wait.
    """
    spec = renewal.spec or {}
    with get_client(sync_client=True) as client:
        if _is_open(client, spec):
            return None
        found = client.read_deployment_by_name(RUN_DEPLOYMENT)
        run = client.create_flow_run_from_deployment(
            found.id,
            parameters={key: value for key, value in spec.items() if key != "seed"}
            | {
                "window": window,
                "reviewed": True,
                "reviewed_by": f"certificate-expiry, renew = true ({renewal.of}: {renewal.why})",
            },
            state=Scheduled(scheduled_time=renewal.start_at),
            idempotency_key=f"renew-{renewal.of}-{now:%Y-%m-%d}",
            work_queue_name=str(spec["node"]),
        )
        return str(run.id)


def _is_open(client: SyncPrefectClient, spec: dict[str, Any]) -> bool:
    flows = FlowFilter.model_validate({"name": {"any_": ["ab-run", "duty-sweep"]}})
    states = FlowRunFilter.model_validate({"state": {"type": {"any_": OPEN}}})
    runs = pages(lambda at: client.read_flow_runs(flow_filter=flows, flow_run_filter=states, limit=PAGE, offset=at))
    same = ("node", "rule", "work")
    return any(all(run.parameters.get(key) == spec.get(key) for key in same) for run in runs)
