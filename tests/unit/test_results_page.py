"""The page of benchmark results: one column for each host, what is over its budget in bold, and the reason where it is known."""

from __future__ import annotations

from typing import Any

from benchmarks._results import Results, page, short


def _figure(what: str, value: float | None, holds: bool | None) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": "ms", "budget": "<= 2", "reference": "floor 1 | 2", "holds": holds}


def _result(*figures: dict[str, Any], load: float = 0.5, quick: bool = False) -> dict[str, Any]:
    return {
        "name": "path",
        "figures": list(figures),
        "load": [load, load, load],
        "load_before": [0.1, 0.1, 0.1],
        "machine": {"cpu": "C", "cores": 2, "system": "Linux 6", "python": "3.11"},
        "at": "2026-11-29T10:00:00+00:00",
        "quick": quick,
    }


def test_idle_and_busy_stand_side_by_side() -> None:
    results: Results = {
        "idle": {"path": _result(_figure("p50", 1.5, True), _figure("only idle", 1.0, None))},
        "busy": {"path": _result(_figure("p50", 3.25, False), load=3.0, quick=True)},
    }
    text = page(results, {"path": "the wake-up"})
    assert "| p50 | ms | <= 2 | 1.5 | **3.25** | floor 1 \\| 2 |" in text
    assert "| only idle | ms | <= 2 | 1 |  | floor 1 \\| 2 |" in text
    assert "- busy, 2026-11-29T10:00:00+00:00, the quick form, load 0.1 before, 3.0 after" in text
    assert "Why it falls short: the wake-up" in text
    assert "C, 2 cores, Linux 6, Python 3.11" in text


def test_no_reason_is_given_where_all_holds() -> None:
    assert "falls short" not in page({"idle": {"path": _result(_figure("p50", 1.5, True))}}, {"path": "the wake-up"})


def test_what_failed_or_could_not_be_measured_is_said_and_is_short() -> None:
    failed = {"name": "path", "failed": "no model", "at": "2026-11-29T10:00:00+00:00", "quick": False}
    assert "it failed: no model" in page({"idle": {"path": failed}}, {})
    assert short(failed)
    assert short(_result(_figure("p50", None, False)))
    assert not short(_result(_figure("p50", None, None)))
    assert "| **unknown** |" in page({"idle": {"path": _result(_figure("p50", None, False))}}, {})
