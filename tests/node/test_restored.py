"""A home that was put back from a backup: what was revoked or failed since is not in it, so nothing in it certifies."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.fleet.backup import backup, restore
from tests.node.certificate_rig import Node


@pytest.fixture
def put_back(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """The node after: a pass was certified, one was not offered yet, a run was open; backup; the work did harm; restore."""
    folder = tmp_path_factory.mktemp("elsewhere")
    node.run("good", duty=0.3, dose=0.3)
    node.offer("good")
    node.run("unoffered", duty=0.3, dose=0.3)
    node.begin("open", duty=0.3)
    backup(node.rig.home, folder / "b.tar.gz")
    node.agent.runs.active = None
    node.run("bad", ratio=0.3, ending="slowdown", duty=0.3, dose=0.3)
    assert [row["validity"]["state"] for row in node.listed()] == ["revoked"]
    node.agent.journal.close()
    node.agent.hub.close()
    program = node.rig.started.pop()
    program.kill()
    program.wait()
    restore(folder / "b.tar.gz", folder / "back")
    node.rig.home = folder / "back"
    return Node(node.rig)


def test_a_restore_brings_no_certificate_back_that_was_revoked_since(put_back: Node) -> None:
    """On the very machine that it was earned on, too."""
    agent = put_back.agent
    (row,) = put_back.listed()
    assert row["validity"]["state"] == "stale"
    assert row["validity"]["why"].startswith("restored: the node's home was put back on ")
    assert row["validity"]["renew"].startswith("cotenant protection ab start local --rule stepper")
    admits, lapsed = agent.governing.certificates.now(["stepper"])
    assert admits == ()
    assert "stale: restored" in lapsed["stepper"]
    (said,) = agent.journal.entries(code="JOURNAL_RESTORED")
    assert said["data"]["runs"] == 3
    put_back.refused("unoffered")
    ended = agent.journal.run("open")
    assert ended is not None
    assert (ended["state"], ended["ending"]) == ("ended", "interrupted"), "its later blocks are lost"


def test_after_a_restore_it_takes_two_passes_as_after_a_failure(put_back: Node) -> None:
    """The slowdown that came after the backup is not known any more; one may have come, and counts."""
    put_back.run("first", duty=0.3, dose=0.3)
    assert "takes two passes in a row" in put_back.refused("first")
    put_back.run("second", duty=0.3, dose=0.3)
    assert put_back.offer("second")["run"] == "second"
    states = {row["run"]: row["validity"]["state"] for row in put_back.listed()}
    assert states == {"good": "stale", "second": "valid"}


def test_a_restore_of_a_restored_home_forgets_no_run(put_back: Node, tmp_path: Path) -> None:
    put_back.run("first", duty=0.3, dose=0.3)
    put_back.run("second", duty=0.3, dose=0.3)
    put_back.offer("second")
    backup(put_back.rig.home, tmp_path / "again.tar.gz")
    put_back.agent.journal.close()
    put_back.agent.hub.close()
    restore(tmp_path / "again.tar.gz", tmp_path / "again")
    put_back.rig.home = tmp_path / "again"
    found = Node(put_back.rig)
    assert {row["run"]: row["validity"]["state"] for row in found.listed()} == {"good": "stale", "second": "stale"}
    found.agent.journal.close()
