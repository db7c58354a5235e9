"""A run recomputed from its windows agrees with what was recorded at the time, however it went and ended."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from cotenant.cli.replay import verify
from policies.harness.rows import BlockRow, LeftOut, WindowRow
from policies.harness.schedule import End, Judge, NextBlock, next_action, run_looks
from policies.harness.spec import RunSpec
from policies.harness.validity import decide_blocks
from policies.statistics import decide

SPEC = RunSpec(node="local", rule="trainer", window_s=60.0, washout_s=15.0, max_hours=1.0, margin=0.05)
LOST: tuple[LeftOut, ...] = (
    "program_died",
    "memory_guard",
    "source_unreadable",
    "suspend",
    "no_dose",
    "not_held",
    "cut",
)


def window(block: int, arm: str, position: int, events: float) -> WindowRow:
    shares: dict[str, Any] = {"dose": 0.3, "work_ran_s": 60.0} if arm == "on" else {"dose": 0.0}
    at = 150.0 * block + 75.0 * position
    return WindowRow.model_validate(
        {"run": "run-1", "block": block, "arm": arm, "position": position, "started_at": "2026-11-29T00:00:00+00:00",
         "started_mono_s": at, "length_s": 60.0, "events": events, "rate": events / 60.0, **shares}
    )  # fmt: skip


def block(asked: NextBlock, dice: random.Random, lossy: float, ill: float) -> BlockRow:
    """A block as it may go: mostly counted, sometimes left out or cut, sometimes with a collapse or no progress at all."""
    first, second = ("on", "off") if asked.order == "on_first" else ("off", "on")
    rows: dict[str, WindowRow | None] = {
        arm: window(asked.number, arm, position, round(600 * dice.gauss(1.0, 0.04)))
        for position, arm in ((1, first), (2, second))
    }
    more: dict[str, Any] = {"state": "counted"}
    drawn = dice.random()
    if drawn < lossy:
        reason = dice.choice(LOST)
        more = {
            "state": "cut" if reason == "cut" else "left_out",
            "reason": reason,
            "reason_arm": dice.choice(("on", "off")),
        }
        rows[second] = None
    elif drawn < lossy + ill:
        more = {
            "state": "left_out",
            "reason": "program_died",
            "reason_arm": "on",
            "collapse": "under half of OFF for 20 s",
        }
        rows["on"] = None
    elif drawn < lossy + 2 * ill:
        rows["on"] = window(asked.number, "on", 1 if first == "on" else 2, 0.0)
    return BlockRow(run="run-1", number=asked.number, order=asked.order, on=rows["on"], off=rows["off"], **more)


def lived(seed: int, limit_s: float | None = None, lossy: float = 0.1, ill: float = 0.0) -> dict[str, Any]:
    """A RunRecord as the flow leaves it: blocks and looks in the order in which they came, then the ending."""
    spec = SPEC.model_copy(update={"seed": seed})
    dice, rows, looks = random.Random(seed), [], []  # type: ignore[var-annotated]
    stops = run_looks(spec)
    while True:
        judged = {look["n"]: look["verdict"] for look in looks}
        action = next_action(spec, rows, judged, 150.0 * len(rows), limit_s)
        match action:
            case Judge(n):
                looks.append(decide(decide_blocks(rows, n), spec.margin, stops[-1], stops[0]).as_dict() | {"n": n})
            case NextBlock():
                rows.append(block(action, dice, lossy, ill))
            case End(ending, reason):
                break
    blocks = decide_blocks(rows)
    verdict = decide(blocks, spec.margin, stops[-1], stops[0]).as_dict() if blocks else None
    return {"run": "run-1", "node": "local", "spec": spec.model_dump(), "state": "ended", "ending": ending, "reason": reason,
            "looks": looks, "verdict": verdict, "blocks": [row.model_dump(mode="json") for row in rows]}  # fmt: skip


def test_every_run_that_was_lived_agrees() -> None:
    """Collapse, harm left out, a cap or the end of the hours may all come after looks that decided nothing."""
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in range(120):
        limit_s = 150.0 * (seed % 24) if seed % 3 == 0 else None
        record = lived(seed, limit_s, lossy=(0.0, 0.1, 0.3)[seed % 3], ill=(0.0, 0.03)[seed % 2])
        assert verify(record)["differences"] == [], (seed, record["ending"], record["reason"])
        seen[record["ending"], bool(record["looks"])] += 1
    for ending in ("slowdown", "harm_suspected", "inconclusive", "no slowdown shown"):
        assert seen[ending, True] > 0, (
            f"no run that ended as {ending!r} after a look: the test is blind for it ({seen})"
        )


def collapsed_after_a_look() -> dict[str, Any]:
    return next(
        record
        for seed in range(1000)
        if (record := lived(seed, lossy=0.0, ill=0.05))["looks"] and "collapse" in record["reason"]
    )


@pytest.mark.parametrize("how", ["a look with another R", "a look that never was", "blocks after the end"])
def test_what_was_made_up_beside_a_collapse_still_differs(how: str) -> None:
    record = collapsed_after_a_look()
    if how == "a look with another R":
        record["looks"][0]["R"] += 0.001
    elif how == "a look that never was":
        record["looks"].append(record["looks"][0] | {"n": 40})
    else:
        last = record["blocks"][-1]
        record["blocks"].append(last | {"number": last["number"] + 1, "collapse": None})
    assert not verify(record)["agrees"]


def test_a_verdict_for_time_that_was_up_is_all_that_open_windows_allow() -> None:
    record = lived(3, limit_s=1000.0, lossy=0.0)
    assert record["ending"] == "inconclusive"
    for better in ("no slowdown shown", "slowdown", "refused"):
        assert not verify(record | {"ending": better})["agrees"]
