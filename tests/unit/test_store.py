"""The store: repeated writes change nothing, two writers at once both get through, naive dates are refused."""

from __future__ import annotations

import fcntl
import multiprocessing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, select
from sqlalchemy.exc import OperationalError, StatementError

from cotenant import store
from cotenant.cli.certificates import last_known
from cotenant.store.models import Base, Node, TimelineEntry, Window
from cotenant.store.session import reading, writing
from policies.refusal import Refused


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return store.open(f"sqlite:///{tmp_path / 'store.sqlite'}")


def a_record(run: str = "r1", **over: Any) -> dict[str, Any]:
    spec = {"node": "local", "rule": "trainer", "work": "cpu", "duty": 0.3, "kind": "ab", "margin": 0.02}
    return {
        "run": run,
        "spec": spec,
        "node": "local",
        "state": "open",
        "ending": None,
        "started_at": "2026-11-29T22:00:00+00:00",
        "ended_at": None,
        "verdict": None,
        "looks": [],
        **over,
    }


def a_window(arm: str, position: int, rate: float) -> dict[str, Any]:
    return {
        "run": "r1",
        "block": 1,
        "arm": arm,
        "position": position,
        "started_at": "2026-11-29T22:01:00+01:00",
        "started_mono_s": 5.0,
        "length_s": 300.0,
        "events": rate * 300.0,
        "rate": rate,
        "dose": 0.3 if arm == "on" else 0.0,
    }


def a_block(number: int = 1, on_rate: float = 9.9) -> dict[str, Any]:
    return {
        "run": "r1",
        "number": number,
        "order": "on_first",
        "state": "counted",
        "reason": None,
        "on": a_window("on", 1, on_rate),
        "off": a_window("off", 2, 10.0),
    }


def test_migrations_make_the_tables_that_the_models_describe(engine: Engine) -> None:
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_a_run_and_its_blocks_come_back_as_they_were_written(engine: Engine) -> None:
    record = a_record()
    store.upsert_run(engine, record)
    for number in (2, 1):
        assert store.put_block(engine, a_block(number)) is True
    assert store.load_run(engine, "r1") == {**record, "blocks": [a_block(1), a_block(2)]}
    assert store.load_run(engine, "r2") is None


def test_the_same_block_again_changes_nothing(engine: Engine) -> None:
    store.upsert_run(engine, a_record())
    store.put_block(engine, a_block())
    assert store.put_block(engine, a_block()) is False
    with reading(engine) as session:
        assert len(session.scalars(select(Window)).all()) == 2


def test_another_content_for_a_block_is_refused_and_the_first_stays(engine: Engine) -> None:
    store.upsert_run(engine, a_record())
    store.put_block(engine, a_block(on_rate=9.9))
    with pytest.raises(Refused) as refusal:
        store.put_block(engine, a_block(on_rate=10.1))
    assert refusal.value.code == "STORE_BLOCK_DIFFERS"
    kept = store.load_run(engine, "r1")
    assert kept is not None
    assert kept["blocks"] == [a_block(on_rate=9.9)]


def test_sync_writes_only_what_is_missing(engine: Engine) -> None:
    assert store.sync_run(engine, a_record(blocks=[a_block(1)])) == 1
    assert store.sync_run(engine, a_record(blocks=[a_block(1), a_block(2)])) == 1
    assert store.sync_run(engine, a_record(blocks=[a_block(1), a_block(2)])) == 0


def test_an_ended_run_is_not_opened_by_a_late_older_record(engine: Engine) -> None:
    verdict = {"verdict": "no slowdown shown", "R": 0.994, "lo": 0.986, "hi": 1.003}
    ended = a_record(state="ended", ending="no slowdown shown", ended_at="2026-11-30T06:00:00+00:00", verdict=verdict)
    store.upsert_run(engine, ended)
    store.upsert_run(engine, a_record())
    (row,) = store.list_runs(engine)
    assert (row["state"], row["ending"], row["R"], row["lo"], row["hi"]) == (
        "ended",
        "no slowdown shown",
        0.994,
        0.986,
        1.003,
    )


def test_runs_are_listed_newest_first_and_by_node(engine: Engine) -> None:
    store.upsert_run(engine, a_record("old", started_at="2026-11-01T00:00:00+00:00"))
    store.upsert_run(engine, a_record("new", started_at="2026-11-20T00:00:00+00:00"))
    store.upsert_run(engine, a_record("other", node="mac-01", started_at="2026-11-25T00:00:00+00:00"))
    assert [row["run"] for row in store.list_runs(engine)] == ["other", "new", "old"]
    assert [row["run"] for row in store.list_runs(engine, node="local")] == ["new", "old"]
    assert [row["run"] for row in store.list_runs(engine, limit=1)] == ["other"]


def an_entry(seq: int) -> dict[str, Any]:
    return {
        "seq": seq,
        "at": "2026-11-29T22:00:00.5+00:00",
        "mono_s": 12.5,
        "boot_id": "b",
        "code": "RUN_BLOCK",
        "severity": "info",
        "message": "a block",
        "data": {"block": seq},
    }


def test_timeline_entries_are_kept_exactly_once(engine: Engine) -> None:
    assert store.put_timeline(engine, "local", [an_entry(1), an_entry(2)]) == 2
    assert store.put_timeline(engine, "local", [an_entry(2), an_entry(3), an_entry(3)]) == 1
    assert store.put_timeline(engine, "mac-01", [an_entry(1)]) == 1
    assert [entry["seq"] for entry in store.timeline_entries(engine, "local")] == [1, 2, 3]
    assert (store.last_seq(engine, "local"), store.last_seq(engine, "mac-01"), store.last_seq(engine, "x")) == (3, 1, 0)


def test_a_naive_date_is_refused_and_an_aware_one_comes_back_in_utc(engine: Engine) -> None:
    naive = Node(name="n", last_seq=0, mirrored_at=datetime(2026, 11, 29, 12))  # noqa: DTZ001
    with pytest.raises(StatementError, match="no time zone"), writing(engine) as session:
        session.add(naive)
    rome = datetime(2026, 11, 29, 13, tzinfo=timezone(timedelta(hours=1)))
    with writing(engine) as session:
        session.add(Node(name="n", last_seq=0, mirrored_at=rome))
    with reading(engine) as session:
        back = session.get_one(Node, "n").mirrored_at
    assert back == rome
    assert back is not None
    assert back.tzinfo is UTC


def _open_and_write(url: str, node: str, gate: Any) -> None:
    gate.wait(60)
    engine = store.open(url)
    for seq in range(1, 41):
        store.put_timeline(engine, node, [an_entry(seq)])


def test_processes_may_open_a_new_store_and_write_at_the_same_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'store.sqlite'}"
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(3)
    writers = [context.Process(target=_open_and_write, args=(url, f"n{i}", gate)) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    engine = store.open(url)
    with reading(engine) as session:
        assert len(session.scalars(select(TimelineEntry.seq)).all()) == 120


def test_the_newest_duty_of_each_node_is_kept_and_one_that_was_never_copied_is_unknown(engine: Engine) -> None:
    store.put_timeline(engine, "b", [an_entry(1)])
    at = datetime(2026, 11, 29, 12, tzinfo=UTC)
    store.put_duty(engine, "a", {"budget": 0.3}, at)
    store.put_duty(engine, "a", {"budget": 0.1}, at - timedelta(seconds=1))
    assert store.list_duties(engine) == [
        {"node": "a", "duty": {"budget": 0.3}, "as_of": at.isoformat()},
        {"node": "b", "duty": None, "as_of": None},
    ]
    assert [row["node"] for row in store.list_duties(engine, "b")] == ["b"]


def test_a_certificate_comes_with_what_its_node_said_of_it_last(engine: Engine) -> None:
    issued = {"issued_at": "2026-11-29T12:00:00+00:00", "expires_at": "2026-12-13T12:00:00+00:00", "rule": "trainer"}
    for node, run in (("a", "r1"), ("a", "r2"), ("b", "r3")):
        store.put_certificate(engine, {**issued, "node": node, "run": run, "certificate": f"cert-{run}"})
    store.put_timeline(engine, "a", [an_entry(1) | {"code": "CERT_STALE", "data": {"certificate": "cert-r1"}}])
    # an entry of another node's is nothing about it
    store.put_timeline(engine, "b", [an_entry(1) | {"code": "CERT_REVOKED", "data": {"certificate": "cert-r2"}}])
    told = {row["run"]: row["told"] for row in store.list_certificates(engine)}
    assert told["r1"]["code"] == "CERT_STALE"
    assert (told["r2"], told["r3"]) == (None, None)

    rows = {row["run"]: row for row in store.list_certificates(engine)}
    before, after = datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 14, tzinfo=UTC)
    assert last_known(rows["r1"], before) == f"stale since {told['r1']['at'][:19]}Z"
    assert [last_known(rows["r2"], now) for now in (before, after)] == ["issued", "expired"]


def test_a_process_that_never_lets_go_of_the_tables_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.sqlite"
    monkeypatch.setattr("cotenant.store.session.UPGRADE_WITHIN_S", 0.2)
    with open(f"{path}.lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OperationalError, match=r"store\.sqlite\.lock"):
            store.open(f"sqlite:///{path}")
    assert store.list_nodes(store.open(f"sqlite:///{path}")) == []
