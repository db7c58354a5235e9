"""Rows for the harness's unit tests."""

from __future__ import annotations

from typing import Any

from policies.harness.rows import BlockRow, WindowRow
from policies.harness.schedule import coin
from policies.harness.spec import RunSpec


def spec(**changes: Any) -> RunSpec:
    return RunSpec(**{"node": "n", "rule": "trainer", **changes})


def window(block: int = 1, arm: str = "on", rate: float | None = 10.0, **changes: Any) -> WindowRow:
    facts: dict[str, Any] = {
        "run": "r",
        "block": block,
        "arm": arm,
        "position": 1,
        "started_at": "2026-11-29T00:00:00+00:00",
        "started_mono_s": 720.0 * block,
        "length_s": 300.0,
        "events": None if rate is None else 300.0 * rate,
        "rate": rate,
        "work_ran_s": 300.0 if arm == "on" else 0.0,
        "dose": 0.3 if arm == "on" else None,
    }
    return WindowRow(**{**facts, **changes})


def block(number: int, on: float | None = 10.0, off: float | None = 10.0, **changes: Any) -> BlockRow:
    facts: dict[str, Any] = {
        "run": "r",
        "number": number,
        "order": coin(0, number),
        "state": "counted",
        "on": window(number, "on", on),
        "off": window(number, "off", off),
    }
    return BlockRow(**{**facts, **changes})


def blocks(count: int) -> list[BlockRow]:
    return [block(number) for number in range(1, count + 1)]
