"""What a certificate says and is signed under: what it was earned with, nothing that can be edited unseen, 14 days on any clock."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from policies.certificate import VALID_FOR, Certificate, check_digest, issue, sign
from policies.refusal import Refused
from tests.unit.certificates import ISSUED, KEY, PRINT, RULE, block, certificate, record, state_of


def test_it_names_what_it_was_earned_with() -> None:
    found = certificate()
    assert (found.node, found.rule, found.run, found.section_version) == ("mac-01", "trainer", "r1", 3)
    assert (found.R, found.lo, found.hi, found.margin, found.blocks) == (0.994, 0.986, 1.003, 0.02, 12)
    assert (found.duty_asked, found.certified_duty) == (0.35, 0.34)
    assert found.issued_at == ISSUED
    assert found.expires_at == ISSUED + timedelta(days=14)
    assert [attempt.run for attempt in found.attempts_before] == ["r0"]
    assert found.newest_self is None


def test_case_111_it_carries_the_newest_run_without_work() -> None:
    found = certificate()
    assert found.newest_null is not None
    assert (found.newest_null.run, found.newest_null.R, found.newest_null.lo) == ("n1", 1.001, 0.99)


def test_only_work_that_was_part_of_the_dose_is_named() -> None:
    assert [(item.short, item.stage) for item in certificate().work] == [("llmserve", "batch")]
    grid = block(2, 0.1)
    grid["on"]["units"][0] |= {"module": "dev.cotenant.sweep", "stage": "grid"}
    both = certificate(record(blocks=[block(1), grid]))
    assert [item.short for item in both.work] == ["llmserve", "sweep"]


@pytest.mark.parametrize(
    "blocks",
    [[], [block(1, None)], [block(1, 0.0)], [block(1, stage="other")], [block(1) | {"state": "left_out"}]],
)
def test_case_094_without_a_metered_dose_there_is_no_certificate(blocks: list[dict[str, Any]]) -> None:
    with pytest.raises(Refused, match="metered"):
        certificate(record(blocks=blocks))


def test_without_a_fingerprinted_program_there_is_no_certificate() -> None:
    for program in ((), None):
        with pytest.raises(Refused, match="fingerprinted"):
            certificate(fingerprint=PRINT.model_copy(update={"program": program}))


def test_it_survives_being_stored_as_json() -> None:
    found = certificate()
    row = json.loads(json.dumps(found.model_dump(mode="json")))
    assert Certificate.model_validate(row) == found
    assert check_digest(row, KEY)
    assert check_digest(Certificate.model_validate(row), KEY)


def _leaves(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, (*at, key))]
    if isinstance(value, list) and value:
        return [leaf for index, inner in enumerate(value) for leaf in _leaves(inner, (*at, index))]
    return [at]


ROW = certificate().model_dump(mode="json")


@pytest.mark.parametrize("path", _leaves(ROW), ids=lambda path: ".".join(map(str, path)))
def test_no_field_can_be_edited_unseen(path: tuple[Any, ...]) -> None:
    row = json.loads(json.dumps(ROW))
    inner = row
    for key in path[:-1]:
        inner = inner[key]
    was = inner[path[-1]]
    inner[path[-1]] = was + 1 if isinstance(was, int | float) and not isinstance(was, bool) else f"{was}x"
    assert not check_digest(row, KEY)


def test_a_field_more_or_less_another_key_and_a_nan_do_not_fit() -> None:
    assert not check_digest(ROW | {"note": "trust me"}, KEY)
    assert not check_digest({key: value for key, value in ROW.items() if key != "demonstration"}, KEY)
    assert not check_digest({key: value for key, value in ROW.items() if key != "digest"}, KEY)
    assert not check_digest(ROW, b"another key, as long")
    assert not check_digest(ROW | {"R": float("nan")}, KEY)
    assert not check_digest(ROW | {"digest": "ü"}, KEY)
    assert check_digest(ROW, KEY)


def test_a_short_key_signs_nothing() -> None:
    for attempt in (lambda: sign(certificate(), b""), lambda: check_digest(ROW, b"short")):
        with pytest.raises(ValueError, match="at least 16"):
            attempt()


def test_a_longer_life_cannot_be_written_into_one() -> None:
    with pytest.raises(ValidationError, match="14 days after"):
        Certificate.model_validate(ROW | {"expires_at": "2027-01-01T00:00:00Z"})


@pytest.mark.parametrize(
    ("after", "state"),
    [
        (timedelta(microseconds=-1), "invalid"),
        (timedelta(0), "valid"),
        (VALID_FOR - timedelta(microseconds=1), "valid"),
        (VALID_FOR, "expired"),
        (timedelta(days=400), "expired"),
    ],
)
def test_case_117_fourteen_days_from_the_verdict(after: timedelta, state: str) -> None:
    assert state_of(certificate(), ISSUED + after).state == state


def test_a_clock_set_back_makes_it_invalid_not_longer() -> None:
    found = state_of(certificate(), ISSUED - timedelta(days=3))
    assert found.state == "invalid"
    assert "2026-03-17 06:30 UTC" in found.why
    assert "before it was issued (2026-03-20 06:30 UTC)" in found.why


# Each span crosses a change of the clocks, where the zone has one; 14 days are 336 hours everywhere.
NIGHTS = [
    ("Europe/Berlin", datetime(2026, 3, 20, 1, 30)),  # noqa: DTZ001 - the wall clock of that zone
    ("Europe/Berlin", datetime(2026, 10, 20, 2, 30)),  # noqa: DTZ001
    ("Asia/Kolkata", datetime(2026, 3, 20, 1, 30)),  # noqa: DTZ001
    ("America/New_York", datetime(2026, 3, 1, 2, 30)),  # noqa: DTZ001
    ("America/New_York", datetime(2026, 10, 25, 1, 30)),  # noqa: DTZ001
]


def test_a_certificate_that_was_seen_after_its_time_stays_expired() -> None:
    found, back = certificate(), ISSUED + timedelta(days=1)
    assert state_of(found, back, seen=ISSUED + VALID_FOR - timedelta(seconds=1)).state == "valid"
    late = state_of(found, back, seen=ISSUED + VALID_FOR)
    assert (late.state, "set back" in late.why) == ("expired", True)
    assert state_of(found, ISSUED - timedelta(hours=1), seen=ISSUED + timedelta(days=1)).state == "invalid"


@pytest.mark.parametrize(("zone", "wall"), NIGHTS)
def test_case_119_it_expires_at_the_same_instant_in_every_zone(zone: str, wall: datetime) -> None:
    issued = wall.replace(tzinfo=ZoneInfo(zone))
    found = certificate(record(ended_at=issued.isoformat()))
    # the end is taken from a count of seconds since 1970, which knows no zone
    end_s = issued.timestamp() + 14 * 86_400
    assert found.expires_at.timestamp() == end_s
    assert found.issued_at.utcoffset() == timedelta(0)
    for shown in (ZoneInfo(zone), UTC, ZoneInfo("Pacific/Auckland")):
        last = datetime.fromtimestamp(end_s - 1, shown)
        assert state_of(found, last).state == "valid"
        assert state_of(found, datetime.fromtimestamp(end_s, shown)).state == "expired"


def test_case_119_wall_clock_arithmetic_would_be_an_hour_off() -> None:
    """What the conversion to UTC is for: in one zone a datetime plus 14 days ignores the night in between."""
    berlin = ZoneInfo("Europe/Berlin")
    issued = datetime(2026, 3, 20, 1, 30, tzinfo=berlin)
    by_wall_clock = issued + timedelta(days=14)
    assert by_wall_clock.timestamp() - issued.timestamp() == 14 * 86_400 - 3600
    for found in (
        certificate(record(ended_at=issued.isoformat())),
        certificate(record(ended_at=None), now=issued),
    ):
        assert found.expires_at.timestamp() - by_wall_clock.timestamp() == 3600


def test_case_119_the_two_half_past_twos_of_an_autumn_night_are_told_apart() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first, second = (datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1))
    found = certificate(record(ended_at=second.isoformat()))
    assert state_of(found, first).state == "invalid"
    assert state_of(found, second).state == "valid"


def test_case_119_naive_dates_are_refused() -> None:
    naive = datetime(2026, 3, 21)  # noqa: DTZ001
    with pytest.raises(ValueError, match="no instant"):
        state_of(certificate(), naive)
    with pytest.raises(ValueError, match="no instant"):
        certificate(record(ended_at="2026-03-20T06:30:00"))
    with pytest.raises(ValueError, match="no instant"):
        certificate(record(ended_at=None), now=naive)
    with pytest.raises(ValidationError, match="timezone"):
        Certificate.model_validate(ROW | {"issued_at": "2026-03-20T06:30:00"})


def test_one_of_which_it_is_not_known_what_spoke_against_it_is_stale() -> None:
    assert state_of(certificate()).state == "valid"
    found = state_of(certificate(), forgotten="restored: from a backup")
    assert (found.state, found.why) == ("stale", "restored: from a backup")
    changed = state_of(certificate(), forgotten="restored: from a backup", duty_device="cpu")
    assert changed.differences == ("restored: from a backup", "duty_device: gpu → cpu")
    assert state_of(certificate(), forgotten="restored", revoked="harm").state == "revoked"


def test_an_impossible_duty_is_no_certificate() -> None:
    for duty in (0.0, 1.01, float("nan")):
        with pytest.raises(ValidationError):
            issue(record(), decided={"R": 1, "lo": 1, "hi": 1, "n": 8}, duty=duty, fingerprint=PRINT, rule=RULE,
                  duty_device="gpu", demonstration=False, now=ISSUED, key=KEY)  # fmt: skip


def test_it_says_what_of_the_program_it_cannot_name_by_content() -> None:
    """And one from before that was kept is as it was signed."""
    words = "it runs bin/coverage, a command of a package: measure anew when that changes"
    kept = certificate(record(program={"processes": [], "unbound": [words]}))
    assert kept.unbound == (words,)
    before = certificate()
    assert before.unbound is None
    signed = sign(before, KEY)
    row = {name: value for name, value in signed.model_dump(mode="json").items() if name != "unbound"}
    assert check_digest(row, KEY)
    assert check_digest(Certificate.model_validate(row), KEY)
    assert not check_digest(row | {"unbound": ["nothing"]}, KEY)
