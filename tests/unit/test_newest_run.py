"""The newest run of a kind that a plan names: a damaged record of another run hides none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from nodes.agent.subject import _newest

SPEC = cast(Any, SimpleNamespace(rule="trainer"))


def record(run: str, kind: str = "null", rule: str = "trainer", **more: Any) -> dict[str, Any]:
    known = {"run": run, "spec": {"kind": kind, "rule": rule}, "state": "ended", "verdict": {"R": 1.0}}
    return known | {"ended_at": f"at {run}", "ending": "passed"} | more


def test_the_first_that_was_judged_is_named_and_damaged_ones_are_left_aside() -> None:
    runs = [
        record("a", spec=None),
        record("b", spec="text"),
        record("c", spec={}),
        record("d", kind="ab"),
        record("e", rule="other"),
        record("f", verdict=None),
        record("g", state="open"),
        record("g1", verdict="text"),
        record("g2", ended_at=7),
        {key: value for key, value in record("g3").items() if key not in ("verdict", "ended_at", "ending")},
        record("h"),
        record("i"),
    ]
    assert (_newest(runs, SPEC, "null") or {})["run"] == "h"
    assert _newest(runs, SPEC, "self") is None
