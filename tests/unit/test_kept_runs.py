"""Records of runs as they were kept: one that is damaged, or of another version, costs no other run anything."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from policies.harness.attempts import attempts_before
from policies.harness.kept import came_when, is_damaged, run_row
from policies.harness.spec import RunSpec
from policies.harness.sweep import Asked, Finished, Level, PastLevel, next_step
from policies.instants import aware_utc
from policies.report.sweep import sweep_report

SPEC = RunSpec(node="n", rule="trainer", duty=0.1)
ENDED_AT = "2026-11-01T00:00:00+00:00"


def kept(run: str, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"run": run, "spec": SPEC.model_dump(), "state": "ended", "ending": "inconclusive",
                             "started_at": ENDED_AT, "ended_at": ENDED_AT, "verdict": {"R": 0.99, "n": 8}}  # fmt: skip
    return found | changes


def without(run: str, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in kept(run).items() if key not in keys}


DAMAGED = [
    kept("d1", spec=None),
    kept("d2", spec="text"),
    kept("d3", spec={}),
    kept("d4", spec={"rule": ["trainer"], "kind": "ab"}),
    kept("d5", spec={"rule": "trainer", "work": "gpu"}),
    without("d6", "spec"),
    without("d7", "spec", "ending", "ended_at", "verdict"),
    kept("d8", state="gone"),
]


def test_damaged_records_hide_no_earlier_attempt_and_are_none_of_the_same_thing() -> None:
    found = attempts_before([*DAMAGED, kept("r1")], SPEC)
    assert [attempt["run"] for attempt in found] == ["r1"]
    assert found[0] == {"run": "r1", "ending": "inconclusive", "ended_at": ENDED_AT, "duty": 0.1, "R": 0.99, "n": 8}


def test_of_an_attempt_at_the_same_thing_that_is_damaged_is_said_what_can_be_told() -> None:
    torn = without("r1", "ending", "ended_at") | {"verdict": "text"}
    assert attempts_before([torn, kept("r2")], SPEC)[0] == {
        "run": "r1", "ending": "damaged", "ended_at": None, "duty": 0.1, "R": None, "n": None,
    }  # fmt: skip


def test_a_list_of_runs_shows_which_are_damaged() -> None:
    assert [run_row(record)["damaged"] for record in DAMAGED] == [True] * len(DAMAGED)
    fine = run_row(kept("r1"))
    assert (fine["damaged"], fine["rule"], fine["duty"]) == (False, "trainer", 0.1)
    assert all(run_row(record).keys() == fine.keys() for record in DAMAGED)
    assert not is_damaged(kept("r2", state="open", ending=None, ended_at=None))
    torn = run_row(kept("r3", ended_at=7, driven_by=7, sweep="s", certificate=1))
    assert (torn["damaged"], torn["ended_at"], torn["driven_by"], torn["sweep"], torn["certificate"]) == (
        True, None, None, None, None,
    )  # fmt: skip


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-11-01T00:00:00", 7])
def test_a_time_that_is_no_instant_is_none(at: Any) -> None:
    assert came_when({"came_at": at}) is None
    assert came_when({"came_at": at, "started_at": ENDED_AT}) == datetime(2026, 11, 1, tzinfo=UTC)
    with pytest.raises((ValueError, TypeError)):
        aware_utc(datetime.fromisoformat(at))


ASKED = Asked.of(SPEC, (0.1, 0.2, 0.35))


def level(index: int, **changes: Any) -> dict[str, Any]:
    spec = SPEC.model_copy(update={"duty": ASKED.levels[index]}).model_dump()
    sweep = {"sweep": "s1", "index": index, "levels": list(ASKED.levels), "asked": ASKED.digest}
    certificate = {"certificate": f"c{index}", "certified_duty": ASKED.levels[index]}
    return (
        kept(
            f"l{index}", spec=spec, sweep=sweep, ending="no slowdown shown", certificate=certificate, section_digest="d"
        )
        | changes
    )


def after(*records: dict[str, Any]) -> Level | Finished:
    past = [found for record in records if (found := PastLevel.of(run_row(record))) is not None]
    return next_step(ASKED, past, section_digest="d", standing={}, flow_run_id="f2")


@pytest.mark.parametrize("sweep", [{}, {"sweep": "s1", "index": "x"}, {"sweep": "s1", "index": 9, "levels": [0.1]}, 7])
def test_a_record_whose_sweep_cannot_be_told_stops_no_other_sweep(sweep: Any) -> None:
    found = after(level(0), kept("torn", sweep=sweep))
    assert isinstance(found, Level)
    assert (found.sweep, found.index) == ("s1", 1)


@pytest.mark.parametrize("state", ["ended", "open"])
def test_a_sweep_whose_level_is_damaged_does_not_go_on_and_another_begins(state: str) -> None:
    """Its level would else be run twice, under the name that the damaged record has."""
    found = after(level(0), level(1, spec=None, state=state))
    assert isinstance(found, Level)
    assert (found.sweep, found.index, found.run) == (None, 0, None)
    assert "damaged" in found.why_new


def test_a_report_without_a_damaged_level_shows_the_others_at_their_duties() -> None:
    rows = sweep_report([level(0), level(2)]).rows
    assert [(row.level, row.state) for row in rows] == [(0.1, "passed"), (0.2, "not run"), (0.35, "passed")]
