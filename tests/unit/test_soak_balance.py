"""The balance of a soak sees each thing that does not add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak.balance import GROWTH_MAX_BYTES, Life, Seen, disagreements, unbalanced

DONE = {"done": 5, "failed": 0, "open": 0, "repeated": 0}
ENTRY = {"seq": 1, "code": "A", "data": {"x": 1}}
GOOD = Seen(
    batches=[(5, DONE)], kills={"runner": 1}, lives=[Life(10, 20, 60.0)], paused_s=30.0, journal=[ENTRY], store=[ENTRY]
)


def test_what_adds_up() -> None:
    assert unbalanced(GOOD) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"batches": []}, "no batch"),
        ({"batches": [(6, DONE)]}, "batch 1"),
        ({"batches": [(5, DONE | {"repeated": 1})]}, "batch 1"),
        ({"kills": {}}, "nothing was killed"),
        ({"attempts": ["1-1"]}, "1-1"),
        ({"run_lock": "r"}, "run lock"),
        ({"left": [7]}, "7"),
        ({"lives": [Life(10, 11 + GROWTH_MAX_BYTES, 60.0)]}, "grew"),
        ({"paused_s": 0.0}, "no phase"),
        ({"ran_paused_s": 1.0}, "CPU seconds"),
        ({"store": []}, "lacks 1"),
        ({"journal": []}, "only the store"),
        ({"store": [ENTRY | {"data": {}}]}, "differ"),
        ({"store": [ENTRY, ENTRY]}, "twice"),
    ],
)
def test_each_fault_is_seen(change: dict[str, object], word: str) -> None:
    (found,) = unbalanced(replace(GOOD, **change))  # type: ignore[arg-type]
    assert word in found


def test_entries_are_compared_by_number() -> None:
    more = {"seq": 2, "code": "B", "data": {}}
    assert disagreements([ENTRY, more], [more, ENTRY]) == []
