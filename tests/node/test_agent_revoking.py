"""Harm that a run showed takes certificates back, whoever died meanwhile and whatever the disk did not take."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from freezegun import freeze_time

from nodes.agent import measure
from nodes.agent.certify import Certifier
from nodes.agent.measure import Measurer
from nodes.agent.runs import Runs
from nodes.clock import utc_iso, utc_now
from nodes.identity import ProcessId, identify, own_id
from policies.harness.rows import BlockRow
from policies.harness.schedule import coin
from tests.node.agent_rig import disk_full
from tests.node.certificate_rig import Node


def killed(*_: Any, **__: Any) -> None:
    """Stands for what the agent was at when its process was killed."""
    raise KeyboardInterrupt


def another_process() -> tuple[subprocess.Popen[bytes], ProcessId]:
    """What drives a run until it is killed."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = identify(child.pid)
    assert holder is not None
    return child, holder


def test_a_slowdown_revokes_what_was_certified_at_that_duty_or_more(node: Node) -> None:
    node.run("low", duty=0.1, dose=0.1)
    node.run("high", duty=0.3, dose=0.3)
    node.offer("low")
    node.offer("high")
    node.run("bad", ratio=0.3, ending="slowdown", duty=0.2, dose=0.2)
    states = {row["run"]: row["validity"]["state"] for row in node.listed()}
    assert states == {"low": "valid", "high": "revoked"}
    (said,) = node.agent.journal.entries(code="CERT_REVOKED")
    assert said["data"]["why"] == "run bad ended slowdown for the same work at duty 0.2"


def test_harm_of_work_that_was_asked_for_no_duty_is_told_as_such(node: Node) -> None:
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    node.run("bad", ratio=0.3, ending="slowdown", duty=None, dose=0.2)
    (said,) = node.agent.journal.entries(code="CERT_REVOKED")
    assert said["data"]["why"] == "run bad ended slowdown for the same work, uncapped"


def test_an_agent_that_dies_in_an_end_or_an_offer_does_the_rest_when_asked_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run("high", duty=0.3, dose=0.3)
    with monkeypatch.context() as dying:
        dying.setattr(node.agent.runs, "change", killed)
        with pytest.raises(KeyboardInterrupt):
            node.offer("high")
    assert node.offer("high")["run"] == "high"
    with monkeypatch.context() as dying:
        dying.setattr(node.agent.under_test, "end_feed", killed)
        with pytest.raises(KeyboardInterrupt):
            node.run("bad", ratio=0.3, ending="slowdown", duty=0.2, dose=0.2)
    node.certifier.end("bad", "slowdown", "test", None)
    assert [row["validity"]["state"] for row in node.listed()] == ["revoked"]


def test_what_harm_takes_back_is_tried_again_until_it_is_kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    in_force = node.agent.governing.certificates
    assert [each.certificate.run for each in in_force.now(["stepper"])[0]] == ["high"]
    with monkeypatch.context() as full:
        full.setattr(node.agent.journal, "revoke_certificate", disk_full)
        assert node.run("bad", ratio=0.3, ending="slowdown", duty=0.2, dose=0.2)["ending"] == "slowdown"
        node.agent.tick()
        found, lapsed = in_force.now(["stepper"])
        assert (found, "how run bad ended cannot be kept yet" in lapsed["stepper"]) == ((), True)
    node.agent.tick()
    assert [row["validity"]["state"] for row in node.listed()] == ["revoked"]


@pytest.mark.parametrize("ended", ["by nobody", "by its owner"])
def test_while_a_block_cannot_be_kept_nothing_is_certified_and_the_harm_in_it_takes_back_what_it_must(
    node: Node, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """The disk is full, and the flow is killed or its owner ends the run meanwhile."""
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    child, holder = another_process()
    begun = node.begin("bad", holder, duty=0.2)
    died = BlockRow(
        run="bad", number=1, order=coin(begun.spec.seed, 1), state="left_out", reason="program_died", reason_arm="on"
    )

    class Block:
        def __init__(self, *_: Any) -> None:
            pass

        async def measure(self) -> BlockRow:
            return died

    monkeypatch.setattr(measure, "BlockRunner", Block)
    monkeypatch.setattr(measure, "KEEP_AGAIN_S", 0.05)
    in_force = node.agent.governing.certificates

    async def measured() -> None:
        peer = cast(Any, SimpleNamespace(gone=asyncio.Event()))
        with monkeypatch.context() as full:
            full.setattr(node.agent.journal, "put_block", disk_full)
            block = asyncio.create_task(
                Measurer(node.agent, node.planner, node.subject).block("bad", 1, died.order, peer)
            )
            await asyncio.sleep(0.2)
            child.kill()
            child.wait(30)
            if ended == "by nobody":
                node.agent.tick()
                assert node.agent.runs.active is None
            found, lapsed = in_force.now(["stepper"])
            assert (found, "what run bad measured cannot be kept yet" in lapsed["stepper"]) == ((), True)
        if ended == "by its owner":
            node.certifier.end("bad", "aborted", "enough of it", None)
        await asyncio.wait_for(block, 30)

    asyncio.run(measured())
    assert node.agent.runs.record("bad")["ending"] == "harm_suspected"
    assert [row["validity"]["state"] for row in node.listed()] == ["revoked"]


def test_an_agent_killed_on_a_full_disk_certifies_nothing_at_its_next_start_until_the_harm_is_kept(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last block showed stands in the room that was taken for it before it began."""
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    begun = node.begin("bad", duty=0.2)
    node.agent.runs.note_started("bad", 1, coin(begun.spec.seed, 1))
    died = BlockRow(
        run="bad", number=1, order=coin(begun.spec.seed, 1), state="left_out", reason="program_died", reason_arm="on"
    )
    with monkeypatch.context() as full:
        full.setattr(node.agent.journal, "put_block", disk_full)
        with pytest.raises(sqlite3.OperationalError):
            node.agent.runs.keep_block(died)
        # the agent is killed here; the next one finds the same disk
        node.agent.runs = Runs(node.agent.journal)
        node.agent.start()
        node.agent.tick()
        found, lapsed = node.agent.governing.certificates.now(["stepper"])
        assert found == ()
        assert "cannot be kept yet" in lapsed["stepper"]
    node.agent.tick()
    assert node.agent.runs.record("bad")["ending"] == "harm_suspected"
    assert [row["validity"]["state"] for row in node.listed()] == ["revoked"]


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        ({"spec": "none"}, None),
        ({"blocks": 7}, None),
        ({"came_at": "yesterday", "ended_at": "today"}, None),
        ({"work": 5}, "revoked"),
    ],
    ids=["spec", "blocks", "times", "work"],
)
def test_a_damaged_record_of_a_run_fails_no_start_and_no_tick(
    node: Node, damaged: dict[str, Any], words: str | None
) -> None:
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    node.run("bad", counted=0, ending="inconclusive")
    node.agent.runs.change("bad", ending="slowdown", **damaged)
    Certifier(node.agent, node.subject)
    node.agent.unsettled.add("bad")
    before_s = node.agent.ticked_s
    node.agent.tick()
    assert node.agent.ticked_s > before_s
    assert node.agent.unsettled == set()
    if words is not None:
        assert [row["validity"]["state"] for row in node.listed()] == [words]


def test_an_agent_starts_on_a_full_disk_with_a_run_that_nobody_came_back_to(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.begin("old", duty=0.2)
    node.agent.runs.change("old", driven_at=utc_iso(utc_now() - timedelta(days=2)))
    node.agent.runs.active = None  # of an agent that has just begun
    with monkeypatch.context() as full:
        full.setattr(node.agent.journal, "put_run", disk_full)
        node.agent.start()
        node.agent.tick()
    assert node.agent.runs.record("old")["state"] == "open"
    node.agent.start()
    assert node.agent.runs.record("old")["ending"] == "interrupted"


def test_a_revocation_that_the_agent_died_before_is_made_up_for_at_its_start(node: Node) -> None:
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    node.run("bad", ratio=0.3, ending="aborted", duty=0.2, dose=0.2)
    node.agent.runs.change("bad", ending="slowdown")  # as if the agent had died right after the end was written
    node.certifier = Certifier(node.agent, node.subject)
    assert node.listed()[0]["validity"]["state"] == "revoked"


def test_on_a_clock_that_was_set_back_harm_revokes_what_was_earned_before_it(node: Node) -> None:
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    with freeze_time(utc_now() - timedelta(days=3)):
        node.run("bad", ratio=0.3, ending="slowdown", duty=0.2, dose=0.2)
    node.certifier = Certifier(node.agent, node.subject)
    assert node.listed()[0]["validity"]["state"] == "revoked"


@pytest.mark.parametrize("shown", ["look", "collapse"])
def test_harm_that_a_run_showed_before_its_process_was_gone_revokes_at_once(node: Node, shown: str) -> None:
    """Nobody may ever come back to such a run."""
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    child, holder = another_process()
    runs = node.agent.runs
    begun = node.begin("bad", holder, duty=0.2)
    if shown == "look":
        runs.change("bad", looks=[{"n": 8, "verdict": "slowdown"}])
    else:
        row = BlockRow(
            run="bad", number=1, order=coin(begun.spec.seed, 1), state="left_out", collapse="no event for 60 s"
        )
        node.agent.journal.put_block("bad", 1, row.model_dump())
    node.agent.tick()
    assert runs.record("bad")["state"] == "open", "it is driven"
    child.kill()
    child.wait(30)
    node.agent.tick()
    assert (runs.record("bad")["state"], runs.record("bad")["ending"]) == ("ended", "slowdown")
    assert node.listed()[0]["validity"]["state"] == "revoked"


def test_a_run_that_showed_no_harm_stays_open_when_its_process_is_gone(node: Node) -> None:
    gone = dataclasses.replace(own_id(), start_ticks=1)
    node.begin("r1", gone, duty=0.2)
    node.agent.runs.change("r1", looks=[{"n": 8, "verdict": "inconclusive"}])
    node.agent.tick()
    assert node.agent.runs.active is None
    assert node.agent.runs.record("r1")["state"] == "open"


def test_harm_that_a_run_showed_before_agent_and_flow_were_gone_revokes_at_the_next_start(node: Node) -> None:
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    node.begin("bad", duty=0.2)
    node.agent.runs.change("bad", looks=[{"n": 8, "verdict": "slowdown"}])
    node.agent.runs.active = None  # of an agent that has just begun
    node.agent.start()
    assert node.agent.runs.record("bad")["ending"] == "slowdown"
    assert node.listed()[0]["validity"]["state"] == "revoked"
