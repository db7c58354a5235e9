"""The process table over fake /proc trees: what it reads and lists, and what it leaves unread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodes import processes
from nodes.processes import CYCLE, UNLISTED, YOUNG_S
from tests.node.proc_rig import FakeProc


def test_only_what_may_have_changed_is_read(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(10, 310):
        fake.add(pid, 1)
    fake.tick(int(YOUNG_S / 2) + 2)
    real, opened = processes.os.open, []
    monkeypatch.setattr(processes.os, "open", lambda path, flags: opened.append(path) or real(path, flags))
    fake.tick()
    assert len(opened) <= 2 * (302 // CYCLE + 2)
    fake.tick(CYCLE)
    opened.clear()
    fake.tick(CYCLE)
    # not one of them ran: who they are was not read again
    assert {Path(path).name for path in opened} == {"loadavg", "stat"}
    opened.clear()
    fake.tick(CYCLE)
    assert {path for path in opened if path.endswith("/stat")} == {
        f"{fake.root}/{pid}/stat" for pid in (1, *range(10, 310))
    }


def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of /proc by the table, which names it by a string; this file's own looks go by a Path."""
    real, listed = processes.os.listdir, []

    def listdir(path: str | Path) -> list[str]:
        listed.extend([path] if isinstance(path, str) else [])
        return real(path)

    monkeypatch.setattr(processes.os, "listdir", listdir)
    return listed


def test_while_nobody_comes_or_goes_nothing_is_listed(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(10, 40):
        fake.add(pid, 1)
    fake.tick()
    listed = listings(monkeypatch)
    fake.tick(UNLISTED)
    assert listed == []
    fake.end(20)
    assert [info.pid for info in fake.tick().vanished] == [20]
    fake.tick()
    fake.add(50, 1)
    assert [info.pid for info in fake.tick().appeared] == [50]
    fake.tick()
    fake.end(10)  # one goes as another comes: as many as before
    fake.add(51, 1)
    table = fake.tick()
    assert ([info.pid for info in table.appeared], [info.pid for info in table.vanished]) == ([51], [10])
    assert len(listed) == 3


def test_what_the_counts_do_not_tell_is_seen_by_a_list_that_comes_all_the_same(
    fake: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add(10, 1)
    fake.add(20, 1)
    fake.tick()
    fake.end(10)
    fake.add(11, 1)  # by hand, in the moment in which another ended
    fake.last_pid = 20
    fake.count()
    seen = [set(fake.tick().snapshot()) for _ in range(UNLISTED + 1)]
    assert seen[-1] == {1, 11, 20}


@pytest.mark.parametrize("told", ["", "0.00 0.00 0.00 0/0 0\n", "what is this\n"])
def test_without_counts_every_refresh_lists(fake: FakeProc, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    fake.add(10, 1)
    (fake.root / "loadavg").write_text(told)
    fake.tick()
    listed = listings(monkeypatch)
    fake.tick(3)
    assert len(listed) == 3


def test_counts_from_another_file_system_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some containers put a file over /proc/loadavg that a program of the host makes every few seconds."""
    real = processes.os.stat

    def stat(path: str) -> os.stat_result:
        found = real(path)
        return found if not path.endswith("loadavg") else os.stat_result((*found[:2], found.st_dev + 1, *found[3:10]))

    monkeypatch.setattr(processes.os, "stat", stat)
    fake = FakeProc(tmp_path)
    fake.tick()
    listed = listings(monkeypatch)
    fake.tick(3)
    assert len(listed) == 3
