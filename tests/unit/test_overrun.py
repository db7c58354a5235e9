"""Units that hold more memory than their stage declares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.admission import Room, Taken, memory_short
from policies.caps import Reserve
from policies.memory_guard import Pool
from policies.overrun import Claim, OverrunState, in_words, step_overrun
from policies.views import NodeView, RuleView, Unit

GB = 1_000_000_000


def claim(attempt: str = "a", declared_gb: float = 4.0, held_gb: float | None = 20.0) -> Claim:
    return Claim(attempt, declared_gb * GB, None if held_gb is None else int(held_gb * GB))


def after(*ticks: tuple[Claim, ...], short: bool = True, going: bool = False) -> tuple[OverrunState, list[str | None]]:
    state, gone = OverrunState(), list[str | None]()
    for claims in ticks:
        state, _, goes = step_overrun(state, claims, short=short, going=going)
        gone.append(None if goes is None else goes.attempt)
    return state, gone


def test_case_097_a_unit_that_declares_4_gb_and_takes_20_is_told_and_goes_when_memory_is_short() -> None:
    """The declared figure is what admission counted on: it is measured each period."""
    card = Pool(24 * GB, 1 * GB, "machine")
    unit = Unit("a", 1, "m", "s", device=True)
    room = Room(2, 4.0, (Taken(unit, 4 * GB, 20 * GB),), (card,), soft_free_pct=12.0)
    assert [each.code for each in memory_short(NodeView(), room)] == ["MEMORY_SHORT"]
    state, new, goes = step_overrun(OverrunState(), [claim()], short=True)
    assert (new, goes) == ((), None), "one reading may be a peak"
    state, new, goes = step_overrun(state, [claim()], short=True)
    assert [each.attempt for each in new] == ["a"]
    assert goes is not None
    assert in_words(goes) == "it holds 20.00 GB of memory, and its stage declares 4 GB"
    _, new, _ = step_overrun(state, [claim()], short=True)
    assert new == (), "it is told once"


def test_what_is_left_over_may_be_lent_and_is_taken_back_first() -> None:
    state, gone = after((claim(),), (claim(),), (claim(),), short=False)
    assert gone == [None] * 3
    assert set(state.over) == {"a"}
    assert step_overrun(state, [claim()], short=True)[2] is not None


def test_the_largest_overrun_goes_first_and_one_at_a_time() -> None:
    both = (claim("a", 4, 8), claim("b", 1, 6))
    assert after(both, both)[1] == [None, "b"]
    assert after(both, both, going=True)[1] == [None, None]


@pytest.mark.parametrize(
    "held",
    [claim(held_gb=4.0), claim(held_gb=4.39), claim(declared_gb=0.0), claim(held_gb=None)],
    ids=["as declared", "within the slack", "nothing declared", "unknown"],
)
def test_what_is_no_overrun_costs_nothing(held: Claim) -> None:
    assert after((held,), (held,), (held,)) == (OverrunState(), [None] * 3)


def test_a_peak_between_two_readings_begins_anew_and_a_reading_that_fails_changes_nothing() -> None:
    high, low, unread = (claim(),), (claim(held_gb=3.0),), (claim(held_gb=None),)
    assert after(high, low, high)[1] == [None] * 3
    state, gone = after(high, high, unread)
    assert (set(state.over), gone[-1]) == ({"a"}, "a"), "it was over when it was last read"
    assert after(high, high, low)[0] == OverrunState()


@pytest.mark.parametrize(
    ("free_gb", "reserve_gb", "owed_gb", "code"),
    [(10, 0, 0, None), (2, 0, 0, "MEMORY_SHORT"), (10, 0, 8, "MEMORY_SHORT"), (10, 11, 0, "PROTECTION_RESERVE")],
)
def test_memory_is_short_of_what_was_promised_set_aside_or_kept_free(
    free_gb: int, reserve_gb: int, owed_gb: int, code: str | None
) -> None:
    other = Taken(Unit("b", 2, "m", "s", device=False), owed_gb * GB, 0)
    rule = RuleView("game", True, True, reserve=Reserve(0.0, reserve_gb * GB, "rule game"))
    room = Room(2, 4.0, (other,), (Pool(24 * GB, free_gb * GB, "machine"),), soft_free_pct=12.0)
    found = memory_short(NodeView(rules=(rule,)), room)
    assert [each.code for each in found] == ([] if code is None else [code])
    assert not found or "declares" not in found[0].why


def test_memory_that_cannot_be_read_ends_nobody() -> None:
    assert memory_short(NodeView(), Room(2, 4.0, (), (Pool(None, None, "machine"),))) == ()


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=2, unique_by=lambda x: x[0]), max_size=9
    )
)
def test_none_goes_that_is_not_over_at_this_reading(ticks: list[list[tuple[str, int]]]) -> None:
    state = OverrunState()
    for tick in ticks:
        claims = [claim(name, 4, held) for name, held in tick]
        state, _, goes = step_overrun(state, claims, short=True)
        assert goes is None or goes.over_bytes > 0
        assert goes is None or goes in claims
