"""A run's parameters: what is refused before anything starts, and the numbers that follow."""

from __future__ import annotations

import math

import pytest

from policies.harness.spec import RunSpec
from policies.refusal import Refused


def spec(**changes: object) -> RunSpec:
    return RunSpec.model_validate({"node": "local", "rule": "trainer"} | changes)


def test_the_defaults_are_eight_hours_of_forty_blocks() -> None:
    asked = spec().checked()
    assert (asked.n_max, asked.looks[0], asked.looks[-1], asked.reference_s) == (40, 8, 40, 60.0)
    assert not asked.demonstration


def test_the_demo_has_twelve_blocks_at_most() -> None:
    asked = spec(window_s=8, washout_s=2, margin=0.1, max_hours=0.067).checked()
    assert (asked.n_max, asked.looks) == (12, (8, 12))
    assert asked.demonstration


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"blocks": 0}, "--blocks"),
        ({"margin": 1.5}, "--margin"),
        ({"margin": 0.0}, "--margin"),
        ({"margin": math.nan}, "--margin"),
        ({"duty": 0.0}, "--duty"),
        ({"duty": 1.01}, "--duty"),
        ({"window_s": 1}, "--window"),
        ({"window_s": math.inf}, "--window"),
        ({"washout_s": -1}, "--washout"),
        ({"max_hours": 0}, "--max-hours"),
        ({"max_hours": 1.5}, "--max-hours"),
        ({"first_look": 10}, "--first-look"),
        ({"first_look": 4}, "--first-look"),
        ({"first_look": 44}, "--max-hours"),
    ],
)
def test_a_parameter_that_cannot_work_is_refused_by_name_with_what_would(
    changes: dict[str, object], option: str
) -> None:
    with pytest.raises(Refused) as refused:
        spec(**changes).checked()
    assert refused.value.what.startswith(option)
    assert refused.value.remedy


def test_what_the_refusal_of_max_hours_offers_works() -> None:
    with pytest.raises(Refused) as refused:
        spec(max_hours=1.5).checked()
    hours = float(refused.value.remedy.split()[2])
    assert spec(max_hours=hours).checked().n_max == 8


def test_n_max_is_a_multiple_of_four_and_at_most_two_hundred() -> None:
    assert spec(max_hours=2.3).n_max == 8
    assert spec(window_s=60, washout_s=20, max_hours=100).n_max == 200
