"""No number of an entry is used twice: not after a power cut, a restore or a lost file; and who reads them expects gaps."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any, cast

import pytest

from cotenant.cli.timeline import _newest
from nodes.journal import Journal
from nodes.journal_numbers import BEYOND_UNSYNCED
from nodes.restored import mark_restored


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def boot(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("nodes.journal.boot_id", lambda: name)


def power_cut(path: Path, keep: int) -> None:
    """The newest entries were not on the disk yet; nor was what SQLite notes beside them."""
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM timeline WHERE seq > ?", (keep,))
        db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'timeline'", (keep,))
    db.close()


def numbers(path: Path, count: int = 2) -> list[int]:
    """Of entries that a start of the agent writes."""
    journal = Journal(path)
    found = [journal.write("AGENT_STARTED") for _ in range(count)]
    journal.close()
    return [seq for seq in found if seq is not None]


def test_entries_that_were_lost_with_the_power_have_their_numbers_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot(monkeypatch, "one")
    assert numbers(path, 5) == [1, 2, 3, 4, 5]
    assert numbers(path) == [6, 7], "the same boot: nothing is lost with a process"
    power_cut(path, 3)
    boot(monkeypatch, "two")
    later = numbers(path)
    assert min(later) > 3 + BEYOND_UNSYNCED
    assert numbers(path) == [max(later) + 1, max(later) + 2]
    journal = Journal(path)
    (said,) = journal.entries(code="JOURNAL_NUMBERS")
    assert said["data"] == {"after": 3, "next": said["seq"], "why": "boot"}
    assert said["seq"] == min(later) - 1
    journal.close()


def test_the_higher_numbers_are_on_the_disk_before_any_entry_has_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two boots that both end with the power begin at the same."""
    boot(monkeypatch, "one")
    numbers(path)
    boot(monkeypatch, "two")
    journal = Journal(path)
    done: list[str] = []
    journal.db.set_trace_callback(done.append)
    journal.write("AGENT_STARTED")
    journal.db.set_trace_callback(None)
    journal.close()
    synced = done.index("PRAGMA synchronous=FULL")
    first_entry = next(n for n, sql in enumerate(done) if sql.startswith("INSERT INTO timeline"))
    kept = done.index("COMMIT")
    assert synced < first_entry < kept < done.index("PRAGMA synchronous=NORMAL")
    assert "AGENT_STARTED" not in " ".join(done[:kept])


def test_a_full_disk_at_the_start_puts_the_higher_numbers_off_and_drops_them_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot(monkeypatch, "one")
    numbers(path, 3)
    boot(monkeypatch, "two")
    journal = Journal(path)
    (pages,) = journal.db.execute("PRAGMA page_count").fetchone()
    journal.db.execute(f"PRAGMA max_page_count={pages}")
    while journal.write("AGENT_STARTED", {"x": "y" * 3000}) is not None:
        pass
    journal.db.execute("DELETE FROM timeline WHERE seq > 3")
    journal.db.execute("UPDATE sqlite_sequence SET seq = 3 WHERE name = 'timeline'")
    journal.number_anew("boot")
    assert journal.write("AGENT_STARTED", {"x": "y" * 300_000}) is None
    journal.db.execute("PRAGMA max_page_count=1000000")
    assert (journal.write("AGENT_STARTED") or 0) > BEYOND_UNSYNCED
    journal.close()


def test_higher_numbers_that_are_undone_with_a_callers_transaction_are_taken_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot(monkeypatch, "one")
    numbers(path, 3)
    boot(monkeypatch, "two")
    journal = Journal(path)
    journal.db.execute("BEGIN IMMEDIATE")
    assert (journal.write("JOB_QUEUED") or 0) > BEYOND_UNSYNCED
    journal.db.execute("ROLLBACK")
    assert (journal.write("JOB_QUEUED") or 0) > BEYOND_UNSYNCED
    journal.close()


@pytest.mark.parametrize("what", ["restored", "gone", "damaged"])
def test_what_a_backup_or_a_lost_file_does_not_know_has_its_numbers_alone(
    path: Path, tmp_path: Path, what: str
) -> None:
    before_ms = time.time() * 1000
    (tmp_path / "key").write_bytes(b"k" * 32)
    Journal(path).close()
    numbers(path, 3)
    if what == "restored":
        mark_restored(path, "2026-11-01T00:00:00+00:00")
    elif what == "gone":
        path.unlink()
    else:
        path.write_bytes(b"\0" * 5000)
    later = numbers(path)
    assert min(later) > before_ms
    if what == "restored":
        mark_restored(path, "2026-11-01T00:00:00+00:00")
        assert min(numbers(path)) > max(later) + BEYOND_UNSYNCED


class Asked:
    """An agent that has this journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert method == "timeline"
        return {"entries": self.journal.entries(**params), "last_seq": self.journal.last_seq()}


def test_the_newest_entries_are_shown_across_a_gap(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot(monkeypatch, "one")
    numbers(path, 1200)
    boot(monkeypatch, "two")
    numbers(path, 3)
    journal = Journal(path)
    agent = cast(Any, Asked(journal))
    every = [entry["seq"] for entry in journal.entries(limit=5000)]
    assert len(every) == 1204
    for limit in (2, 50, 1100, 9000):
        shown, last_seq = _newest(agent, None, limit)
        assert [entry["seq"] for entry in shown] == every[-limit:]
        assert last_seq == every[-1]
    assert len(_newest(agent, "JOURNAL_*", 50)[0]) == 1
    assert _newest(agent, "RUN_*", 50)[0] == []
    journal.close()
