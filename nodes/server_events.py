"""Prefect's server as the place of events: taking them, and saying which of them it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from nodes.mirror_events import Entry, event_of

__all__ = ["kept_events", "send_events"]

# Where Prefect's client waits as long as it is told to and asks again.
ASK_LATER = {408, 429, 502, 503}


@contextmanager
def _server() -> Iterator[Any]:
    """The HTTP client of the server, which is asked once. Prefect's tries again for minutes, or waits for as long as a header
    says: the mirror comes back by itself, and copies into the store in between.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    once: dict[str, Any] = {"event_hooks": {"response": [_refuse_at_once]}}
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(once, sync_client=True) as client:
        yield client._client


def _refuse_at_once(response: Any) -> None:
    if response.status_code in ASK_LATER:
        response.raise_for_status()


def send_events(node: str, entries: list[Entry]) -> None:
    """Post the events and wait for the server's answer: an event that was not taken is sent again."""
    from prefect.events import Event

    events = [Event.model_validate(event_of(node, entry)) for entry in entries]
    with _server() as server:
        answer = server.post("/events", json=[event.model_dump(mode="json") for event in events])
        answer.raise_for_status()


def kept_events(ids: Sequence[UUID]) -> set[UUID]:
    """Which of these events the server's database has. Raises ``httpx.HTTPError`` unless server and database answer."""
    whenever = {"since": "2000-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z"}
    question = {"filter": {"id": {"id": [str(each) for each in ids]}, "occurred": whenever}, "limit": len(ids)}
    with _server() as server:
        answer = server.post("/events/filter", json=question)
        answer.raise_for_status()
        return {UUID(event["id"]) for event in answer.json()["events"]}
