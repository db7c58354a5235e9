"""What the agent keeps of a run: a certificate from its own journaled windows alone, and every trap that stands before one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from freezegun import freeze_time

from nodes.agent import certificate_ages, measure
from nodes.agent.certificate_ages import CertificateAges
from nodes.agent.certify import Certifier
from nodes.agent.core import Agent
from nodes.agent.measure import Measurer
from nodes.agent.plan import Planner
from nodes.agent.revoking import settle
from nodes.agent.runs import Runs
from nodes.agent.subject import Subject
from nodes.clock import boottime_s, utc_iso, utc_now
from nodes.identity import identify, own_id
from policies.certificate import Certificate
from policies.harness.rows import BlockRow, UnitDose, WindowRow
from policies.harness.schedule import coin
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from tests.node.agent_rig import ROOT, Rig, wait_for


class Node:
    """An agent in this process, with a program that it sees; blocks are put into its journal as it would have measured them."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rig.events.touch()
        rig.start_program()
        self.agent = Agent(rig.home, "local", ROOT / "modules")
        self.agent.prepare_modules()
        self.agent.start()
        self.agent.set_section(rig.section(), "test")
        wait_for("the program is seen", self.sees)
        self.subject = Subject(self.agent)
        self.planner = Planner(self.agent, self.subject)
        self.certifier = Certifier(self.agent, self.subject)
        self.digest = next(m.digest for m in self.agent.modules.list() if m.short == "llmserve")
        chance = random.Random(5)
        track, when = self.agent.progress("stepper").track, self.agent.now_s()
        for _ in range(40):  # gaps of a program that is no timer, so that the check before a certificate knows enough
            when += chance.uniform(0.03, 0.09)
            track.add_events(when)

    def sees(self) -> bool:
        self.agent.tick()
        return bool(self.agent.observer.program("stepper"))

    def run(
        self,
        name: str,
        ratio: float = 1.0,
        ending: str = "no slowdown shown",
        counted: int = 8,
        left_out: int = 0,
        dose: float = 0.1,
        digest: str | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        """A whole run: begun, blocks journaled with ON = ``ratio`` x OFF, ended as the flow would say."""
        asked = RunSpec.model_validate(self.rig.spec(**spec))
        facts = asyncio.run(self.subject.facts(asked, None))
        self.agent.runs.begin(name, asked, own_id(), facts | {"reviewed_by": "test", "flow_run_id": None})
        chance, digest = random.Random(name), digest or self.digest
        for number in range(1, counted + left_out + 1):
            order = coin(asked.seed, number)
            out = number > counted
            windows = {
                arm: WindowRow(
                    run=name,
                    block=number,
                    arm=arm,
                    position=1,
                    started_at=utc_iso(),
                    started_mono_s=0.0,
                    length_s=asked.window_s,
                    events=rate * asked.window_s,
                    rate=rate,
                    work_ran_s=asked.window_s if arm == "on" else 0.0,
                    dose=dose if arm == "on" else None,
                    units=(
                        UnitDose(
                            attempt="1-1",
                            module="dev.cotenant.llmserve",
                            stage="selftest",
                            digest=digest,
                            share=dose,
                            by_device={"cpu": dose},
                        ),
                    )
                    if arm == "on"
                    else (),
                    program_on=("cpu",),
                )
                for arm, rate in (("on", 10.0 * ratio * chance.gauss(1, 0.002)), ("off", 10.0 * chance.gauss(1, 0.002)))
            }
            row = BlockRow(
                run=name,
                number=number,
                order=order,
                state="left_out" if out else "counted",
                reason="phase" if out else None,
                on=windows["on"],
                off=windows["off"],
            )
            self.agent.journal.put_block(name, number, row.model_dump())
        return self.certifier.end(name, ending, "test", {"R": ratio, "n": counted})

    def offer(self, name: str) -> dict[str, Any]:
        return asyncio.run(self.certifier.offer(name))

    def refused(self, name: str) -> str:
        with pytest.raises(Refused) as refused:
            self.offer(name)
        return refused.value.why

    def listed(self) -> list[dict[str, Any]]:
        return asyncio.run(self.certifier.listed())


@pytest.fixture
def node(rig: Rig) -> Iterator[Node]:
    found = Node(rig)
    yield found
    found.agent.journal.close()


def test_a_pass_earns_a_certificate_that_names_what_it_was_earned_under(node: Node) -> None:
    node.run("r1", dose=0.0973)
    kept = node.offer("r1")
    assert kept["certified_duty"] == 0.09, "the metered share, rounded down: less than the duty asked"
    assert kept["demonstration"] is True
    assert kept["work"][0]["module"] == "dev.cotenant.llmserve"
    assert kept["fingerprint"]["program"][0]["script"].endswith("stepper.py")
    assert kept["unbound"] == []
    assert node.offer("r1") == kept, "offered twice, kept once"
    (row,) = node.listed()
    assert row["validity"]["state"] == "valid", row["validity"]


def test_the_duty_asked_bounds_the_certified_one(node: Node) -> None:
    node.run("r1", dose=0.14)
    assert node.offer("r1")["certified_duty"] == 0.1


def test_a_flow_that_calls_a_slowdown_a_pass_gets_no_certificate(node: Node) -> None:
    """The verdict is recomputed from the journaled windows; what the flow says it saw does not count."""
    node.run("r1", ratio=0.4, margin=0.1)
    assert "recomputed" in node.refused("r1")
    assert node.agent.journal.entries(code="CERT_REFUSED")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"ending": "inconclusive"}, "inconclusive"),
        ({"counted": 8, "left_out": 3}, "left out"),
        ({"kind": "null", "feed": None, "duty": None}, "A/A"),
        ({"kind": "self", "feed": None, "duty": None}, "self"),
        ({"counted": 7}, "inconclusive"),
    ],
    ids=["no pass", "too many left out", "null", "self", "before the first look"],
)
def test_what_earns_none(node: Node, changes: dict[str, Any], word: str) -> None:
    node.run("r1", **changes)
    assert word in node.refused("r1")


def test_an_open_run_earns_none(node: Node) -> None:
    asked = RunSpec.model_validate(node.rig.spec())
    facts = asyncio.run(node.subject.facts(asked, None))
    node.agent.runs.begin("r1", asked, own_id(), facts | {"reviewed_by": "test", "flow_run_id": None})
    assert "not yet" in node.refused("r1")


def test_a_section_that_changed_under_the_run_voids_it(node: Node) -> None:
    node.run("r1")
    node.agent.set_section(node.rig.section(extra_node='mode = "fleet_first"'), "test")
    assert "section" in node.refused("r1")


def test_repetition_must_not_manufacture_certificates(node: Node) -> None:
    node.run("r1", ratio=0.9, ending="inconclusive")
    node.run("r2")
    assert "two passes" in node.refused("r2")
    node.run("r3")
    assert node.offer("r3")["attempts_before"], "earlier attempts are named"


@pytest.mark.parametrize(("counted", "free"), [(8, False), (7, True)])
def test_an_abort_of_a_run_that_could_be_judged_is_no_free_try(node: Node, counted: int, free: bool) -> None:
    """Its eight blocks can be read before anybody keeps a look."""
    node.run("r1", ratio=0.9, ending="aborted", counted=counted)
    assert node.agent.runs.record("r1")["looks"] == []
    node.run("r2")
    if free:
        assert node.offer("r2")["run"] == "r2"
    else:
        assert "two passes" in node.refused("r2")


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
        dying.setattr(node.agent.runs, "change", _die)
        with pytest.raises(KeyboardInterrupt):
            node.offer("high")
    assert node.offer("high")["run"] == "high"
    with monkeypatch.context() as dying:
        dying.setattr(node.agent.under_test, "end_feed", _die)
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
        full.setattr(node.agent.journal, "revoke_certificate", _full)
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
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None)) | {"reviewed_by": "test", "flow_run_id": None}
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = identify(child.pid)
    assert holder is not None
    node.agent.runs.begin("bad", asked, holder, facts)
    died = BlockRow(
        run="bad", number=1, order=coin(asked.seed, 1), state="left_out", reason="program_died", reason_arm="on"
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
            full.setattr(node.agent.journal, "put_block", _full)
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
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None)) | {"reviewed_by": "test", "flow_run_id": None}
    node.agent.runs.begin("bad", asked, own_id(), facts)
    node.agent.runs.note_started("bad", 1, coin(asked.seed, 1))
    died = BlockRow(
        run="bad", number=1, order=coin(asked.seed, 1), state="left_out", reason="program_died", reason_arm="on"
    )
    with monkeypatch.context() as full:
        full.setattr(node.agent.journal, "put_block", _full)
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


def test_a_look_that_is_none_is_refused(node: Node) -> None:
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None)) | {"reviewed_by": "test", "flow_run_id": None}
    node.agent.runs.begin("r1", asked, own_id(), facts)
    measurer = Measurer(node.agent, node.planner, node.subject)
    for look in (
        {},
        {"n": "8", "verdict": "slowdown"},
        {"n": 8},
        {"n": 8, "verdict": "fine"},
        {"n": 0, "verdict": "refused"},
    ):
        with pytest.raises(Refused) as refused:
            measurer.look("r1", look)
        assert refused.value.code == "RUN_BAD_PARAMETER"
    measurer.look("r1", {"n": 8, "verdict": "inconclusive"})
    assert node.agent.runs.record("r1")["looks"] == [{"n": 8, "verdict": "inconclusive"}]


def test_an_agent_starts_on_a_full_disk_with_a_run_that_nobody_came_back_to(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None)) | {"reviewed_by": "test", "flow_run_id": None}
    node.agent.runs.begin("old", asked, own_id(), facts)
    node.agent.runs.change("old", driven_at=utc_iso(utc_now() - timedelta(days=2)))
    node.agent.runs.active = None  # of an agent that has just begun
    with monkeypatch.context() as full:
        full.setattr(node.agent.journal, "put_run", _full)
        node.agent.start()
        node.agent.tick()
    assert node.agent.runs.record("old")["state"] == "open"
    node.agent.start()
    assert node.agent.runs.record("old")["ending"] == "interrupted"


def test_a_run_that_somebody_goes_on_with_keeps_its_feed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the block that its earlier process drove ends a moment later."""
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None)) | {"reviewed_by": "test", "flow_run_id": None}
    ended: list[str] = []
    monkeypatch.setattr(node.agent.under_test, "end_feed", ended.append)
    node.agent.runs.begin("r1", asked, own_id(), facts)
    settle(node.agent, "r1")
    assert (ended, node.agent.unsettled) == ([], set())


def test_the_feed_of_a_run_that_a_full_disk_does_not_take_fails_no_tick(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ticks that fail judge no rule; the feed is asked for again."""
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2, feed="llmserve/selftest"))
    facts = asyncio.run(node.subject.facts(asked, None)) | {"reviewed_by": "test", "flow_run_id": None}
    node.agent.runs.begin("r1", asked, own_id(), facts)
    active = node.agent.runs.active
    assert active is not None
    active.part = "grant"
    with monkeypatch.context() as full:
        full.setattr(node.agent.jobs.registry, "add_job", _full)
        before_s = node.agent.ticked_s
        node.agent.tick()
    assert node.agent.ticked_s > before_s


def test_a_feed_that_waits_to_be_tried_again_is_no_second_one_and_ends_with_its_run(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feed whose runner fails at once: it must not be queued anew at every tick, nor wait for ever when its run has ended."""
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None)) | {"reviewed_by": "test", "flow_run_id": None}
    node.agent.runs.begin("r1", asked, own_id(), facts)
    monkeypatch.setattr(node.agent, "evaluate", lambda how: None)
    active = node.agent.runs.active
    assert active is not None
    jobs = node.agent.jobs
    node.agent.under_test.feed(active)
    (feed,) = jobs.registry.open_jobs()
    jobs._retry_at[feed.job] = node.agent.now_s() + 300.0
    node.agent.under_test.feed(active)
    assert [job.job for job in jobs.registry.open_jobs()] == [feed.job]
    node.agent.under_test.end_feed("r1")
    assert jobs.registry.open_jobs() == []


@pytest.mark.parametrize(("earlier", "again"), [((), False), (("thrown_away",), True), (("cancelled",), False)])
def test_a_feed_that_failed_for_good_is_queued_again_at_the_next_on_and_not_before(
    node: Node, monkeypatch: pytest.MonkeyPatch, earlier: tuple[str, ...], again: bool
) -> None:
    """One that came to an end before shows that it can: then a failure is no last word."""
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None)) | {"reviewed_by": "test", "flow_run_id": None}
    node.agent.runs.begin("r1", asked, own_id(), facts)
    monkeypatch.setattr(node.agent, "evaluate", lambda how: None)
    active, jobs = node.agent.runs.active, node.agent.jobs
    assert active is not None
    node.agent.under_test.begin_feed(active)
    for outcome in (*earlier, "failed"):
        (feed,) = jobs.registry.open_jobs()
        jobs.registry.change_job(feed.job, state="ended", outcome=outcome, reason="no such model")
        assert not node.agent.under_test.runs_or_never_will(active), "not before it was looked at"
        node.agent.under_test.feed(active)
    assert len(jobs.registry.open_jobs()) == again
    assert node.agent.under_test.runs_or_never_will(active) is not again
    if not again:
        assert node.agent.under_test.why_not_running(active) == "its feed failed for good: no such model"
        node.agent.under_test.feed(active)
        assert jobs.registry.open_jobs() == []
        node.agent.under_test.begin_feed(active)
        assert len(jobs.registry.open_jobs()) == 1, "the next ON tries it once more"


def test_a_feed_whose_module_is_not_ready_any_more_fails_no_tick(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks that fail judge no rule, and fleet work would go on beside a program that has just begun."""
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None)) | {"reviewed_by": "test", "flow_run_id": None}
    node.agent.runs.begin("r1", asked, own_id(), facts)
    active = node.agent.runs.active
    assert active is not None
    active.part = "grant"
    with monkeypatch.context() as gone:
        gone.setattr(node.agent.modules, "get", lambda name: None)
        before_s = node.agent.ticked_s
        node.agent.tick()
        assert node.agent.ticked_s > before_s
        assert "no such module" in node.agent.under_test.why_not_running(active)
        assert not node.agent.under_test.runs_or_never_will(active), "it may be ready again"
    node.agent.tick()
    assert active.feed_why is None
    assert node.agent.jobs.registry.feeds("r1", 2), "it is queued when the module is there again"


def test_a_pass_whose_verdict_crashed_certifies_when_offered_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where memory was short for a moment: it says nothing of what was measured."""
    node.run("r1")
    with monkeypatch.context() as short:
        short.setattr(sys, "executable", "/bin/false")
        assert "could not be recomputed" in node.refused("r1")
    assert node.agent.runs.record("r1")["certificate_refused_for"] == "later"
    assert node.offer("r1")["run"] == "r1"


def _full(*_: Any, **__: Any) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_pass_that_could_not_be_judged_for_a_moment_certifies_when_offered_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run("r1")
    unknown = SimpleNamespace(looks_timed=None, words="too few events")
    with monkeypatch.context() as early:
        early.setattr(node.subject, "timed", lambda _: unknown)
        assert "is not known" in node.refused("r1")
    assert node.agent.runs.record("r1")["certificate_refused_for"] == "later"
    assert node.offer("r1")["run"] == "r1"
    assert node.agent.runs.record("r1")["certificate_refused"] is None


def _die(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_certificate_edited_by_hand_is_refused_and_journaled(node: Node) -> None:
    node.run("r1")
    node.offer("r1")
    (row,) = [json.loads(r["row"]) for r in node.agent.journal.db.execute("SELECT row FROM certificates").fetchall()]
    row["certified_duty"] = 1.0
    node.agent.journal.db.execute("UPDATE certificates SET row = ?", (json.dumps(row),))
    assert node.listed() == []
    node.listed()
    assert len(node.agent.journal.entries(code="CERT_FORGED")) == 1


def test_a_changed_program_makes_it_stale_and_says_old_and_new(node: Node) -> None:
    node.run("r1")
    node.offer("r1")
    node.rig.started[0].kill()
    node.rig.started[0].wait(10)
    node.rig.stepper.write_text(node.rig.stepper.read_text() + "\n# another version\n")
    node.rig.start_program()
    wait_for(
        "the new program is seen",
        lambda: node.sees() and node.agent.observer.processes("stepper")[0]["pid"] == node.rig.started[-1].pid,
    )
    (row,) = node.listed()
    assert row["validity"]["state"] == "stale"
    assert "→" in row["validity"]["why"]
    assert "ab start" in row["validity"]["renew"]


def test_it_expires_after_fourteen_days_and_is_invalid_on_a_clock_set_back(node: Node) -> None:
    from policies.certificate import validity

    node.run("r1")
    kept = Certificate.model_validate(node.offer("r1"))
    rule = node.agent.section.rule("stepper")

    def state() -> str:
        found = validity(
            kept, now=utc_now(), fingerprint=kept.fingerprint, rule=rule, duty_device="cpu", key=node.certifier.key
        )
        return found.state

    with freeze_time(kept.issued_at + timedelta(days=13, hours=23)):
        assert state() == "valid"
    with freeze_time(kept.issued_at + timedelta(days=14, seconds=1)):
        assert state() == "expired"
    with freeze_time(kept.issued_at - timedelta(hours=1)):
        assert state() == "invalid"


def test_a_clock_that_is_set_back_makes_no_certificate_younger(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run("r1")
    issued_at = Certificate.model_validate(node.offer("r1")).issued_at
    booted_s, day_s = boottime_s(), 86400.0

    def state(wall: float, boot: float) -> str:
        """So many days after it was issued by the wall clock, and since this boot."""
        monkeypatch.setattr(certificate_ages, "boottime_s", lambda: booted_s + boot * day_s)
        with freeze_time(issued_at + timedelta(days=wall)):
            node.agent.governing.certificates.now(["stepper"])
            return str(node.listed()[0]["validity"]["state"])

    assert state(wall=1.0, boot=0.0) == "valid"
    assert state(wall=1.0, boot=10.0) == "valid"
    assert state(wall=1.0, boot=13.9) == "valid"
    assert state(wall=1.0, boot=14.1) == "expired", "set back each night"
    monkeypatch.setattr(certificate_ages, "boottime_s", lambda: booted_s)
    node.agent.certificates.ages = CertificateAges(node.agent.journal)
    assert state(wall=1.0, boot=0.0) == "expired", "also for the next agent, but for what it was kept last"


def test_agents_that_live_for_minutes_age_a_certificate_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run("r1")
    issued_at = Certificate.model_validate(node.offer("r1")).issued_at
    booted_s = boottime_s()
    with freeze_time(issued_at + timedelta(minutes=1)):  # set back each time
        for session in range(30):
            monkeypatch.setattr(certificate_ages, "boottime_s", lambda at=session: booted_s + at * 43200.0)
            node.agent.certificates.ages = CertificateAges(node.agent.journal)
            node.agent.governing.certificates.now(["stepper"])
            monkeypatch.setattr(certificate_ages, "boottime_s", lambda at=session: booted_s + (at + 1) * 43200.0 - 1.0)
            node.agent.certificates.ages.keep()
        assert node.listed()[0]["validity"]["state"] == "expired"


def test_a_clock_that_is_ahead_for_a_moment_ends_no_certificate(node: Node) -> None:
    node.run("r1")
    issued_at = Certificate.model_validate(node.offer("r1")).issued_at
    with freeze_time(issued_at + timedelta(days=400)):
        node.agent.governing.certificates.now(["stepper"])
        assert node.listed()[0]["validity"]["state"] == "expired"
    assert node.listed()[0]["validity"]["state"] == "valid"


def test_a_unit_from_another_bundle_voids_the_run(node: Node) -> None:
    node.run("r1", digest="0" * 64)
    assert "another bundle" in node.refused("r1")


def test_asking_for_a_hair_less_or_more_is_the_same_thing_over_again(node: Node) -> None:
    node.run("r1", ratio=0.3, ending="slowdown", duty=0.3, dose=0.3)
    node.run("r2", duty=0.2999, dose=0.29)
    assert "two passes" in node.refused("r2")
    node.run("r3", duty=0.5, dose=0.5)
    assert "two passes" in node.refused("r3")
    node.run("r4", duty=0.1)
    assert node.offer("r4")["certified_duty"] == 0.1, "a lower level was not shown harmful"


def test_a_pass_that_the_agent_did_not_believe_is_no_first_pass(node: Node) -> None:
    node.run("bad", ratio=0.9, ending="inconclusive")
    node.run("lie", ratio=0.4, margin=0.1)
    assert "recomputed" in node.refused("lie")
    node.run("r1", margin=0.1)
    assert "two passes" in node.refused("r1")


def test_a_revocation_that_the_agent_died_before_is_made_up_for_at_its_start(node: Node) -> None:
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    node.run("bad", ratio=0.3, ending="aborted", duty=0.2, dose=0.2)
    node.agent.runs.change("bad", ending="slowdown")  # as if the agent had died right after the end was written
    node.certifier = Certifier(node.agent, node.subject)
    assert node.listed()[0]["validity"]["state"] == "revoked"


def test_a_pass_that_is_offered_after_a_later_run_showed_harm_certifies_nothing(node: Node) -> None:
    node.run("pass", duty=0.2, dose=0.2)
    node.run("bad", ratio=0.3, ending="slowdown", duty=0.2, dose=0.2)
    assert "bad, which came after it, ended slowdown" in node.refused("pass")
    assert node.listed() == []


def test_a_later_run_that_showed_harm_at_a_higher_duty_is_no_bar(node: Node) -> None:
    node.run("low", duty=0.1, dose=0.1)
    node.run("bad", ratio=0.3, ending="slowdown", duty=0.5, dose=0.5)
    assert node.offer("low")["certified_duty"] == 0.1


def test_on_a_clock_that_was_set_back_harm_revokes_what_was_earned_before_it(node: Node) -> None:
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    with freeze_time(utc_now() - timedelta(days=3)):
        node.run("bad", ratio=0.3, ending="slowdown", duty=0.2, dose=0.2)
    node.certifier = Certifier(node.agent, node.subject)
    assert node.listed()[0]["validity"]["state"] == "revoked"


def test_on_a_clock_that_was_set_back_a_failure_still_costs_two_passes(node: Node) -> None:
    node.run("r1", ratio=0.9, ending="inconclusive")
    with freeze_time(utc_now() - timedelta(days=3)):
        node.run("r2")
        assert "two passes" in node.refused("r2")
        node.run("r3")
        assert node.offer("r3")["run"] == "r3"


@pytest.mark.parametrize("shown", ["look", "collapse"])
def test_harm_that_a_run_showed_before_its_process_was_gone_revokes_at_once(node: Node, shown: str) -> None:
    """Nobody may ever come back to such a run."""
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = identify(child.pid)
    assert holder is not None
    runs = node.agent.runs
    runs.begin("bad", asked, holder, facts | {"reviewed_by": "test", "flow_run_id": None})
    if shown == "look":
        runs.change("bad", looks=[{"n": 8, "verdict": "slowdown"}])
    else:
        row = BlockRow(run="bad", number=1, order=coin(asked.seed, 1), state="left_out", collapse="no event for 60 s")
        node.agent.journal.put_block("bad", 1, row.model_dump())
    node.agent.tick()
    assert runs.record("bad")["state"] == "open", "it is driven"
    child.kill()
    child.wait(30)
    node.agent.tick()
    assert (runs.record("bad")["state"], runs.record("bad")["ending"]) == ("ended", "slowdown")
    assert node.listed()[0]["validity"]["state"] == "revoked"


def test_a_run_that_showed_no_harm_stays_open_when_its_process_is_gone(node: Node) -> None:
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None))
    gone = dataclasses.replace(own_id(), start_ticks=1)
    node.agent.runs.begin("r1", asked, gone, facts | {"reviewed_by": "test", "flow_run_id": None})
    node.agent.runs.change("r1", looks=[{"n": 8, "verdict": "inconclusive"}])
    node.agent.tick()
    assert node.agent.runs.active is None
    assert node.agent.runs.record("r1")["state"] == "open"


def test_harm_that_a_run_showed_before_agent_and_flow_were_gone_revokes_at_the_next_start(node: Node) -> None:
    node.run("high", duty=0.3, dose=0.3)
    node.offer("high")
    asked = RunSpec.model_validate(node.rig.spec(duty=0.2))
    facts = asyncio.run(node.subject.facts(asked, None))
    node.agent.runs.begin("bad", asked, own_id(), facts | {"reviewed_by": "test", "flow_run_id": None})
    node.agent.runs.change("bad", looks=[{"n": 8, "verdict": "slowdown"}])
    node.agent.runs.active = None  # of an agent that has just begun
    node.agent.start()
    assert node.agent.runs.record("bad")["ending"] == "slowdown"
    assert node.listed()[0]["validity"]["state"] == "revoked"
