"""What earns a certificate: a run that passed, from the agent's own journaled windows alone, and every trap that stands before one."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from freezegun import freeze_time

from nodes import hardware
from nodes.agent.measure import Measurer
from nodes.clock import utc_now
from nodes.meters.nvml_probe import Inventory, NvidiaDevice
from policies.certificate import Gpu
from policies.refusal import Refused
from tests.node.agent_rig import wait_for
from tests.node.certificate_rig import Node


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
    node.begin("r1")
    assert "not yet" in node.refused("r1")


def test_a_section_that_changed_under_the_run_voids_it(node: Node) -> None:
    node.run("r1")
    node.agent.set_section(node.rig.section(extra_node='mode = "fleet_first"'), "test")
    assert "section" in node.refused("r1")


def test_the_same_section_set_again_is_no_change(node: Node) -> None:
    node.run("r1")
    version = node.agent.section_version
    node.agent.set_section(node.agent.sections.text, "test")
    assert node.agent.section_version != version
    assert node.offer("r1")["run"] == "r1"


def test_of_a_record_without_a_digest_the_version_decides(node: Node) -> None:
    node.run("r1")
    node.agent.runs.change("r1", section_digest=None)
    node.agent.set_section(node.agent.sections.text, "test")
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


def test_a_look_that_is_none_is_refused(node: Node) -> None:
    node.begin("r1", duty=0.2)
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


def test_a_pass_whose_verdict_crashed_certifies_when_offered_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where memory was short for a moment: it says nothing of what was measured."""
    node.run("r1")
    with monkeypatch.context() as short:
        short.setattr(sys, "executable", "/bin/false")
        assert "could not be recomputed" in node.refused("r1")
    assert node.agent.runs.record("r1")["certificate_refused_for"] == "later"
    assert node.offer("r1")["run"] == "r1"


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


def test_a_pass_that_is_offered_after_a_later_run_showed_harm_certifies_nothing(node: Node) -> None:
    node.run("pass", duty=0.2, dose=0.2)
    node.run("bad", ratio=0.3, ending="slowdown", duty=0.2, dose=0.2)
    assert "bad, which came after it, ended slowdown" in node.refused("pass")
    assert node.listed() == []


def test_a_later_run_that_showed_harm_at_a_higher_duty_is_no_bar(node: Node) -> None:
    node.run("low", duty=0.1, dose=0.1)
    node.run("bad", ratio=0.3, ending="slowdown", duty=0.5, dose=0.5)
    assert node.offer("low")["certified_duty"] == 0.1


def test_on_a_clock_that_was_set_back_a_failure_still_costs_two_passes(node: Node) -> None:
    node.run("r1", ratio=0.9, ending="inconclusive")
    with freeze_time(utc_now() - timedelta(days=3)):
        node.run("r2")
        assert "two passes" in node.refused("r2")
        node.run("r3")
        assert node.offer("r3")["run"] == "r3"


def test_a_list_of_gpus_that_changes_holds_a_certificate_until_the_same_are_seen_and_says_no_more(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver makes the nodes of its devices when it is asked: for that second nothing is known, and nothing is another."""
    card = Gpu(name="A", uuid="GPU-0", memory_bytes=1, driver="550.1")
    answers: list[Inventory] = []
    of: dict[str, tuple[str, ...]] = {"list": ("nvidia0",)}
    monkeypatch.setattr(hardware, "_device_list", lambda: of["list"])
    monkeypatch.setattr(hardware, "nvidia_present", lambda: True)
    monkeypatch.setattr(hardware, "_known_gpus", {("nvidia0",): (card,)})
    monkeypatch.setattr(hardware, "_probes", {})
    monkeypatch.setattr(hardware, "_asked_since_s", [])
    monkeypatch.setattr(hardware, "Probe", lambda: SimpleNamespace(poll=lambda: answers[-1] if answers else None))
    node.run("r1")
    node.offer("r1")
    certificates = node.agent.governing.certificates

    def now() -> tuple[int, str]:
        found, lapsed = certificates.now(["stepper"])
        return len(found), lapsed.get("stepper", "")

    assert now() == (1, "")
    of["list"] = ("nvidia0", "0000:01:00.0")
    for _ in range(3):
        in_force, why = now()
        assert (in_force, "being asked" in why) == (0, True), "what may be another GPU is not certified"
    answers.append(Inventory((NvidiaDevice(0, "A", "GPU-0", 1, False),), "550.1"))
    assert now() == (1, "")
    assert node.agent.journal.entries(code="CERT_STALE") == []
    answers[-1] = Inventory((NvidiaDevice(0, "B", "GPU-9", 1, False),), "550.1")
    of["list"] = ("nvidia1",)
    assert now()[0] == 0
    assert len(node.agent.journal.entries(code="CERT_STALE")) == 1


def test_a_run_that_begins_while_the_gpus_are_asked_for_knows_them(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it could never earn a certificate: what is unknown is the same as nothing."""
    card = Gpu(name="A", uuid="GPU-0", memory_bytes=1, driver="550.1")
    polls = iter([None, None, None])
    answer = Inventory((NvidiaDevice(0, "A", "GPU-0", 1, False),), "550.1")
    monkeypatch.setattr(hardware, "_device_list", lambda: ("nvidia0", "nvidia1"))
    monkeypatch.setattr(hardware, "nvidia_present", lambda: True)
    monkeypatch.setattr(hardware, "_known_gpus", {("nvidia0",): (card,)})
    monkeypatch.setattr(hardware, "_probes", {})
    monkeypatch.setattr(hardware, "_asked_since_s", [])
    monkeypatch.setattr(hardware, "Probe", lambda: SimpleNamespace(poll=lambda: next(polls, answer)))
    assert asyncio.run(node.subject.fingerprint("stepper")).gpus == (card,)
