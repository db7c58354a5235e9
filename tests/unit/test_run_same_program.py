"""A run measures one program: where another one runs, it does not go on, and no block counts that saw it."""

from __future__ import annotations

import asyncio
import sqlite3
from types import SimpleNamespace
from typing import Any, cast

import pytest
from certificates import PRINT, PROGRAM
from harness_rows import block

from nodes.agent import measure
from nodes.agent.measure import Measurer
from policies.certificate import Fingerprint, other_program
from policies.harness.schedule import coin
from policies.refusal import Refused

OTHER = PRINT.model_copy(update={"program": (PROGRAM.model_copy(update={"argv": ("python3", "train.py", "--small")}),)})
GONE = PRINT.model_copy(update={"program": ()})
UNKNOWN = PRINT.model_copy(update={"program": None})


def test_another_program_is_told_and_one_that_is_gone_or_was_never_known_is_none() -> None:
    assert other_program(PRINT, PRINT) == []
    assert "--small" in other_program(PRINT, OTHER)[0]
    assert other_program(PRINT, GONE) == []
    assert "unknown" in other_program(PRINT, UNKNOWN)[0]
    assert other_program(UNKNOWN, OTHER) == [], "of a run whose program could not be told nothing can be compared"
    unread = PRINT.model_copy(update={"program": (PROGRAM.model_copy(update={"script_sha256": None}),)})
    assert other_program(unread, unread) == []
    assert other_program(PRINT, PRINT.model_copy(update={"kernel": "7.0", "cores": 1})) == [], "the program alone"


class Stub:
    """An agent, planner and subject of which a block asks the least; ``seen`` is the program at each look."""

    def __init__(self, *seen: Fingerprint) -> None:
        self.seen = list(seen)
        self.rows: dict[int, Any] = {}
        self.unkept: dict[str, Any] = {}
        self.cut: set[str] = set()
        spec = SimpleNamespace(seed=0, rule="trainer")
        self.active = SimpleNamespace(run="r", spec=spec, measuring=None, left=None, asks=lambda: None)
        self.runs = self.journal = self
        self.under_test = None
        self.full = 0

    async def fingerprint(self, rule: str) -> Fingerprint:
        assert rule == "trainer"
        return self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]

    def need_active(self, run: str) -> Any:
        return self.active

    def record(self, run: str) -> dict[str, Any]:
        return {"spec": {"rule": "trainer"}, "fingerprint": PRINT.model_dump(mode="json")}

    def blocks(self, run: str) -> list[Any]:
        return list(self.rows.values())

    def next_number(self, run: str) -> int:
        return 1

    def note_started(self, *_: Any) -> None:
        pass

    def note_left(self, *_: Any) -> None:
        pass

    def keep_block(self, row: Any) -> None:
        self.unkept["r"] = row
        if self.full:
            self.full -= 1
            raise sqlite3.OperationalError("database or disk is full")
        self.rows[row.number] = self.unkept.pop("r")

    def write(self, *_: Any) -> None:
        pass

    async def next_pulse(self, at_most_s: float) -> None:
        await asyncio.sleep(0)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(measure, "OTHER_PROGRAM_FOR_S", 0.05)

    class Whole:
        def __init__(self, *_: Any) -> None:
            pass

        async def measure(self) -> Any:
            return block(1)

    monkeypatch.setattr(measure, "BlockRunner", Whole)

    monkeypatch.setattr(measure, "KEEP_AGAIN_S", 0.0)

    def asked(*seen: Fingerprint, full: int = 0) -> dict[str, Any]:
        async def run() -> dict[str, Any]:
            stub = Stub(*seen)
            stub.full = full
            measurer = Measurer(cast(Any, stub), cast(Any, stub), cast(Any, stub))
            return await measurer.block("r", 1, coin(0, 1), cast(Any, SimpleNamespace(gone=asyncio.Event())))

        return asyncio.run(run())

    return asked


def test_a_block_of_the_same_program_counts(ask: Any) -> None:
    assert ask(PRINT)["state"] == "counted"


def test_a_block_that_a_full_disk_does_not_take_is_kept_later(ask: Any) -> None:
    assert ask(PRINT, full=3)["state"] == "counted"


@pytest.mark.parametrize("seen", [OTHER, UNKNOWN], ids=["other arguments", "cannot be told"])
def test_a_run_does_not_go_on_with_another_program(ask: Any, seen: Fingerprint) -> None:
    """Swapped between two blocks and back before the end, it would be certified for what it was not."""
    with pytest.raises(Refused) as refused:
        ask(seen)
    assert refused.value.code == "RUN_CHANGED"


def test_a_helper_that_comes_and_goes_ends_no_run(ask: Any) -> None:
    assert ask(OTHER, OTHER, PRINT)["state"] == "counted"


@pytest.mark.parametrize("seen", [OTHER, UNKNOWN], ids=["replaced itself", "cannot be told"])
def test_a_block_in_which_the_program_replaced_itself_does_not_count(ask: Any, seen: Fingerprint) -> None:
    row = ask(PRINT, seen)
    assert (row["state"], row["reason"]) == ("left_out", "program_restarted")
