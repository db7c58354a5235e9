"""Memory that is short admits nothing, memory that is very short costs the largest fleet job, and unknown costs nobody."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.memory_guard import (
    CLEAR_MARGIN_PCT,
    GONE_WITHIN_S,
    SETTLE_S,
    GuardDecision,
    GuardState,
    MemorySignals,
    Pool,
    step_guard,
)
from policies.section.models import Memory

GB = 1_000_000_000
LIMITS = Memory()  # soft 12 %, hard 8 %, swap 256 and 1024 MB a minute, 2 GB to reclaim
TOTAL = 100 * GB


def reading(free_pct: float | None, swap_mb: float | None = 0, **jobs: float | None) -> MemorySignals:
    """100 GB of memory; jobs in GB."""
    available = None if free_pct is None else round(TOTAL * free_pct / 100)
    return MemorySignals(
        (Pool(TOTAL, available),),
        None if swap_mb is None else round(swap_mb * 1_000_000),
        {job: None if size is None else round(size * GB) for job, size in jobs.items()},
    )


def drive(
    readings: Iterable[tuple[float, MemorySignals]], state: GuardState | None = None, limits: Memory = LIMITS
) -> tuple[GuardState, list[GuardDecision]]:
    state = state or GuardState()
    decisions = []
    for now_s, signals in readings:
        state, decision = step_guard(state, signals, now_s, limits)
        decisions.append(decision)
    return state, decisions


def levels(*free_pcts: float) -> list[tuple[str, str | None]]:
    _, decisions = drive((2.0 * tick, reading(free_pct)) for tick, free_pct in enumerate(free_pcts))
    return [(decision.level, decision.code) for decision in decisions]


def test_levels_and_their_codes_on_change_only() -> None:
    assert levels(50, 11.9, 11, 7.9, 7, 50) == [
        ("clear", None),
        ("soft", "MEMORY_SOFT"),
        ("soft", None),
        ("hard", "MEMORY_HARD"),
        ("hard", None),
        ("clear", "MEMORY_CLEAR"),
    ]


def test_a_level_is_left_only_with_a_margin() -> None:
    assert [level for level, _ in levels(11.9, 12, 13.9, 14.1, 12.1)] == ["soft", "soft", "soft", "clear", "clear"]
    assert [level for level, _ in levels(7.9, 8.1, 9.9, 10.1, 9)] == ["hard", "hard", "hard", "soft", "soft"]
    assert CLEAR_MARGIN_PCT == 2


def test_only_clear_memory_admits() -> None:
    _, decisions = drive([(0, reading(50)), (2, reading(11)), (4, reading(7)), (6, reading(13))])
    assert [decision.admit for decision in decisions] == [True, False, False, False]


@pytest.mark.parametrize("signals", [reading(None, a=5), MemorySignals((), 0, {"a": 5 * GB}), reading(50, None, a=5)])
def test_unknown_memory_admits_nothing_and_evicts_nothing(signals: MemorySignals) -> None:
    _, (decision,) = drive([(0, signals)])
    assert (decision.level, decision.admit, decision.evict) == ("soft", False, None)
    assert "cannot be read" in decision.why


def test_unknown_after_hard_stays_hard_and_evicts_nothing_more() -> None:
    state, _ = drive([(0, reading(5, a=5, b=9))])
    _, decisions = drive([(2, reading(None, a=5)), (90, reading(None, a=5))], state)
    assert [(decision.level, decision.evict) for decision in decisions] == [("hard", None), ("hard", None)]


def test_the_largest_goes_and_the_next_only_once_it_is_gone_and_too_little_came_back() -> None:
    state, (first,) = drive([(0, reading(7, small=1, large=5, middle=3))])
    assert first.evict == "large"
    state, waiting = drive(
        [(2, reading(7, small=1, large=5, middle=3)), (30, reading(7, small=1, large=5, middle=3))], state
    )
    assert [decision.evict for decision in waiting] == [None, None]
    state, gone = drive([(32, reading(8, small=1, middle=3)), (34, reading(8, small=1, middle=3))], state)
    assert [decision.evict for decision in gone] == [None, None]
    state, after = drive([(32 + SETTLE_S, reading(8, small=1, middle=3))], state)
    assert after[0].evict == "middle"


def test_it_ends_when_enough_came_back_although_the_margin_keeps_the_level() -> None:
    state, (first,) = drive([(0, reading(7, a=5, b=3))])
    assert first.evict == "a"
    _, decisions = drive([(2.0 * tick, reading(9.5, b=3)) for tick in range(1, 60)], state)
    assert {decision.evict for decision in decisions} == {None}
    assert {decision.level for decision in decisions} == {"hard"}


def test_it_ends_when_memory_is_clear_although_less_came_back() -> None:
    limits = Memory(min_reclaim_gb=50)
    state, _ = drive([(0, reading(7, a=5, b=3))], limits=limits)
    _, decisions = drive([(2.0 * tick, reading(15, b=3)) for tick in range(1, 20)], state, limits)
    assert {(decision.level, decision.evict) for decision in decisions} == {("clear", None)}


def test_it_begins_again_when_memory_presses_again() -> None:
    state, _ = drive([(0, reading(7, a=5, b=3)), (2, reading(9.5, b=3)), (20, reading(9.5, b=3))])
    _, (again,) = drive([(22, reading(6, b=3))], state)
    assert again.evict == "b"


def test_what_the_program_takes_back_is_not_counted_as_reclaimed() -> None:
    """A job gave 5 GB and the program took them: memory is as short as before, so another one goes."""
    state, _ = drive([(0, reading(7, a=5, b=3)), (2, reading(7, b=3))])
    _, (decision,) = drive([(2 + SETTLE_S, reading(7, b=3))], state)
    assert decision.evict == "b"


def test_a_job_that_does_not_go_is_named_and_another_is_asked() -> None:
    state, _ = drive([(0, reading(7, stuck=5, b=3))])
    _, (decision,) = drive([(GONE_WITHIN_S, reading(7, stuck=5, b=3))], state)
    assert (decision.not_gone, decision.evict) == ("stuck", "b")


def test_nothing_to_evict_is_no_fault() -> None:
    _, (decision,) = drive([(0, reading(3))])
    assert (decision.level, decision.evict) == ("hard", None)


def test_a_footprint_that_is_not_known_goes_last() -> None:
    assert drive([(0, reading(7, a=None, b=1))])[1][0].evict == "b"
    assert drive([(0, reading(7, a=None))])[1][0].evict == "a"


def test_swap_that_grows_counts_as_short_memory() -> None:
    grow = [(10.0 * tick, reading(50, 50 * tick)) for tick in range(12)]  # 300 MB a minute
    _, decisions = drive(grow)
    assert decisions[5].level == "clear"
    assert decisions[6].level == "soft"
    _, (_, fast) = drive([(0, reading(50, 100, a=1)), (2, reading(50, 1200, a=1))])
    assert (fast.level, fast.evict) == ("hard", "a")


def test_swap_that_is_used_but_does_not_grow_is_no_matter() -> None:
    _, decisions = drive([(2.0 * tick, reading(50, 30_000)) for tick in range(40)])
    assert {decision.level for decision in decisions} == {"clear"}


def test_growth_of_more_than_a_minute_ago_is_over_and_a_long_gap_has_no_baseline() -> None:
    state, _ = drive([(0, reading(50, 0)), (2, reading(50, 2000))])
    _, (later,) = drive([(63, reading(50, 2000))], state)
    assert later.level == "clear"


def test_a_clock_that_goes_back_stands_still() -> None:
    state, _ = drive([(100, reading(7, a=5))])
    state, (decision,) = drive([(0, reading(7, a=5, b=9))], state)
    assert state.now_s == 100
    assert decision.evict is None


def test_case_047_the_smaller_of_host_and_limit_decides() -> None:
    """16 GB of host memory seen, 1 GB allowed."""
    host, limit = Pool(16 * GB, 12 * GB, "host"), Pool(1 * GB, 50_000_000, "cgroup")
    _, (decision,) = drive([(0, MemorySignals((host, limit), 0, {"a": GB}))])
    assert (decision.level, decision.evict) == ("hard", "a")


def test_case_082_page_cache_is_not_used_memory() -> None:
    """25.7 GB charged of which 25 are inactive file pages: the working set is 0.7 GB, and nothing goes."""
    limit, current, inactive_file = 25.69 * GB, 25.69 * GB, 25.03 * GB
    pool = Pool(round(limit), round(limit - (current - inactive_file)), "cgroup")
    _, (decision,) = drive([(0, MemorySignals((pool,), 0, {"llm": 20 * GB}))])
    assert (decision.level, decision.evict) == ("clear", None)


def test_case_083_host_memory_has_the_last_word() -> None:
    """The cgroup's limit leaves three quarters free; the host, with pages that no cgroup counts, is nearly out."""
    host, limit = Pool(64 * GB, 2 * GB, "host"), Pool(8 * GB, 6 * GB, "cgroup")
    _, (decision,) = drive([(0, MemorySignals((host, limit), 0, {"a": GB}))])
    assert (decision.level, decision.evict) == ("hard", "a")


def test_case_017_a_total_of_zero_is_no_reading() -> None:
    """A unified-memory device that reports total 0, free 0: neither a division by zero nor everything evicted."""
    _, (alone,) = drive([(0, MemorySignals((Pool(0, 0, "gpu"),), 0, {"a": GB}))])
    assert (alone.level, alone.evict) == ("soft", None)
    _, (beside,) = drive([(0, MemorySignals((Pool(TOTAL, TOTAL // 2), Pool(0, 0, "gpu")), 0, {"a": GB}))])
    assert (beside.level, beside.admit, beside.evict) == ("soft", False, None)


def test_one_pool_that_cannot_be_read_hides_no_shortage_of_another() -> None:
    _, (decision,) = drive([(0, MemorySignals((Pool(TOTAL, TOTAL // 50), Pool(None, None)), 0, {"a": GB}))])
    assert (decision.level, decision.evict) == ("hard", "a")


ticks = st.lists(
    st.tuples(
        st.floats(-3, 40),
        st.one_of(st.none(), st.floats(0, 100)),
        st.one_of(st.none(), st.floats(0, 3000)),
        st.dictionaries(st.sampled_from("abc"), st.one_of(st.none(), st.floats(0, 20)), max_size=3),
    ),
    max_size=30,
)


@settings(max_examples=50, deadline=None)
@given(ticks=ticks)
def test_whatever_comes(ticks: list[tuple[float, float | None, float | None, dict[str, float | None]]]) -> None:
    """Only jobs that are there are evicted, one at a time; nothing while unknown or above the hard level; a code tells
    every change of level and nothing else; nothing is admitted unless all is known and clear."""
    state, now_s, going = GuardState(), 0.0, None
    for step_s, free_pct, swap_mb, jobs in ticks:
        now_s = max(now_s, now_s + step_s)
        was = state.level
        state, decision = step_guard(state, reading(free_pct, swap_mb, **jobs), now_s, LIMITS)
        assert (decision.code is not None) == (decision.level != was)
        if decision.admit:
            assert free_pct is not None
            assert swap_mb is not None
            assert free_pct >= LIMITS.soft_free_pct
        if going is not None and going in jobs and decision.not_gone is None:
            assert decision.evict is None
        if decision.evict is not None:
            assert decision.evict in jobs
            assert free_pct is not None
            assert decision.level != "clear"
            going = decision.evict
        elif decision.not_gone is not None or (going is not None and going not in jobs):
            going = None
        if free_pct is not None and free_pct < LIMITS.hard_free_pct:
            assert decision.level == "hard"


def test_case_097_the_measured_size_decides_who_goes() -> None:
    """Neither what a job declared nor its name: the one that holds most, and a size that cannot be read only where none can."""
    _, decisions = drive([(0.0, reading(5, small=4.0, liar=20.0, unread=None))])
    assert decisions[0].evict == "liar"
    _, decisions = drive([(0.0, reading(5, b=None, a=None))])
    assert decisions[0].evict == "a"


def test_memory_that_is_not_known_is_not_said_to_be_short() -> None:
    def short(*readings: MemorySignals) -> list[bool]:
        return [each.short for each in drive((2.0 * tick, one) for tick, one in enumerate(readings))[1]]

    assert short(reading(50), reading(11.9), reading(13), reading(50)) == [False, True, True, False]
    assert short(reading(None), reading(50, None), reading(50)) == [False, False, False]
    assert short(reading(11, None)) == [True]
    assert short(reading(50, 0), reading(50, 300)) == [False, True]
