"""What a scripted agent keeps and measures: runs, blocks and timeline in memory, rates from a function."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nodes.clock import utc_iso
from nodes.identity import boot_id

RATE = 10.0
Rates = Callable[[int], tuple[float, float]]


@dataclass
class Memory:
    """What the journal of a real agent would keep."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    blocks: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    started: list[tuple[str, int, str]] = field(default_factory=list)  # every measurement begun: run, number, order

    def write(self, code: str, **data: Any) -> None:
        self.timeline.append(
            {
                "seq": len(self.timeline) + 1,
                "at": utc_iso(),
                "mono_s": time.monotonic(),
                "boot_id": boot_id(),
                "code": code,
                "severity": "info",
                "message": code.lower(),
                "data": data,
            }
        )


def steady(ratio: float, spread: float = 0.002) -> Rates:
    """ON and OFF rates of block ``number``: ON runs at ``ratio`` of OFF, with a small fixed wobble."""

    def rates(number: int) -> tuple[float, float]:
        wobble = spread * ((number * 7) % 5 - 2) / 2
        return RATE * ratio * (1 + wobble), RATE

    return rates


def new_record(run: str, spec: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """The record of a run that has just begun; ``facts`` are what its agent knows of it and of itself."""
    return {
        "run": run,
        "spec": spec,
        "state": "open",
        "ending": None,
        "reason": None,
        "started_at": utc_iso(),
        "ended_at": None,
        "section_version": 1,
        "fingerprint": {},
        "work": [],
        "program": {"processes": []},
        "source": {"kind": "jsonl", "path": "events.jsonl", "unit": "step", "timed": False},
        "reference": None,
        "looks": [],
        "verdict": None,
        "attempts_before": [],
        "certificate": None,
        **facts,
    }


def block_row(run: str, number: int, order: str, cut: str | None, length_s: float, rates: Rates) -> dict[str, Any]:
    """The row of a block that was measured, or ``cut`` for that reason."""
    row: dict[str, Any] = {
        "run": run,
        "number": number,
        "order": order,
        "state": "cut" if cut else "counted",
        "reason": "cut" if cut else None,
        "reason_arm": None,
        "reason_detail": cut,
        "collapse": None,
        "on": None,
        "off": None,
        "extra": {},
    }
    if cut:
        return row
    on, off = rates(number)
    for arm, rate in (("on", on), ("off", off)):
        row[arm] = {
            "run": run,
            "block": number,
            "arm": arm,
            "position": 1 if order.startswith(arm) else 2,
            "started_at": utc_iso(),
            "started_mono_s": time.monotonic(),
            "length_s": length_s,
            "events": rate * length_s,
            "rate": rate,
            "longest_step_s": 0.2,
            "work_ran_s": length_s if arm == "on" else 0.0,
            "dose": 0.3 if arm == "on" else 0.0,
            "dose_unknown_reason": None,
            "units": [],
        }
    return row
