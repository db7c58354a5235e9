"""Repetition must not manufacture certificates: what a failed run costs, and what harm takes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.certificate import Forgotten, PastRun, check_when, comes_after, revocations, standing, unreadable_runs
from tests.unit.certificates import MODULE, block, certificate, record

DAY_0 = datetime(2026, 11, 1, tzinfo=UTC)
PASS = "no slowdown shown"
FAILED = ["slowdown", "inconclusive", "refused", "no_dose", "harm_suspected", "interrupted", "aborted"]


def run(day: float, ending: str = PASS, **changes: Any) -> dict[str, Any]:
    """A run that ended ``day`` days after the first of November."""
    return record(f"r{day:g}", ending=ending, ended_at=(DAY_0 + timedelta(days=day)).isoformat(), **changes)


def may(now: dict[str, Any], *before: dict[str, Any]) -> bool:
    return standing(now, before).may_certify


def test_a_first_pass_certifies() -> None:
    assert may(run(5))
    assert may(run(5), run(1))


@pytest.mark.parametrize("ending", FAILED)
def test_after_any_ending_but_a_pass_it_takes_two_in_a_row(ending: str) -> None:
    failed = run(1, ending)
    alone = standing(run(2), [failed])
    assert (alone.may_certify, alone.passes_needed) == (False, 1)
    assert f"run r1 for the same rule, work and duty ended {ending}" in alone.why
    assert alone.remedy
    assert may(run(3), failed, run(2))
    assert may(run(4), failed, run(2), run(3))


def test_what_was_forgotten_counts_as_a_failure_of_anything_and_what_came_before_it_as_nothing() -> None:
    lost = Forgotten("restored", frozenset({"r1", "r2"}))
    first = standing(run(3), [run(1), run(2)], lost)
    assert (first.may_certify, first.passes_needed) == (False, 1)
    assert first.why.startswith("restored, so it takes two passes in a row")
    assert standing(run(4), [run(1), run(2), run(3)], lost).may_certify
    assert standing(run(5), [run(3), run(4)], lost).may_certify, "and then one is enough"
    assert not standing(run(5), [run(3), run(4, "slowdown")], lost).may_certify
    assert not standing(run(2), [run(1)], lost).may_certify, "it is from before itself"


def test_a_failure_between_two_passes_starts_the_row_again() -> None:
    assert not may(run(4), run(1, "slowdown"), run(2), run(3, "inconclusive"))
    assert may(run(5), run(1, "slowdown"), run(2), run(3, "inconclusive"), run(4))


def test_the_two_passes_lie_within_fourteen_days() -> None:
    assert may(run(16), run(1, "slowdown"), run(2))
    assert not may(run(16.1), run(1, "slowdown"), run(2))
    assert may(run(17), run(1, "slowdown"), run(2), run(16.1))


def test_the_fourteen_days_are_not_made_short_by_a_clock_that_was_ahead_once() -> None:
    ahead = DAY_0 + timedelta(days=400)  # each later run is put right after it
    failed, first, second = (
        run(day, ending) | {"came_at": (ahead + timedelta(microseconds=number)).isoformat()}
        for number, (day, ending) in enumerate([(1, "slowdown"), (2, PASS), (90, PASS)])
    )
    assert not may(second, failed, first)
    assert may(run(3) | {"came_at": second["came_at"]}, failed, first)


def test_a_failure_is_not_forgotten_with_time() -> None:
    assert not may(run(300), run(1, "slowdown"))


def test_which_run_came_first_is_not_what_the_wall_clock_said() -> None:
    """The clock was set back by three days after a failure, and once more after the first pass."""
    failed = run(10, "slowdown") | {"came_at": (DAY_0 + timedelta(days=10)).isoformat()}
    first = run(7) | {"came_at": (DAY_0 + timedelta(days=10, seconds=1)).isoformat()}
    second = run(4) | {"came_at": (DAY_0 + timedelta(days=10, seconds=2)).isoformat()}
    assert not may(first, failed)
    assert may(second, failed, first)
    assert comes_after(second, first)
    assert not comes_after(first, second)


def test_a_run_whose_time_cannot_be_told_is_neither_before_nor_after_another() -> None:
    check_when(run(1))
    for at in ("yesterday", "2026-11-30T12:00:00", None):
        timeless = run(1) | {"came_at": at, "ended_at": at}
        with pytest.raises(ValueError, match="run r1: when it ended cannot be told"):
            check_when(timeless)
        with pytest.raises(ValueError, match="run r1: when it ended cannot be told"):
            comes_after(run(2), timeless)


def test_once_two_passed_in_a_row_the_next_stands_alone_again() -> None:
    assert may(run(100), run(1, "slowdown"), run(2), run(3))
    assert not may(run(101), run(1, "slowdown"), run(2), run(3), run(100, "inconclusive"))


def test_an_abort_before_anything_was_judged_costs_nothing() -> None:
    assert may(run(2), run(1, "aborted", looks=[]))
    assert not may(run(2), run(1, "aborted", looks=[{"n": 8}]))
    assert may(run(4), run(1, "slowdown"), run(2), run(3, "aborted", looks=[]))


def test_whoever_stops_a_run_whose_blocks_could_be_judged_has_seen_them() -> None:
    """The flow that would have kept the look was ended between the last block and it."""
    assert not may(run(2), run(1, "aborted", looks=[]) | {"reached_look": True})
    assert may(run(3), run(1, "aborted", looks=[]) | {"reached_look": True}, run(2))
    assert not may(run(2), left_open(1, None) | {"reached_look": True})
    assert may(run(2), left_open(1, PASS) | {"reached_look": True})


def test_a_pass_with_a_wider_margin_is_no_pass_of_the_two() -> None:
    """Else a run that cannot but pass, at a margin of 90 %, would wipe a slowdown away."""
    failed = run(1, "slowdown", margin=0.02)
    assert not may(run(3, margin=0.02), failed, run(2, margin=0.9))
    assert may(run(3, margin=0.02), failed, run(2, margin=0.02))
    assert may(run(3, margin=0.02), failed, run(2, margin=0.01))
    assert may(run(4, margin=0.02), failed, run(2, margin=0.02), run(3, margin=0.9)), "it breaks no row either"


def test_a_record_that_does_not_say_whether_it_was_judged_counts() -> None:
    unsaid = run(1, "aborted")
    del unsaid["looks"]
    assert not may(run(2), unsaid)


@pytest.mark.parametrize(
    "other",
    [
        run(1, "slowdown", rule="renderer"),
        run(1, "slowdown", duty=0.5),
        run(1, "slowdown", duty=None),
        run(1, "slowdown", kind="null"),
        run(1, "slowdown", kind="self"),
        run(1, "slowdown") | {"spec": run(1)["spec"] | {"work": "cpu"}, "work": []},
        run(1, "slowdown") | {"state": "open", "ending": None, "ended_at": None, "looks": []},
    ],
)
def test_other_things_do_not_stand_in_the_way(other: dict[str, Any]) -> None:
    assert may(run(2), other)


def test_calling_the_same_stage_by_another_name_is_no_way_around() -> None:
    stage = [item for item in record()["work"] if item["module"] == MODULE]
    failed = run(1, "slowdown") | {"work": stage}
    for name in ("llmserve", "llmserve/batch", f"{MODULE}/batch", "all"):
        renamed = run(2) | {"work": stage}
        renamed["spec"] = renamed["spec"] | {"work": name}
        assert not may(renamed, failed)


def test_a_later_run_is_not_held_against_an_earlier_one() -> None:
    assert may(run(2), run(3, "slowdown"))


def test_passes_with_short_windows_count_for_demonstrations_only() -> None:
    short = {"window_s": 20.0}
    assert not may(run(3), run(1, "slowdown"), run(2, **short))
    assert may(run(3, **short), run(1, "slowdown"), run(2, **short))
    assert may(run(3, **short), run(1, "slowdown"), run(2))
    assert not may(run(3), run(1, "slowdown", **short))
    assert may(run(4), run(1, "slowdown"), run(2), run(3, **short))


def test_what_did_not_pass_does_not_certify() -> None:
    assert not may(run(1, "inconclusive"))


def test_dates_without_an_offset_are_refused() -> None:
    with pytest.raises(ValueError, match="without an offset"):
        PastRun.of(run(1) | {"ended_at": "2026-11-01T00:00:00"})


@settings(max_examples=80, deadline=None)
@given(endings=st.lists(st.sampled_from([PASS, PASS, "slowdown", "inconclusive", "aborted"]), max_size=12))
def test_no_history_certifies_on_one_pass_after_a_failure(endings: list[str]) -> None:
    """Whatever came before: a pass certifies only if nothing failed yet, two in a row passed, or now pass."""
    history = [run(day, ending) for day, ending in enumerate(endings)]
    now = run(len(endings))
    last_failed = max((day for day, ending in enumerate(endings) if ending != PASS), default=-1)
    since = len(endings) - last_failed  # passes since, this one among them
    expected = last_failed < 0 or since >= 2
    assert standing(now, history).may_certify is expected
    assert standing(now, reversed(history)).may_certify is expected


# -- what harm takes back ---------------------------------------------------------------------------------------------


def harmed(
    ending: str = "slowdown", duty: float | None = 0.35, share: float | None = 0.34, **changes: Any
) -> dict[str, Any]:
    return record("bad", ending=ending, duty=duty, blocks=[block(1, share)], **changes)


def revoked(bad: dict[str, Any], *duties: float) -> list[float]:
    kept = [certificate(record(f"c{duty}", duty=duty), duty=duty) for duty in duties]
    return [found.certified_duty for found in revocations(bad, kept)]


@pytest.mark.parametrize("ending", ["slowdown", "harm_suspected"])
def test_harm_takes_back_what_is_certified_at_that_duty_or_more(ending: str) -> None:
    assert revoked(harmed(ending), 0.1, 0.33, 0.34, 0.35, 0.8) == [0.34, 0.35, 0.8]


@pytest.mark.parametrize("ending", [PASS, "inconclusive", "refused", "no_dose", "aborted", "interrupted"])
def test_other_endings_take_nothing_back(ending: str) -> None:
    assert revoked(harmed(ending), 0.1, 0.8) == []


def test_a_certificate_of_the_same_duty_asked_falls_although_it_held_less() -> None:
    """Asked for 0.35 it held 0.31 and passed; asked for 0.35 again it held 0.34 and did harm."""
    kept = certificate(record("c", duty=0.35), duty=0.31)
    assert revocations(harmed(), [kept]) == [kept]


def test_without_a_duty_the_metered_share_counts_and_without_a_share_everything_falls() -> None:
    assert revoked(harmed(duty=None, share=0.5), 0.2, 0.5, 0.8) == [0.5, 0.8]
    assert revoked(harmed(duty=None, share=None), 0.2, 0.8) == [0.2, 0.8]
    assert revoked(harmed(duty=None) | {"blocks": []}, 0.2) == [0.2]


def test_other_rules_and_other_work_keep_theirs() -> None:
    kept = certificate()
    assert revocations(harmed(rule="renderer"), [kept]) == []
    elsewhere = harmed()
    elsewhere["spec"] = elsewhere["spec"] | {"work": "cpu"}
    elsewhere["work"] = [{"module": "dev.other", "short": "other", "version": "1", "digest": "0", "stage": "x"}]
    assert revocations(elsewhere, [kept]) == []
    renamed = harmed()
    renamed["spec"] = renamed["spec"] | {"work": "llmserve/batch"}
    assert revocations(renamed, [kept]) == [kept]


@pytest.mark.parametrize(
    "spoilt",
    [
        {"work": 5},
        {"blocks": [{"state": "counted", "on": "damaged"}]},
        {"spec": {"rule": "trainer", "kind": "ab", "new": 1}},
    ],
)
def test_harm_that_cannot_be_understood_takes_back_all_of_its_rule(spoilt: dict[str, Any]) -> None:
    assert revoked(harmed() | spoilt, 0.2, 0.8) == [0.2, 0.8]
    assert revoked(harmed() | spoilt | {"ending": "interrupted"}, 0.8) == []
    of_another = harmed() | spoilt
    of_another["spec"] = of_another["spec"] | {"rule": "renderer", "new": 1}
    assert revoked(of_another, 0.8) == []


def test_runs_without_work_take_nothing_back() -> None:
    assert revoked(harmed(kind="null"), 0.8) == []


def left_open(day: float, verdict: str | None) -> dict[str, Any]:
    """A run that nobody drives any more, and whose newest look gave this verdict."""
    at = (DAY_0 + timedelta(days=day)).isoformat()
    looks = [] if verdict is None else [{"n": 8, "verdict": verdict}]
    return run(day) | {"state": "open", "ending": None, "ended_at": None, "driven_at": at, "looks": looks}


def test_a_run_left_open_after_a_look_that_was_no_pass_counts_against_the_next() -> None:
    """Killing the flow instead of letting it end would else make as many tries as one likes."""
    tried = left_open(1, "inconclusive")
    assert "interrupted" in standing(run(2), [tried]).why
    assert may(run(3), tried, run(2))
    assert may(run(2), left_open(1, None)), "before the first look nothing was seen"
    assert may(run(2), left_open(1, PASS)), "it passed, and only its end was not told"
    assert may(run(2), left_open(3, "inconclusive")), "what is tried later is judged with the later ones"
    for malformed in ({}, {"n": 8}, "no look"):
        assert not may(run(2), left_open(1, PASS) | {"looks": [malformed]}), (
            "a look that cannot be understood is no pass"
        )


DAMAGES: list[dict[str, Any]] = [{"ended_at": "yesterday", "came_at": None}, {"work": [{}]}, {"work": 7}]


def damaged(day: float, rule: str = "trainer", **damage: Any) -> dict[str, Any]:
    found = run(day, "slowdown") | damage
    return found | {"spec": {**found["spec"], "rule": rule}}


@pytest.mark.parametrize("damage", [*DAMAGES, {"spec": {"rule": "trainer", "of": "another version"}}])
def test_a_record_that_cannot_be_understood_costs_its_own_rule_two_passes(damage: dict[str, Any]) -> None:
    bad = damaged(1, **{k: v for k, v in damage.items() if k != "spec"})
    bad |= {"spec": damage["spec"]} if "spec" in damage else {}
    alone = standing(run(2), [bad])
    assert (alone.may_certify, alone.passes_needed) == (False, 1)
    assert "cannot be told" in alone.why
    assert "r1" in alone.why
    assert may(run(3), bad, run(2))
    assert unreadable_runs([bad]) == [], "its rule is known"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_cannot_be_understood_blocks_no_other_rule(damage: dict[str, Any]) -> None:
    assert may(run(2), damaged(1, "renderer", **damage))


@pytest.mark.parametrize("spec", [None, "text", {}, {"rule": 7}])
def test_a_record_of_which_not_even_the_rule_can_be_told_is_named_and_hides_no_failure(spec: Any) -> None:
    bad = run(1, "slowdown") | {"spec": spec}
    assert unreadable_runs([bad, run(2)]) == ["r1"]
    assert may(run(3), bad)
    assert not may(run(3), bad, run(2, "slowdown"))
