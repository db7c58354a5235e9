"""A mirror beside a stand-in of the agent, and a server whose events the test holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cotenant import store
from nodes import mirror, outbox
from nodes.client import AgentClient
from nodes.mirror import Mirror
from nodes.mirror_events import event_id
from tests.flows.fake_agent import FakeAgent

__all__ = ["NODE", "Events", "a_mirror", "agent", "kept", "now_s", "warnings_of"]

NODE = "n1"


@pytest.fixture
def agent(tmp_path: Path) -> Any:
    with FakeAgent(tmp_path, NODE) as fake:
        yield fake


class Events:
    """Takes events as a server would; ``down`` refuses them. What it took stays where it was told to ``keep`` it."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.down = False
        self._kept: set[UUID] = set()

    def keep(self, *seqs: int) -> None:
        self._kept |= {event_id(NODE, seq) for seq in seqs}

    def look_up(self, ids: Sequence[UUID]) -> set[UUID]:
        return self._kept & set(ids)

    def __call__(self, node: str, entries: list[dict[str, Any]]) -> None:
        if self.down:
            raise ConnectionError("the server is away")
        self.got += [entry["seq"] for entry in entries]


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The mirror's clock, which stands until a test moves it."""
    now_s = [1000.0]
    for module in (mirror, outbox):
        monkeypatch.setattr(module, "monotonic_s", lambda: now_s[0])
    return now_s


def a_mirror(home: Path, agent: FakeAgent, events: Events, **over: Any) -> Mirror:
    return Mirror(
        AgentClient(agent.path),
        f"sqlite:///{home / 'store.sqlite'}",
        NODE,
        mark=home / "mark.json",
        send=events,
        **over,
    )


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name in (mirror.__name__, outbox.__name__) and record.levelname == "WARNING"
    ]


def kept(home: Path) -> list[int]:
    engine = store.open(f"sqlite:///{home / 'store.sqlite'}")
    return [entry["seq"] for entry in store.timeline_entries(engine, NODE, limit=5000)]
