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
    run = cast(Any, SimpleNamespace(run="r", left=None, spec=RunSpec(node="n", rule="r")))
    block = BlockRunner(cast(Any, None), run, 1, order)
    block.part = "closing"
    block.arm = "off" if order == "on_first" else "on"  # the arm that was measured last
    block.windows = {"on": window("on", None), "off": window("off", 600.0)}
    row = block._judged()
    assert (row.reason, row.reason_arm) == ("source_unreadable", "on")
    assert harm_suspected([row, row.model_copy(update={"number": 2})]) is not None
    block.windows = {"on": window("on", 600.0), "off": window("off", None)}
    assert block._judged().reason_arm == "off"


@pytest.mark.parametrize("gap", ["on", "off"])
def test_a_hole_in_a_window_of_a_source_that_reads_is_no_distress(gap: Arm) -> None:
    run = cast(Any, SimpleNamespace(run="r", left=None, spec=RunSpec(node="n", rule="r")))
    block = BlockRunner(cast(Any, None), run, 1, "on_first")
    block.part, block.arm, block.gaps = "closing", "off", {gap}
    block.windows = {arm: window(arm, None if arm == gap else 600.0) for arm in ("on", "off")}
    row = block._judged()
    assert (row.state, row.reason, row.reason_arm) == ("left_out", "source_gap", gap)
    assert harm_suspected([row.model_copy(update={"number": number}) for number in range(1, 5)]) is None


@pytest.mark.parametrize("dead", ["on", "off"])
def test_a_hole_in_one_window_hides_no_dead_source_in_the_other(dead: Arm) -> None:
    run = cast(Any, SimpleNamespace(run="r", left=None, spec=RunSpec(node="n", rule="r")))
    block = BlockRunner(cast(Any, None), run, 1, "on_first")
    block.part, block.gaps = "closing", {"off" if dead == "on" else "on"}
    block.windows = {arm: window(arm, None) for arm in ("on", "off")}
    row = block._judged()
    assert (row.reason, row.reason_arm) == ("source_unreadable", dead)
