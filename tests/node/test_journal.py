"""The journal: sequence, survival of kill -9, of a full disk, and blocks that are written once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nodes.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.sqlite")


def test_entries_are_numbered_and_coded(journal: Journal) -> None:
    first = journal.write("AGENT_STARTED", {"pid": 1})
    second = journal.write("RUN_BLOCK", {"run": "r1"})
    assert (first, second) == (1, 2)
    (entry,) = journal.entries(after_seq=1)
    assert (entry["code"], entry["severity"], entry["data"]) == ("RUN_BLOCK", "info", {"run": "r1"})
    assert [e["seq"] for e in journal.entries(code="RUN_*")] == [2]


def test_an_unknown_code_is_a_bug(journal: Journal) -> None:
    with pytest.raises(KeyError):
        journal.write("NO_SUCH_CODE")


def test_half_a_character_and_a_nul_are_written_out(journal: Journal) -> None:
    """A name of a file may be any bytes: an entry that names it must not fail the tick, nor a store or a terminal later."""
    data = {"path": "/runs/caf\udce9.jsonl", "why": ["a\0b", ("\ud800",)], "\udcff": 1, "whole": "\N{GRINNING FACE} é"}
    assert journal.write("PROTECTION_SOURCE_UNREADABLE", data, "caf\udce9.jsonl: a\0b") == 1
    (entry,) = journal.entries()
    assert entry["message"] == "caf\\udce9.jsonl: a\\x00b"
    assert entry["data"] == {
        "path": "/runs/caf\\udce9.jsonl",
        "why": ["a\\x00b", ["\\ud800"]],
        "\\udcff": 1,
        "whole": "\N{GRINNING FACE} é",
    }


def test_a_block_is_written_once(journal: Journal) -> None:
    journal.put_block("r1", 1, {"a": 1})
    with pytest.raises(sqlite3.IntegrityError):
        journal.put_block("r1", 1, {"a": 2})
    assert [row["a"] for row in journal.blocks("r1")] == [1]


def test_what_speaks_against_work_survives_a_power_cut(journal: Journal) -> None:
    """Each is on the disk before it is acknowledged: SQLite syncs its log for what is written at FULL."""
    said: list[str] = []
    journal.db.set_trace_callback(said.append)
    journal.put_block("r1", 1, {"collapse": "it fell"})
    journal.put_run("r1", {"run": "r1", "started_at": "1", "state": "ended", "ending": "slowdown"})
    journal.revoke_certificate("c1", "run r1 ended slowdown")
    journal.db.set_trace_callback(None)
    writes = [at for at, each in enumerate(said) if each.split()[0] in ("INSERT", "UPDATE")]
    assert len(writes) == 3
    for at in writes:
        assert said[at - 1] == "PRAGMA synchronous=FULL"
        assert said[at + 1] == "PRAGMA synchronous=NORMAL"


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom nodes.journal import Journal\n"
        "j = Journal(Path(sys.argv[1]))\n"
        "while True:\n    print(j.write('RUN_BLOCK', {'x': 'y' * 200}), flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "j.sqlite")], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(200):
        child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    rest = child.stdout.read()
    child.wait(30)
    acknowledged = 200 + rest.count("\n")
    again = Journal(tmp_path / "j.sqlite")
    assert again.last_seq() >= acknowledged
    assert [e["seq"] for e in again.entries(limit=5000)] == list(range(1, min(5000, again.last_seq()) + 1))


def test_a_journal_that_cannot_be_written_loses_no_protection_and_says_so_later(journal: Journal) -> None:
    journal.write("AGENT_STARTED")
    blocker = sqlite3.connect(journal.path, isolation_level=None)
    journal.db.execute("PRAGMA busy_timeout=10")
    blocker.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    assert journal.write("PROTECTION_PAUSE") is None
    assert journal.write("PROTECTION_RESUME") is None
    assert journal.lost == 2
    assert time.monotonic() - began < 30
    blocker.execute("ROLLBACK")
    journal.write("PROTECTION_PAUSE")
    assert [e["code"] for e in journal.entries()] == ["AGENT_STARTED", "JOURNAL_LOST", "PROTECTION_PAUSE"]
    assert journal.entries(code="JOURNAL_LOST")[0]["data"] == {"lost": 2}


def test_entries_written_together_are_stamped_at_once_and_kept_as_one(journal: Journal) -> None:
    with journal.together():
        journal.write("PROTECTION_PHASE_ON")
        assert journal.last_seq() == 0
        with journal.together():
            journal.write("PROTECTION_PAUSE")
        assert journal.last_seq() == 0
        later = time.monotonic()
    assert [e["code"] for e in journal.entries()] == ["PROTECTION_PHASE_ON", "PROTECTION_PAUSE"]
    assert all(e["mono_s"] <= later for e in journal.entries())


def test_entries_written_together_are_kept_also_when_an_error_follows(journal: Journal) -> None:
    def fail() -> None:
        with journal.together():
            journal.write("PROTECTION_PAUSE")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert journal.last_seq() == 1
    assert journal.write("PROTECTION_RESUME") == 2


def test_each_entry_that_is_lost_together_with_others_counts(journal: Journal) -> None:
    blocker = sqlite3.connect(journal.path, isolation_level=None)
    journal.db.execute("PRAGMA busy_timeout=10")
    blocker.execute("BEGIN IMMEDIATE")
    with journal.together():
        for _ in range(3):
            journal.write("PROTECTION_PAUSE")
    blocker.execute("ROLLBACK")
    journal.write("PROTECTION_RESUME")
    assert [e["data"] for e in journal.entries(code="JOURNAL_LOST")] == [{"lost": 3}]


def test_no_run_is_forgotten(journal: Journal) -> None:
    for number in range(120):
        journal.put_run(f"r{number}", {"run": f"r{number}", "started_at": f"{number:03}", "state": "ended"})
    assert [run["run"] for run in journal.runs()] == [f"r{number}" for number in reversed(range(120))]
    assert len(journal.runs(7)) == 7


def test_a_certificate_is_revoked_once_and_for_the_first_reason(journal: Journal) -> None:
    journal.put_certificate("c1", "r1", {"certificate": "c1"})
    journal.put_certificate("c2", "r2", {"certificate": "c2"})
    journal.revoke_certificate("c1", "harm in run r3")
    journal.revoke_certificate("c1", "harm in run r4")
    assert [why for _, why in journal.certificates()] == ["harm in run r3", None]


def test_the_file_is_its_owners_alone(journal: Journal) -> None:
    assert os.stat(journal.path).st_mode & 0o077 == 0
