"""Three nodes' journals in one PostgreSQL store: exactly once, through a database that goes away for a while."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from cotenant import store
from cotenant.store.session import _ADVISORY_LOCK
from nodes.client import AgentClient
from nodes.mirror import Mirror
from tests.flows.fake_agent import FakeAgent
from tests.postgres.conftest import Cluster

pytestmark = pytest.mark.timeout(600)
LOCK = text("SELECT pg_advisory_lock(:key)").bindparams(key=_ADVISORY_LOCK)
NODES = ("mac-01", "mac-02", "pc-03")


def test_three_mirrors_fill_one_store_and_lose_nothing_when_it_is_away(postgres: Cluster, tmp_path: Path) -> None:
    postgres.query("postgres", "CREATE DATABASE mirrors")  # its own: the nodes of other tests are in the fleet's
    url = postgres.url("mirrors")
    engine = store.open(url)
    sent: dict[str, list[int]] = {node: [] for node in NODES}

    def send(node: str, entries: list[dict[str, Any]]) -> None:
        sent[node] += [int(entry["seq"]) for entry in entries]

    agents, mirrors = [], []
    for node in NODES:
        agent = FakeAgent(tmp_path / node, node)
        agent.start()
        for number in range(60):
            agent.memory.write("RUN_LOOK", run="none", number=number)
        agents.append(agent)
        mirrors.append(Mirror(AgentClient(agent.path), url, node, mark=tmp_path / f"{node}.json", send=send))
    try:
        step_all(mirrors)
        assert [row["last_seq"] for row in store.list_nodes(engine)] == [60, 60, 60]

        postgres.stop()
        for agent in agents:
            for number in range(40):
                agent.memory.write("RUN_LOOK", run="none", number=number)
        for mirror in mirrors:
            with pytest.raises(SQLAlchemyError):
                mirror.step()
        postgres.start()
        step_all(mirrors)
        step_all(mirrors)

        rows = {row["node"]: row["last_seq"] for row in store.list_nodes(engine)}
        assert rows == dict.fromkeys(NODES, 100)
        for node in NODES:
            kept = [entry["seq"] for entry in store.timeline_entries(engine, node, 0, 500)]
            assert kept == list(range(1, 101)), "each entry once, none lost"
            assert sorted(set(sent[node])) == kept, "each told at least once"
    finally:
        for agent in agents:
            agent.stop()
        for mirror in mirrors:
            mirror.close()
        engine.dispose()


def step_all(mirrors: list[Mirror]) -> None:
    """All at once, as three machines would."""
    failed: list[BaseException] = []

    def work(mirror: Mirror) -> None:
        try:
            while mirror.step():
                pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(mirror,)) for mirror in mirrors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_many_processes_may_open_an_empty_store_at_once(postgres: Cluster) -> None:
    postgres.query("postgres", "CREATE DATABASE many")
    failed: list[BaseException] = []

    def open_it() -> None:
        try:
            store.open(postgres.url("many")).dispose()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert postgres.query("many", "SELECT count(*) FROM alembic_version") == "1"


def test_tables_that_another_process_has_been_bringing_up_to_date_are_not_waited_for_without_end(
    postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.query("postgres", "CREATE DATABASE locked")
    monkeypatch.setattr("cotenant.store.session.UPGRADE_WITHIN_S", 0.2)
    other = create_engine(make_url(postgres.url("locked")).set(drivername="postgresql+psycopg"))
    with other.connect() as connection:
        connection.execute(LOCK)
        with pytest.raises(OperationalError, match="lock timeout"):
            store.open(postgres.url("locked"))
    other.dispose()
    store.open(postgres.url("locked")).dispose()
