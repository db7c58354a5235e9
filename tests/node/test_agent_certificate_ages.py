"""How old a certificate is, on clocks that are set back and ahead, over agents that come and go."""

from __future__ import annotations

from datetime import timedelta

import pytest
from freezegun import freeze_time

from nodes.agent import certificate_ages
from nodes.agent.certificate_ages import CertificateAges
from nodes.clock import boottime_s, utc_now
from policies.certificate import Certificate
from tests.node.certificate_rig import Node


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
