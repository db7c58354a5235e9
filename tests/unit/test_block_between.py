"""A death of the program outside the stretch that a block watches is told by the next block, in the arm that it speaks against."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.agent.block import BlockRunner
from nodes.agent.left import Left
from nodes.agent.runs import ActiveRun
from nodes.identity import own_id
from policies.harness.conditions import Conditions
from policies.harness.rows import Arm, BlockRow, Order
from policies.harness.spec import RunSpec
from policies.harness.validity import harm_suspected

FIRST, SUCCESSOR = (100, 7), (200, 9)


class Node:
    """As much of an agent as a block needs that does not get as far as a window; ``pulses`` are done one after the other."""

    def __init__(self) -> None:
        self.program, self.phases = frozenset({FIRST}), ("uploading",)
        self.noted: list[Left] = []
        self.pulses: list[Any] = []
        self.runs, self.journal, self.under_test, self.observer = self, self, self, self
        self.active = ActiveRun("r", RunSpec(node="n", rule="trainer", seed=7), own_id())

    def conditions(self, run: ActiveRun) -> Conditions:
        return Conditions(self.program, self.phases, 0, 0.0, None, False, False, None)

    def note_left(self, run: str, left: Left, *, keep: bool = True) -> None:
        self.noted += [left] if keep else []

    def members(self, rule: str, older_s: float) -> frozenset[tuple[int, int]]:
        return self.program

    def evaluate(self, how: str) -> None: ...
    def sources_keep_since(self, rule: str, since_s: float | None) -> None: ...
    def write(self, *_: Any) -> None: ...
    def record(self, run: str) -> dict[str, Any]:
        return {}

    def blocks(self, run: str) -> list[BlockRow]:
        return []

    def runs_or_never_will(self, run: ActiveRun) -> bool:
        return True

    def held(self, run: ActiveRun) -> bool:
        return True

    def progress(self, rule: str) -> Any:
        return SimpleNamespace(track=None)

    async def next_pulse(self, at_most_s: float) -> None:
        assert self.pulses, "the block waits for nothing that comes"
        self.pulses.pop(0)()

    def sees(self, program: set[tuple[int, int]] | None = None, phases: tuple[str, ...] | None = None) -> None:
        self.program = self.program if program is None else frozenset(program)
        self.phases = self.phases if phases is None else phases

    def block(self, number: int, order: Order) -> BlockRow:
        return asyncio.run(BlockRunner(cast(Any, self), self.active, number, order).measure())


class Granting(Node):
    """Its work runs at once."""

    class _Work:
        runs_or_never_will = staticmethod(lambda run: True)
        runs = staticmethod(lambda run: True)
        held = staticmethod(lambda run: True)
        begin_feed = staticmethod(lambda run: None)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.under_test = cast(Any, self._Work)
        self.phases = ()
        monkeypatch.setattr(BlockRunner, "_watch_for_collapse", lambda block: None)


def test_a_death_right_after_a_block_that_a_phase_left_out_in_on_is_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Granting(monkeypatch)
    node.pulses = [lambda: node.sees(phases=("uploading",))]
    first = node.block(1, "on_first")
    assert (first.reason, first.reason_arm) == ("phase", "on")
    node.sees({SUCCESSOR}, ())
    second = node.block(2, "off_first")
    assert (second.reason, second.reason_arm) == ("program_died", "on")
    harm = harm_suspected([first, second])
    assert harm is not None
    assert harm.deaths_on == 1


def test_a_death_that_a_block_told_is_not_told_again_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Granting(monkeypatch)
    node.pulses = [lambda: node.sees({SUCCESSOR})]
    assert node.block(1, "on_first").reason == "program_died"
    node.pulses = [lambda: node.sees(phases=("uploading",))]
    assert node.block(2, "on_first").reason == "phase"
    node.sees(set(), ())
    assert node.block(3, "on_first").reason == "program_died"
    node.sees({FIRST})
    node.pulses = [lambda: node.sees(phases=("uploading",))]
    assert node.block(4, "on_first").reason == "phase"


@pytest.mark.parametrize("arm", ["on", "off"])
def test_a_death_while_a_block_waits_to_begin_counts_to_the_arm_before_it(arm: Arm) -> None:
    node = Node()
    node.active.left = Left.now(node.program, arm, 60.0)
    node.pulses = [lambda: None, lambda: node.sees({SUCCESSOR}, ())]
    row = node.block(2, "on_first")
    assert (row.reason, row.reason_arm) == ("program_died", arm)
    assert (harm_suspected([row]) is not None) == (arm == "on")


def test_the_washout_after_on_speaks_for_on_also_where_the_block_ends_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Granting(monkeypatch)
    node.active.left = Left.now(node.program, "on", 60.0)
    node.pulses = [lambda: node.sees(phases=("uploading",))]
    assert node.block(2, "off_first").reason_arm == "off"
    assert node.active.left is not None
    assert node.active.left.arm == "on"


def test_what_an_agent_that_dies_leaves_behind_is_noted_before_the_work_may_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Granting(monkeypatch)
    seen: list[tuple[str, Arm | None]] = []

    def write(code: str, data: Any) -> None:
        seen.append((code, node.noted[-1].arm if node.noted else None))

    monkeypatch.setattr(node, "write", write)
    node.pulses = [lambda: node.sees(phases=("uploading",))]
    node.block(1, "on_first")
    assert seen == [("RUN_GRANT", "on")]
    assert node.noted[0].program == {FIRST}


def test_a_program_that_died_with_the_runs_process_died_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Granting(monkeypatch)

    def both() -> None:
        node.sees(set())
        node.active.ending = "cut"

    node.pulses = [both]
    row = node.block(1, "on_first")
    assert (row.reason, row.reason_arm) == ("program_died", "on")


def test_what_a_program_does_while_a_block_waits_after_the_washout_speaks_against_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A phase keeps the block from beginning for hours; meanwhile its owner starts the program anew."""
    node = Granting(monkeypatch)
    node.phases = ("validating",)
    node.active.left = Left.now(node.program, "on", 60.0)

    def washout_is_over() -> None:
        node.active.left = None

    node.pulses = [
        washout_is_over,
        lambda: node.sees({SUCCESSOR}),
        lambda: node.sees(phases=()),
        lambda: node.sees(phases=("uploading",)),
    ]
    row = node.block(2, "on_first")
    assert (row.reason, row.reason_arm) == ("phase", "on")


def test_a_death_that_a_block_saw_is_not_taken_off_the_record_before_its_row_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Granting(monkeypatch)
    node.pulses = [lambda: node.sees(set())]
    assert node.block(1, "on_first").reason == "program_died"
    assert node.noted[-1].program == {FIRST}
    assert node.active.left is not None
    assert node.active.left.program == set()


@pytest.mark.parametrize("after", ["on", "off", None])
def test_a_death_in_the_first_washout_of_a_block_counts_by_what_ran_before_it_and_not_by_the_rows(
    monkeypatch: pytest.MonkeyPatch, after: Arm | None
) -> None:
    """The block before may have ended in its first arm, or so long ago that its washout is over."""
    node = Granting(monkeypatch)
    node.active.left = None if after is None else Left.now(node.program, after, 60.0)
    node.pulses = [lambda: node.sees({SUCCESSOR})]
    row = node.block(6, "off_first")
    assert (row.reason, row.reason_arm, row.extra["part"]) == ("program_died", "off", "washout")
    for order in ("on_first", "off_first"):
        before = BlockRow(run="r", number=5, order=order, state="left_out", reason="phase", reason_arm="off")
        assert (harm_suspected([before, row]) is not None) == (after == "on")
