"""Which work a certificate covers: its stage, bundle, duty and model, on the devices where program and work met; and what admits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.certificate import FILE_UNKNOWN, VALID_FOR, Certificate, Validity, admits, check_digest, covers, sign
from policies.refusal import Refused
from tests.unit.certificates import DIGEST, GPU, ISSUED, KEY, MODULE, block, certificate, record, state_of


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


def test_the_longest_unit_is_claimed_by_nobody_and_an_old_row_that_names_one_is_read() -> None:
    found = certificate()
    assert [each.longest_unit_s for each in found.work] == [None]
    row = found.model_dump(mode="json")
    row["work"][0]["longest_unit_s"] = 0.4
    old = sign(Certificate.model_validate(row), KEY)
    assert check_digest(Certificate.model_validate(old.model_dump(mode="json")), KEY)
    assert covered(old) == (True, "")


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


def with_file(found: dict[str, Any], file: str | None) -> dict[str, Any]:
    unit = found["on"]["units"][0] | {"model": "qwen", "model_file": file}
    return found | {"on": found["on"] | {"units": [unit]}}


def test_another_file_under_the_models_name_is_not_covered() -> None:
    found = certificate(record(blocks=[with_file(block(number), "98 bytes") for number in (1, 2)]))
    assert check_digest(found, KEY)
    assert covered(found, model="qwen", model_file="98 bytes") == (True, "")
    for now, said in (("97 bytes", "its file 98 bytes → its file 97 bytes"), (None, "→ no file known")):
        held, why = covered(found, model="qwen", model_file=now)
        assert not held
        assert said in why


def test_a_certificate_from_before_files_were_kept_covers_no_model_that_has_one() -> None:
    found = certificate(record(blocks=[with_model(block(number), "qwen") for number in (1, 2)]))
    row = found.model_dump(mode="json")
    for item in row["work"]:
        del item["model_file"]
    assert check_digest(row, KEY), "it was signed without the field"
    old = Certificate.model_validate(row)
    assert check_digest(old, KEY)
    held, why = covered(old, model="qwen", model_file="98 bytes")
    assert not held
    assert "no file known → its file 98 bytes" in why
    assert covered(old, model="qwen")[0], "of a model that is no file nothing more can be asked"


def test_a_model_whose_file_was_replaced_while_it_was_measured_earns_nothing() -> None:
    with pytest.raises(Refused, match="was another one in some of its blocks"):
        certificate(record(blocks=[with_file(block(1), "98 bytes"), with_file(block(2), "97 bytes")]))


def test_a_file_that_is_not_known_is_the_same_as_none_and_earns_nothing() -> None:
    """Of an attempt that an agent took over which did not see it start: ``None`` is a model that is no file, and is the same as itself."""
    found = certificate(record(blocks=[with_model(block(number), "qwen") for number in (1, 2)]))
    held, why = covered(found, model="qwen", model_file=FILE_UNKNOWN)
    assert not held
    assert "which file it was loaded from is not known" in why
    with pytest.raises(Refused, match=r"which file model qwen .* is not known in some of its blocks"):
        certificate(record(blocks=[with_file(block(number), FILE_UNKNOWN) for number in (1, 2)]))


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
