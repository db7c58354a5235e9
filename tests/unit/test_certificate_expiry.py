"""Which certificates need their owner, in three time zones and on odd clocks, and the runs that renew them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from freezegun import freeze_time

from policies.certificate import validity
from policies.certificate.expiry import due, renewals
from policies.harness.hours import parse_hours
from policies.harness.schedule import longest_s
from policies.harness.spec import RunSpec
from tests.unit.certificates import DIGEST, KEY, MODULE, PRINT, RULE, certificate, record

NIGHT = parse_hours("22:00-06:30")
ISSUED = datetime(2026, 3, 20, 6, 30, tzinfo=UTC)


def row(at: datetime, revoked: str | None = None, fingerprint: Any = PRINT, **changes: Any) -> dict[str, Any]:
    """A row as the agent gives it at that time."""
    made = certificate(record(**changes) if changes else None)
    state = validity(
        made, now=at, fingerprint=fingerprint, rule=RULE, duty_device="gpu", key=KEY, revoked=revoked,
        bundles={MODULE: DIGEST, "dev.cotenant.sweep": "c" * 64},
    )  # fmt: skip
    return made.model_dump(mode="json") | {"validity": state.as_dict()}


def states(at: datetime, *rows: dict[str, Any]) -> list[str]:
    return [each.state for each in due(rows, at)]


def test_a_certificate_is_due_from_three_days_before_its_end_and_is_forgotten_two_weeks_after() -> None:
    expires = ISSUED + timedelta(days=14)
    for ago, wanted in (
        (timedelta(days=-3, seconds=-1), []),
        (timedelta(days=-3), ["expires soon"]),
        (timedelta(seconds=-1), ["expires soon"]),
        (timedelta(0), ["expired"]),
        (timedelta(days=14), ["expired"]),
        (timedelta(days=14, seconds=1), []),
    ):
        assert states(expires + ago, row(expires + ago)) == wanted, ago


@pytest.mark.parametrize("name", ["Europe/Berlin", "Asia/Kolkata", "America/New_York"])
def test_case_119_it_is_due_at_the_same_instant_in_every_zone(name: str) -> None:
    # 2026-03-29 Berlin and 2026-03-08 New York change their clocks within these two weeks or before them
    zone = ZoneInfo(name)
    soon = ISSUED + timedelta(days=11)
    before, after = (soon - timedelta(seconds=1)).astimezone(zone), soon.astimezone(zone)
    assert states(before, row(before)) == []
    assert states(after, row(after)) == ["expires soon"]
    with freeze_time(soon):
        now = datetime.now(zone)
        assert due([row(now)], now)[0].days_left == 3.0


def test_a_clock_set_back_makes_it_invalid_and_starts_no_run() -> None:
    before = ISSUED - timedelta(hours=1)
    found = due([row(before)], before)
    assert [each.state for each in found] == ["invalid"]
    assert "before it was issued" in found[0].why
    assert renewals(found, before, None, UTC) == []
    with pytest.raises(ValueError):
        due([], datetime(2026, 3, 20))  # noqa: DTZ001


def test_what_differs_and_what_renews_it_are_said() -> None:
    now = ISSUED + timedelta(days=1)
    changed = PRINT.model_copy(update={"agent_version": "0.2.0"})
    found = due([row(now, fingerprint=changed), row(now, run="r2", revoked="run r9 ended slowdown")], now)
    assert {each.state: "0.2.0" in each.why for each in found} == {"stale": True, "revoked": False}
    assert all("--max-hours 8" in each.renew for each in found)
    assert [each.renewable for each in found if each.state == "revoked"] == [False]


def test_what_a_newer_one_covers_is_not_due() -> None:
    now = ISSUED + timedelta(days=12)
    old, new = row(now), row(now, run="r2")
    later = ISSUED + timedelta(days=11)
    new |= {
        "expires_at": (later + timedelta(days=14)).isoformat(),
        "validity": {"state": "valid", "why": "", "renew": ""},
    }
    assert states(now, old, new) == []
    assert states(now, old, new | {"certified_duty": 0.2}) == ["expires soon"], "not at the duty"
    assert states(now, old, new | {"demonstration": True}) == ["expires soon"], "a demonstration covers no certificate"
    assert states(now, old, new | {"work": []}) == ["expires soon"]


def test_the_highest_duty_is_renewed_within_the_owners_hours_one_after_the_other() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    now = datetime(2026, 3, 28, 9, 0, tzinfo=UTC)  # the night that follows loses an hour
    soon = {"state": "stale", "why": "changed", "renew": "…"}
    rows = [
        row(now) | {"validity": soon, "certified_duty": 0.2, "duty_asked": 0.2, "max_hours": 3.0},
        row(now, run="r2") | {"validity": soon, "max_hours": 3.0},
        row(now, run="r3") | {"validity": soon, "rule": "other", "max_hours": 9.0},
        row(now, run="r4") | {"validity": soon, "rule": "third"},
    ]
    first, second, third = renewals(due(rows, now), now, NIGHT, berlin)
    assert first.spec is not None
    assert (first.spec["duty"], first.spec["max_hours"]) == (0.35, 3.0)
    assert first.start_at == datetime(2026, 3, 28, 21, 0, tzinfo=UTC)  # 22:00 there
    assert second.spec is not None
    assert second.start_at == first.start_at + timedelta(seconds=longest_s(RunSpec.model_validate(first.spec)))
    end = datetime(2026, 3, 29, 4, 30, tzinfo=UTC)  # 06:30 there, in summer time
    assert second.spec["max_hours"] == pytest.approx((end - second.start_at).total_seconds() / 3600.0)
    assert third.spec is None
    assert "do not fit" in third.why


def test_without_hours_it_starts_at_once_and_within_them_too() -> None:
    now = datetime(2026, 3, 28, 23, 0, tzinfo=UTC)
    rows = [row(now) | {"validity": {"state": "stale", "why": "changed", "renew": "…"}}]
    assert renewals(due(rows, now), now, None, UTC)[0].start_at == now
    assert renewals(due(rows, now), now, NIGHT, UTC)[0].start_at == now
