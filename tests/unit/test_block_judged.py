"""What a finished block is booked as."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.agent.block import BlockRunner
from policies.harness.rows import Arm, Order, WindowRow
from policies.harness.spec import RunSpec
from policies.harness.validity import harm_suspected


def window(arm: Arm, events: float | None) -> WindowRow:
    rate = None if events is None else events / 60.0
    return WindowRow(run="r", block=1, arm=arm, position=1, started_at="2026-11-29T00:00:00+00:00", started_mono_s=0.0,
                     length_s=60.0, events=events, rate=rate, work_ran_s=60.0, dose=0.5 if arm == "on" else 0.0)  # fmt: skip


@pytest.mark.parametrize("order", ["on_first", "off_first"])
def test_a_window_without_a_count_speaks_against_its_own_arm(order: Order) -> None:
    run = cast(Any, SimpleNamespace(run="r", spec=RunSpec(node="n", rule="r")))
    block = BlockRunner(cast(Any, None), run, 1, order)
    block.part = "closing"
    block.arm = "off" if order == "on_first" else "on"  # the arm that was measured last
    block.windows = {"on": window("on", None), "off": window("off", 600.0)}
    row = block._judged()
    assert (row.reason, row.reason_arm) == ("source_unreadable", "on")
    assert harm_suspected([row, row.model_copy(update={"number": 2})]) is not None
    block.windows = {"on": window("on", 600.0), "off": window("off", None)}
    assert block._judged().reason_arm == "off"
