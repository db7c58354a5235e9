"""A certificate holds for 14 days, on a clock that did not go back, while all that it was earned under is the same."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from policies.certificate import (
    VALID_FOR,
    Certificate,
    Fingerprint,
    Gpu,
    Validity,
    admits,
    check_digest,
    covers,
    differences,
    issue,
    sign,
    validity,
)
from policies.refusal import Refused
from policies.section.models import Rule
from tests.unit.certificates import DIGEST, ENDED_AT, GPU, KEY, MODULE, PRINT, PROGRAM, RULE, block, certificate, record

ISSUED = datetime.fromisoformat(ENDED_AT)


def state_of(found: Certificate, now: datetime = ISSUED + timedelta(days=1), **changes: Any) -> Validity:
    there: dict[str, Any] = {"fingerprint": PRINT, "rule": RULE, "duty_device": "gpu", "key": KEY}
    return validity(found, now=now, **(there | changes))


# -- issuing ----------------------------------------------------------------------------------------------------------


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


# -- time -------------------------------------------------------------------------------------------------------------


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


# -- sameness ---------------------------------------------------------------------------------------------------------

CARD = Gpu(name="H200", uuid="GPU-1", memory_bytes=1 << 37, driver="575.1")
UNREAD_CARD = Gpu(name="H200", uuid=None, memory_bytes=None, driver=None)


def cards(**changes: Any) -> dict[str, Any]:
    return {"gpus": (CARD.model_copy(update=changes),)}


def program(**changes: Any) -> dict[str, Any]:
    return {"program": (PROGRAM.model_copy(update=changes),)}


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "cpu": ({"cpu_model": "Xeon"}, "CPU: EPYC 7003 → Xeon"),
    "cores": ({"cores": 8}, "cores: 16 → 8"),
    "memory": ({"memory_gib": 62.8}, "memory: 125.6 GiB → 62.8 GiB"),
    "os": ({"os_name": "ubuntu"}, "OS: debian → ubuntu"),
    "os major": ({"os_major": "13"}, "OS major version: 12 → 13"),
    "agent": ({"agent_version": "0.2.0"}, "agent version: 0.1.0 → 0.2.0"),
    "card swapped": (cards(uuid="GPU-2"), "GPU H200: GPU-1 → gone"),
    "no card": ({"gpus": ()}, "GPU H200: GPU-1 → gone"),
    "driver": (cards(driver="580.2"), "GPU H200 driver: 575.1 → 580.2"),
    "driver unread": (cards(driver=None), "GPU H200 driver: 575.1 → unknown"),
    "card memory": (cards(memory_bytes=5), f"GPU H200 memory in bytes: {1 << 37} → 5"),
    "card unread": ({"gpus": (UNREAD_CARD,)}, "GPU H200: GPU-1 → unknown"),
    "cards unread": ({"gpus": None}, "GPUs: 1 → unknown"),
    "cpu unread": ({"cpu_model": None}, "CPU: EPYC 7003 → unknown"),
    "program unread": ({"program": None}, "program: python3 train.py → unknown"),
    "exe": (program(exe="/opt/python3"), "program: /usr/bin/python3 → /opt/python3"),
    "exe content": (program(exe_sha256="f" * 64), "sha256 of /usr/bin/python3: eeeeeeeeeeee → ffffffffffff"),
    "exe unread": (program(exe_sha256=None), "sha256 of /usr/bin/python3: eeeeeeeeeeee → unknown"),
    "script": (program(script="/srv/new.py"), "script: /srv/train.py → /srv/new.py"),
    "script gone": (program(script=None), "script: /srv/train.py → none"),
    "script content": (program(script_sha256="6" * 64), "sha256 of /srv/train.py: 555555555555 → 666666666666"),
    "arguments": (program(argv=("python3", "x")), "program's arguments: python3 train.py → python3 x"),
    "arguments unread": (program(argv=None), "program's arguments: python3 train.py → unknown"),
    "a program more": (
        {"program": (PROGRAM, PROGRAM.model_copy(update={"argv": ("python3", "x")}))},
        "program: none → python3 x",
    ),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_changed_makes_it_stale_with_old_and_new(what: str) -> None:
    changes, said = CHANGED[what]
    now = PRINT.model_copy(update=changes)
    assert said in differences(PRINT, now)
    found = state_of(certificate(), fingerprint=now)
    assert found.state == "stale"
    assert said in found.why


def test_case_117_every_field_of_the_fingerprint_but_the_kernel_binds() -> None:
    unread = {name: None for name in Fingerprint.model_fields if name not in ("agent_version", "kernel")}
    for name in unread:
        assert differences(PRINT, PRINT.model_copy(update={name: None})) != [], name
    assert differences(PRINT, PRINT.model_copy(update={"kernel": "6.1.0-31"})) == []
    assert differences(PRINT, PRINT) == []


def test_unknown_is_not_the_same_as_unknown() -> None:
    blind = PRINT.model_copy(update={"cpu_model": None, "program": (PROGRAM.model_copy(update={"exe_sha256": None}),)})
    assert differences(blind, blind) == [
        "CPU: unknown → unknown",
        "sha256 of /usr/bin/python3: unknown → unknown",
    ]


def test_memory_that_the_kernel_set_aside_is_no_other_machine() -> None:
    assert differences(PRINT, PRINT.model_copy(update={"memory_gib": 125.4})) == []


def test_a_card_that_changed_its_number_is_the_same_card() -> None:
    cards = tuple(Gpu(name="H200", uuid=f"GPU-{n}", memory_bytes=1, driver="575.1") for n in (1, 2))
    two = PRINT.model_copy(update={"gpus": cards})
    assert differences(two, PRINT.model_copy(update={"gpus": cards[::-1]})) == []
    more = differences(PRINT.model_copy(update={"gpus": cards[:1]}), two)
    assert more == ["GPU H200: none → GPU-2"]


def test_a_program_that_does_not_run_now_is_no_other_program() -> None:
    assert differences(PRINT, PRINT.model_copy(update={"program": ()})) == []


def test_a_single_program_may_stand_without_a_list() -> None:
    raw = PRINT.model_dump() | {"program": PROGRAM.model_dump()}
    assert Fingerprint.model_validate(raw) == PRINT


def test_no_fingerprint_at_all_is_unknown_and_stale() -> None:
    found = state_of(certificate(), fingerprint=None)
    assert (found.state, "unknown" in found.why) == ("stale", True)


def test_of_the_section_the_rule_and_the_duty_device_bind() -> None:
    retagged = RULE.model_copy(update={"tags": ("other",)})
    stricter = Rule.model_validate(RULE.model_dump(exclude_unset=True) | {"pause_fleet": {"scope": "io"}})
    assert state_of(certificate(), rule=retagged).state == "valid"
    assert state_of(certificate(), rule=stricter).why == "rule trainer: as in section version 3 → changed"
    assert state_of(certificate(), rule=None).why == "rule trainer: in force → gone"
    assert state_of(certificate(), duty_device="cpu").why == "duty_device: gpu → cpu"


def test_another_bundle_makes_it_stale() -> None:
    assert state_of(certificate(), bundles={MODULE: DIGEST, "other": "x"}).state == "valid"
    assert (
        state_of(certificate(), bundles={MODULE: "a" * 64}).why
        == f"module {MODULE}: 1.2.0 (bbbbbbbbbbbb) → aaaaaaaaaaaa"
    )
    assert "not ready" in state_of(certificate(), bundles={}).why


def test_revoked_and_edited_ones_say_so_before_anything_else() -> None:
    assert state_of(certificate(), revoked="run r9 ended slowdown").state == "revoked"
    edited = certificate().model_copy(update={"certified_duty": 0.9})
    assert state_of(edited, revoked="x", now=ISSUED + timedelta(days=99)).state == "invalid"


def test_each_names_the_command_that_renews_it() -> None:
    assert (
        state_of(certificate()).renew
        == "cotenant protection ab start mac-01 --rule trainer --work gpu --duty 0.35 --max-hours 8"
    )
    short = certificate(record(window_s=20.0, feed="llmserve/batch", margin=0.05, duty=None), demonstration=True)
    assert state_of(short).renew == (
        "cotenant protection ab start mac-01 --rule trainer --work gpu --window 20 --margin 0.05 --feed llmserve/batch"
        " --max-hours 8"
    )


def test_a_validity_is_plain_json() -> None:
    found = state_of(certificate(), duty_device="cpu").as_dict()
    assert json.loads(json.dumps(found))["differences"] == ["duty_device: gpu → cpu"]


# -- coverage ---------------------------------------------------------------------------------------------------------


def covered(found: Certificate | None = None, **changes: Any) -> tuple[bool, str]:
    asked: dict[str, Any] = {
        "module": MODULE, "stage": "batch", "bundle_digest": DIGEST, "duty": 0.34, "beside": frozenset({GPU}),
    }  # fmt: skip
    answer = covers(found or certificate(), **(asked | changes))
    return answer.holds, answer.why


@pytest.mark.parametrize(
    ("asked", "holds", "why"),
    [
        ({}, True, ""),
        ({"duty": 0.1}, True, ""),
        ({"duty": 0.35}, False, "above the certified 0.34"),
        ({"duty": None}, False, "duty 1 is above"),
        ({"duty": -0.1}, False, "above"),
        ({"duty": float("nan")}, False, "above"),
        ({"stage": "other"}, False, "no part of what was measured (llmserve/batch)"),
        ({"module": "dev.cotenant.sweep", "stage": "grid"}, False, "no part"),
        ({"bundle_digest": "a" * 64}, False, "bundle bbbbbbbbbbbb → aaaaaaaaaaaa"),
        ({"bundle_digest": None}, False, "unknown"),
        ({"longest_unit_s": 0.5}, True, ""),
        ({"longest_unit_s": 0.61}, False, "held the device 0.61 s"),
    ],
)
def test_what_it_covers(asked: dict[str, Any], holds: bool, why: str) -> None:
    answer, said = covered(**asked)
    assert answer is holds
    assert why in said


@pytest.mark.parametrize(
    ("beside", "holds", "why"),
    [
        ({GPU}, True, ""),
        ({"GPU-2"}, False, "on GPU-1, and they meet on GPU-2 now"),
        ({GPU, "GPU-2"}, False, "they meet on GPU-1, GPU-2 now"),
        (None, False, "which devices the program uses now cannot be told"),
    ],
)
def test_it_covers_work_only_where_the_program_was_measured(beside: set[str] | None, holds: bool, why: str) -> None:
    answer, said = covered(beside=None if beside is None else frozenset(beside))
    assert answer is holds
    assert why in said


def test_a_certificate_that_does_not_say_where_the_program_was_covers_nothing_and_is_no_forgery() -> None:
    """One from before devices were kept, signed without them."""
    found = sign(certificate().model_copy(update={"devices": None}), KEY)
    raw = {key: value for key, value in found.model_dump(mode="json").items() if key != "devices"}
    assert check_digest(raw, KEY)
    assert state_of(Certificate.model_validate(raw)).state == "valid"
    assert covered(found) == (False, "it does not say on which devices the program was measured")
    now = certificate().model_dump(mode="json")
    assert not check_digest({key: value for key, value in now.items() if key != "devices"}, KEY), (
        "none may be taken out"
    )
    assert not check_digest(now | {"devices": [GPU, "GPU-2"]}, KEY), "nor one be added"


def off_device(number: int, off: list[str] | None = None, by_device: dict[str, float] | None = None) -> dict[str, Any]:
    """A block whose OFF window saw the program on ``off`` and whose dose was ``by_device``."""
    made = block(number)
    made["off"] = {} if off is None else {"program_on": off}
    made["on"]["units"][0]["by_device"] = {GPU: 0.34} if by_device is None else by_device
    return made


@pytest.mark.parametrize(
    ("odd", "devices"),
    [
        (off_device(2, []), None),
        (off_device(2), None),
        (off_device(2, ["GPU-2"]), None),
        (off_device(2, [GPU], {"GPU-2": 0.34}), None),
        (off_device(2, [GPU], {GPU: 0.2, "GPU-2": 0.14}), None),
        (off_device(2, [GPU, "GPU-2"], {GPU: 0.34, "GPU-2": 0.34}), (GPU,)),
        (off_device(2, [], {}) | {"state": "left_out"}, (GPU,)),
    ],
    ids=["idle", "not kept", "elsewhere", "work elsewhere", "dose spread out", "more in one block", "left out"],
)
def test_no_certificate_from_blocks_in_which_program_and_work_did_not_meet(
    odd: dict[str, Any], devices: tuple[str, ...] | None
) -> None:
    """A program that left the device alone in one counted block shows nothing of the time when it uses it."""
    run = record(blocks=[block(1), odd])
    if devices is not None:
        assert certificate(run).devices == devices
        return
    with pytest.raises(Refused, match="on no device"):
        certificate(run)


def test_work_off_the_device_needs_no_device() -> None:
    blocks = [off_device(number, [], {}) for number in (1, 2)]
    assert certificate(record(blocks=blocks)).devices == ()


def test_case_103_it_states_the_longest_unit_that_was_measured() -> None:
    assert certificate().work[0].longest_unit_s == 0.4
    assert certificate(longest_unit_s=None).work[0].longest_unit_s is None
    assert covered(certificate(longest_unit_s=None), longest_unit_s=9.0) == (True, "")


def with_model(found: dict[str, Any], *models: str | None) -> dict[str, Any]:
    """A block whose dose came from units of these models, in equal parts."""
    unit = found["on"]["units"][0]
    units = [unit | {"model": model, "share": unit["share"] / len(models)} for model in models]
    return found | {"on": found["on"] | {"units": units}}


def test_a_certificate_is_of_the_models_that_were_measured() -> None:
    """A small model takes less of the device at a duty than a large one, and a stand-in nothing of it: each is work of its own."""
    found = certificate(record(blocks=[with_model(block(number), "qwen-4b") for number in (1, 2)]))
    assert [each.model for each in found.work] == ["qwen-4b"]
    assert covered(found, model="qwen-4b") == (True, "")
    for model in ("qwen-9b", None):
        held, why = covered(found, model=model)
        assert not held
        assert "qwen-4b →" in why


def test_work_that_named_no_model_covers_none_that_does() -> None:
    found = certificate()
    assert covered(found) == (True, "")
    assert covered(found, model="qwen-9b")[0] is False


def test_a_model_that_was_hardly_there_is_not_certified() -> None:
    several = [with_model(block(number), "a", "b") for number in (1, 2)]
    found = certificate(record(blocks=several))
    assert [each.model for each in found.work] == ["a", "b"]
    assert covered(found, model="b")[0]
    once = [*(with_model(block(number), "a") for number in range(1, 12)), with_model(block(12), "b")]
    assert [each.model for each in certificate(record(blocks=once)).work] == ["a"]


@given(duty=st.floats(0, 1))
def test_no_duty_above_the_certified_one_is_ever_covered(duty: float) -> None:
    assert covered(duty=duty)[0] == (duty <= 0.34 + 1e-9)


def test_a_demonstration_admits_only_where_the_section_accepts_those() -> None:
    demonstration = certificate(demonstration=True)
    good = state_of(demonstration)
    assert good.state == "valid"
    assert not admits(demonstration, good, accept_demonstration=False).holds
    assert admits(demonstration, good, accept_demonstration=True).holds
    assert admits(certificate(), state_of(certificate()), accept_demonstration=False).holds


@pytest.mark.parametrize(
    "state",
    [
        state_of(certificate(), ISSUED + VALID_FOR),
        state_of(certificate(), duty_device="cpu"),
        state_of(certificate(), revoked="x"),
    ],
)
def test_only_a_valid_one_admits(state: Validity) -> None:
    answer = admits(certificate(), state, accept_demonstration=True)
    assert not answer.holds
    assert state.state in answer.why


def test_an_impossible_duty_is_no_certificate() -> None:
    for duty in (0.0, 1.01, float("nan")):
        with pytest.raises(ValidationError):
            issue(record(), decided={"R": 1, "lo": 1, "hi": 1, "n": 8}, duty=duty, fingerprint=PRINT, rule=RULE,
                  duty_device="gpu", demonstration=False, longest_unit_s=None, now=ISSUED, key=KEY)  # fmt: skip


def test_a_certificate_of_another_node_is_none_here() -> None:
    """A home that was copied under another name brings its key along."""
    assert state_of(certificate(), node="mac-01").state == "valid"
    found = state_of(certificate(), node="mac-02")
    assert (found.state, "mac-01" in found.why) == ("invalid", True)
    assert not admits(certificate(), found, accept_demonstration=True).holds


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
