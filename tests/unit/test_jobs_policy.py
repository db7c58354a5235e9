"""What the end of an attempt means for its job."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.jobs import SOFT_RETRIES_MAX, ExitFacts, Failure, Stop, backoff_s, judge_exit, parse_failure

TOLD = Failure("m/no", "because")


def judged(code: int | None = None, *, signal: int | None = None, result: Any = "missing", failure: Failure | None = None,
           stop: Stop | None = None, before: int = 0, of: int = 3, soft: int = 0, by_nudge: bool = False) -> Any:  # fmt: skip
    facts = ExitFacts(code, signal, result, failure, stop, by_nudge=by_nudge)
    return judge_exit(facts, counted_before=before, max_attempts=of, soft_retries=soft)


def test_a_result_ends_the_job_even_when_it_was_being_stopped() -> None:
    assert judged(0, result="ok").outcome == "done"
    assert judged(0, result="ok", stop=Stop("evicted", True, False)).outcome == "done"


@pytest.mark.parametrize("code", [2, 3, 75])
def test_the_special_codes_count_only_with_a_failure_document(code: int) -> None:
    silent, told = judged(code), judged(code, failure=TOLD)
    assert (silent.fault, silent.counts) == ("module", True)
    assert told.fault == {2: "job", 3: "host", 75: "transient"}[code]
    assert told.counts is (code == 2)
    assert told.next == ("end" if code == 2 else "requeue")


@given(
    code=st.one_of(st.none(), st.integers(0, 255)),
    signal=st.one_of(st.none(), st.integers(1, 64)),
    result=st.sampled_from(["ok", "missing", "invalid"]),
    failure=st.one_of(st.none(), st.just(TOLD), st.just(Failure("r", "", "job", False))),
    before=st.integers(0, 5),
)
def test_our_own_holds_and_evictions_cost_nothing(
    code: int | None, signal: int | None, result: Any, failure: Failure | None, before: int
) -> None:
    verdict = judged(
        code, signal=signal, result=result, failure=failure, stop=Stop("evicted", True, False), before=before
    )
    if not (code == 0 and result == "ok"):
        assert (verdict.next, verdict.counts, verdict.fault) == ("requeue", False, "none")


@given(code=st.integers(0, 255), before=st.integers(0, 10), of=st.integers(1, 5))
def test_a_failure_is_retried_until_its_attempts_are_used_up(code: int, before: int, of: int) -> None:
    verdict = judged(code, result="invalid", before=before, of=of)
    assert verdict.counts
    assert (verdict.next == "requeue") is (before + 1 < of)


def test_not_retryable_is_not_retried() -> None:
    assert judged(1, failure=Failure("r", "", "host", False)).next == "end"
    assert judged(1, failure=Failure("r", "", "host", None)).next == "requeue"


def test_an_unseen_end_is_no_fault_of_the_job() -> None:
    verdict = judged()
    assert (verdict.next, verdict.counts, verdict.fault) == ("requeue", False, "transient")


def test_again_later_does_not_go_round_for_ever() -> None:
    assert judged(75, failure=TOLD, soft=SOFT_RETRIES_MAX).next == "end"
    assert backoff_s(1) == 1.0
    assert backoff_s(10_000) == 300.0


def test_a_timeout_is_a_fault() -> None:
    late = Stop("ran longer than 5 s", True, True)
    assert judged(75, failure=TOLD, stop=late, before=0, of=2).counts
    assert judged(75, failure=TOLD, stop=late, before=1, of=2).outcome == "failed"


def test_a_nudge_on_the_way_out_takes_nothing_away() -> None:
    def left(**what: Any) -> Any:
        return judged(signal=10, by_nudge=True, **what)

    assert (left(result="ok").outcome, left(result="ok", stop=Stop("evicted", True, False)).outcome) == ("done", "done")
    assert judged(signal=10, result="ok").next == "requeue"  # somebody else's signal: a crash like any other
    nothing, later, host = left(), left(failure=Failure("r", "", "transient")), left(failure=Failure("r", "", "host"))
    assert [(one.next, one.counts) for one in (nothing, later, host)] == [("requeue", False)] * 3
    assert host.fault == "host"
    assert left(failure=Failure("r", "", "job", False)).outcome == "failed"
    assert left(failure=Failure("r", "", "job"), result="ok").counts
    assert left(soft=SOFT_RETRIES_MAX).outcome == "failed"


@pytest.mark.parametrize("raw", [None, [], "x", {}, {"reason": ""}, {"reason": 3}])
def test_what_is_no_failure_document(raw: object) -> None:
    assert parse_failure(raw) is None


def test_a_failure_document_with_odd_fields_still_counts() -> None:
    assert parse_failure({"reason": "r", "fault": "moon", "retryable": "yes", "detail": 7, "more": 1}) == Failure(
        "r", "7"
    )
