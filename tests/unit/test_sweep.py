"""Which level of a duty sweep comes next, of which sweep, and for how long."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from policies.harness.hours import parse_hours
from policies.harness.spec import RunSpec
from policies.harness.sweep import (
    LEVELS,
    Asked,
    Finished,
    Level,
    PastLevel,
    certified_level,
    check_levels,
    level_hours,
    level_spec,
    next_step,
)
from policies.refusal import Refused

SPEC = RunSpec(node="n", rule="trainer", work="cpu")
ASKED = Asked.of(SPEC, (0.1, 0.2, 0.35))
PASS = "no slowdown shown"


def past(index: int, sweep: str = "s1", **changes: Any) -> PastLevel:
    facts: dict[str, Any] = {
        "run": f"{sweep}-{index}",
        "sweep": sweep,
        "index": index,
        "level": ASKED.levels[index],
        "asked": ASKED.digest,
        "rule": "trainer",
        "work": "cpu",
        "state": "ended",
        "ending": PASS,
        "certificate": f"cert-{sweep}-{index}",
        "refused_for": None,
        "section_digest": "d",
        "started_at": f"2026-11-{10 + int(sweep[1:]):02d}T22:{index:02d}:00+00:00",
        "flow_run_id": "f1",
    }
    return PastLevel(**{**facts, **changes})


def step(*levels: PastLevel, me: str = "f2", digest: str = "d", **standing: str) -> Level | Finished:
    return next_step(
        ASKED,
        levels,
        section_digest=digest,
        standing={name.replace("_", "-"): why for name, why in standing.items()},
        flow_run_id=me,
    )


def test_the_first_night_begins_at_the_lowest_level() -> None:
    assert step() == Level(None, 0, 0.1)


def test_the_next_night_goes_on_with_the_next_level_of_the_same_sweep() -> None:
    assert step(past(0)) == Level("s1", 1, 0.2)
    assert step(past(1), past(0)) == Level("s1", 2, 0.35)


def test_an_open_level_goes_on_and_is_no_second_run() -> None:
    found = step(past(0), past(1, state="open", ending=None, certificate=None))
    assert found == Level("s1", 1, 0.2, run="s1-1")


def test_a_pass_that_nobody_offered_is_settled_before_the_next_level() -> None:
    assert step(past(0, certificate=None)) == Level("s1", 0, 0.1, run="s1-0")


@pytest.mark.parametrize("ending", ["slowdown", "inconclusive", "refused", "no_dose", "aborted", "interrupted"])
def test_after_a_level_that_did_not_pass_nothing_more_is_run_and_another_night_repeats(ending: str) -> None:
    levels = (past(0), past(1, ending=ending, certificate=None))
    own = step(*levels, me="f1")
    assert isinstance(own, Finished)
    assert ending in own.why
    again = step(*levels)
    assert isinstance(again, Level)
    assert (again.sweep, again.index, again.repeat_of) == (None, 0, ("s1",))
    assert ending in again.why_new


def test_a_sweep_that_passed_to_the_end_is_finished_and_repeated_another_night() -> None:
    levels = tuple(past(index) for index in range(3))
    assert step(*levels, me="f1") == Finished("s1", "all its levels passed")
    again = step(*levels)
    assert isinstance(again, Level)
    assert again.repeat_of == ("s1",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": "other"}, "section changed"),
        ({"s1_0": "stale: program: a → b"}, "program: a → b"),
        ({"s1_1": "expired: on 2026-11-29"}, "expired"),
    ],
)
def test_a_new_sweep_begins_where_anything_it_rests_on_changed(change: dict[str, str], words: str) -> None:
    found = step(past(0), past(1), **change)  # type: ignore[arg-type]
    assert isinstance(found, Level)
    assert (found.sweep, found.index, found.repeat_of) == (None, 0, ("s1",))
    assert words in found.why_new
    # within a night it stops: a repeat is for another flow run
    assert isinstance(step(past(0), past(1), me="f1", **change), Finished)  # type: ignore[arg-type]


def test_a_pass_without_a_certificate_ends_the_sweep_at_night_and_a_pass_refused_for_repetition_goes_on() -> None:
    failed = step(past(0, certificate=None, refused_for="verdict"), me="f1")
    assert isinstance(failed, Finished)
    assert "kept no certificate" in failed.why
    # its verdict is a pass; whether it certifies is another question, and another night cannot build on it
    assert past(0, certificate=None, refused_for="repetition").passed
    assert isinstance(step(past(0, certificate=None, refused_for="repetition")), Level)


def test_other_levels_windows_or_work_are_another_sweep_and_named_as_earlier_attempts() -> None:
    other = past(0, "s1", asked="something else", ending="slowdown", certificate=None)
    found = step(other)
    assert isinstance(found, Level)
    assert (found.sweep, found.index, found.repeat_of, found.why_new) == (None, 0, ("s1",), "")
    assert step(past(0, "s1", work="gpu")) == Level(None, 0, 0.1)
    assert Asked.of(SPEC, (0.1, 0.2)).digest != ASKED.digest
    assert Asked.of(SPEC.model_copy(update={"margin": 0.05}), ASKED.levels).digest != ASKED.digest
    assert Asked.of(SPEC.model_copy(update={"max_hours": 3.0, "seed": 9}), ASKED.levels).digest == ASKED.digest


def test_no_order_of_nights_and_crashes_runs_a_level_twice_or_skips_one() -> None:
    levels: list[PastLevel] = []
    seen: list[tuple[str, int]] = []
    for night in range(12):
        found = step(*levels, me=f"f{night}")
        if isinstance(found, Finished):
            break
        sweep = found.sweep or f"s{night + 1}"
        if found.run is None:
            assert (sweep, found.index) not in seen
            seen.append((sweep, found.index))
            levels.append(
                past(found.index, sweep, state="open", ending=None, certificate=None, flow_run_id=f"f{night}")
            )
        else:  # a level that was cut goes on, and is ended the night after
            levels = [each for each in levels if each.run != found.run]
            levels.append(past(found.index, sweep, flow_run_id=f"f{night}"))
        for name in {sweep for sweep, _ in seen}:
            indexes = [index for each, index in seen if each == name]
            assert indexes == list(range(len(indexes)))
    assert len(seen) >= 3


def test_the_time_left_caps_a_levels_hours_and_so_its_blocks() -> None:
    hours, zone = parse_hours("22:00-06:30"), ZoneInfo("Europe/Berlin")
    start = datetime(2026, 3, 28, 21, 0, tzinfo=UTC)  # 22:00 there, the night that loses an hour
    assert level_hours(8.0, hours, start, zone) == 7.5
    assert level_hours(2.0, hours, start, zone) == 2.0
    assert level_hours(8.0, None, start, zone) == 8.0
    assert level_hours(8.0, hours, start - timedelta(minutes=1), zone) == 0.0
    late = level_spec(SPEC, 0.2, level_hours(8.0, hours, start + timedelta(hours=5.9), zone), 1)
    assert math.isclose(late.max_hours, 1.6)
    assert (late.n_max, late.duty) == (8, 0.2)
    too_late = level_spec(SPEC, 0.2, level_hours(8.0, hours, start + timedelta(hours=6), zone), 1)
    assert too_late.n_max < too_late.first_look
    with pytest.raises(Refused):
        too_late.checked()


@pytest.mark.parametrize("levels", [[], [0.0, 0.5], [0.5, 0.2], [0.2, 0.2], [0.5, 1.01], [math.nan], [-0.1]])
def test_levels_that_do_not_ascend_within_their_bounds_are_refused(levels: list[float]) -> None:
    with pytest.raises(Refused) as refusal:
        check_levels(levels)
    assert refusal.value.code == "SWEEP_BAD_LEVELS"


def test_the_highest_certified_level_is_the_answer() -> None:
    assert check_levels(list(LEVELS)) == LEVELS
    assert certified_level([past(0), past(1), past(2, ending="slowdown", certificate=None)]) == 0.2
    assert certified_level([past(0), past(1, certificate=None, refused_for="repetition")]) == 0.1
    assert certified_level([]) is None
