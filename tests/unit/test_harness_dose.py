"""The dose: without work there is nothing to certify."""

from __future__ import annotations

import math

import pytest
from harness_rows import block, window
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.harness.dose import certified_duty, judge_dose
from policies.harness.rows import BlockRow, UnitDose


def test_case_094_work_that_hardly_loads_the_device_is_no_dose() -> None:
    dose = judge_dose(window(dose=0.03 * 0.5), duty=0.5)
    assert not dose.held
    assert "by the meter" in (dose.why or "")


@pytest.mark.parametrize(
    ("ran_s", "share", "duty", "held"),
    [
        (300.0, 0.24, 0.3, True),
        (300.0, 0.2399, 0.3, False),
        (270.0, 0.3, 0.3, True),
        (269.0, 0.3, 0.3, False),
        (300.0, 0.05, None, True),
        (300.0, 0.0499, None, False),
        (300.0, 0.0, None, False),
        (300.0, 0.56, 0.7, True),  # 0.8 * 0.7 is 0.5599999999999999 or 0.56 by the order of the factors
        (300.0, 0.08, 0.1, True),
    ],
)
def test_thresholds(ran_s: float, share: float, duty: float | None, held: bool) -> None:
    assert judge_dose(window(work_ran_s=ran_s, dose=share), duty).held is held


def test_an_unknown_share_is_no_dose() -> None:
    dose = judge_dose(window(dose=None, dose_unknown_reason="first reading"), 0.3)
    assert (dose.held, dose.share) == (False, None)
    assert "first reading" in (dose.why or "")
    assert not judge_dose(window(dose=math.nan), None).held
    assert not judge_dose(window(length_s=0.0), 0.3).held


def rows(*shares: float | None):
    return [block(i).model_copy(update={"on": window(i, dose=share)}) for i, share in enumerate(shares, 1)]


@pytest.mark.parametrize(
    ("shares", "duty", "certified"),
    [
        ((0.3, 0.3, 0.3), 0.3, 0.3),
        ((0.29, 0.29, 0.29), 0.29, 0.29),
        ((0.299, 0.299), 0.3, 0.29),
        ((0.35, 0.36), 0.35, 0.35),
        ((0.1, 0.2), 0.2, 0.15),
        ((0.437,), None, 0.43),
        ((1.7,), None, 1.0),
        ((0.005,), None, 0.0),
    ],
)
def test_certified_duty_is_the_smaller_rounded_down(shares, duty, certified) -> None:
    assert certified_duty(rows(*shares), duty) == certified


def test_an_unknown_share_certifies_nothing() -> None:
    assert certified_duty(rows(0.3, None), 0.3) is None
    assert certified_duty([], 0.3) is None
    assert certified_duty([block(1).model_copy(update={"on": None})], 0.3) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 100), st.integers(1, 40))
def test_a_duty_held_exactly_is_certified_exactly(hundredths: int, count: int) -> None:
    duty = hundredths / 100
    assert certified_duty(rows(*[duty] * count), duty) == duty


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.0, 1.5), min_size=1, max_size=20), st.one_of(st.none(), st.floats(0.01, 1.0)))
def test_never_more_than_asked_metered_or_one(shares: list[float], duty: float | None) -> None:
    certified = certified_duty(rows(*shares), duty)
    assert certified is not None
    assert 0.0 <= certified <= min(1.0, math.fsum(shares) / len(shares), duty or 1.0) + 1e-9
    assert round(certified * 100) / 100 == certified


def of_cores(*units: tuple[str, float, float]) -> list[BlockRow]:
    """Blocks whose ON windows held these units: (stage, share, cores)."""
    doses = tuple(
        UnitDose(attempt=stage, module="m", stage=stage, share=share, cores=cores, by_device={"cpu": share})
        for stage, share, cores in units
    )
    on = window(dose=math.fsum(share for _, share, _ in units), units=doses)
    return [block(number).model_copy(update={"on": on}) for number in range(1, 9)]


@pytest.mark.parametrize(
    ("units", "duty", "certified"),
    [
        ([("a", 0.3, 1.0)], 0.3, 0.3),
        ([("a", 0.3, 8.0)], 0.3, 0.3),
        ([("a", 0.2, 4.0), ("b", 0.1, 4.0)], 0.3, 0.3),
        # 0.9 of one core and 0.1 of eight: 1.7 cores were busy beside the program, and no eight
        ([("a", 0.9, 1.0), ("b", 0.1, 8.0)], None, 0.21),
        ([("a", 0.9, 1.0), ("b", 0.12, 8.0)], None, 0.23),
        ([("a", 0.15, 1.0), ("b", 0.15, 8.0)], 0.3, 0.16),
        # what was hardly there is not certified, and bounds nothing
        ([("a", 0.5, 1.0), ("b", 0.01, 8.0)], 0.5, 0.5),
    ],
    ids=["one core", "eight", "alike", "at the edge", "uncapped and unlike", "unlike", "hardly there"],
)
def test_no_stage_is_certified_for_more_cores_than_the_whole_dose_had(
    units: list[tuple[str, float, float]], duty: float | None, certified: float
) -> None:
    assert certified_duty(of_cores(*units), duty) == certified
