"""The store away for a while, in each way it can be: the agent decides on as ever, and every entry is in the store once when it is back."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant import store
from nodes.mirror import Mirror
from tests.node.agent_rig import Rig, wait_for

SECTION = '[[rule]]\nid = "x{n}"\nmatch = {{ argv_regex = "no-such-program" }}\npause_fleet = {{ scope = "all" }}\n'
LOCKER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""
Undo = Callable[[], None]


def parts(path: Path) -> list[Path]:
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm") if path.with_name(path.name + end).exists()]


def locked(path: Path) -> Undo:
    other = subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline().strip() == "locked"
    return lambda: other.communicate("", 30) and None


def moved_away(path: Path) -> Undo:
    away = path.parent / "away"
    away.mkdir()
    for part in parts(path):
        os.rename(part, away / part.name)

    def back() -> None:
        for part in away.iterdir():
            os.rename(part, path.parent / part.name)

    return back


def a_directory_in_its_place(path: Path) -> Undo:
    back = moved_away(path)
    path.mkdir()

    def undo() -> None:
        path.rmdir()
        back()

    return undo


def an_older_copy_in_its_place(path: Path) -> Undo:
    """As an owner restores a backup under a worker that runs."""
    for part in parts(path):
        os.rename(part, part.with_name(part.name + ".newer"))
    os.rename(path.parent / "backup.sqlite", path)
    return lambda: None


@pytest.mark.parametrize("fault", [locked, moved_away, a_directory_in_its_place, an_older_copy_in_its_place])
def test_case_108_decisions_go_on_without_the_store_and_it_gets_each_entry_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Path], Undo]
) -> None:
    monkeypatch.setattr("cotenant.store.session.BUSY_TIMEOUT_S", 0.2)
    path = rig.home / "store.sqlite"
    sent: list[int] = []
    rig.start_agent()
    mirror = Mirror(
        rig.client,
        f"sqlite:///{path}",
        "local",
        mark=rig.home / "mark.json",
        send=lambda _node, entries: sent.extend(entry["seq"] for entry in entries),
        every_s=0.05,
    )

    def journaled() -> list[int]:
        return [entry["seq"] for entry in rig.timeline()]

    def stored() -> list[int]:
        """What is in the store; nothing while it cannot be read."""
        try:
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=0.2)) as db:
                return [seq for (seq,) in db.execute("SELECT seq FROM timeline ORDER BY seq")]
        except sqlite3.OperationalError:
            return []

    mirror.start()
    try:
        wait_for("the first entries", lambda: stored() == journaled())
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("VACUUM INTO ?", (str(rig.home / "backup.sqlite"),))
        undo = fault(path)
        for n in range(3):
            assert rig.client.call("section_set", text=SECTION.format(n=n), by="test")["version"] == n + 1
        wait_for("judged", lambda: [rule["id"] for rule in rig.client.call("status")["rules"]] == ["x2"])
        assert rig.client.call("certificates") == []
        undo()
        wait_for("all of them", lambda: stored() == journaled(), 120)
        wait_for("all sent", lambda: sorted(set(sent)) == journaled())
    finally:
        mirror.stop()
        mirror.close()
    assert len(store.timeline_entries(store.open(f"sqlite:///{path}"), "local", limit=5000)) == len(journaled())
