"""Which blocks count, and what left-out blocks must not hide."""

from __future__ import annotations

import pytest
from harness_rows import block, blocks, spec

from policies.harness.validity import (
    Happening,
    certifiable,
    counted,
    decide_blocks,
    foremost,
    harm_suspected,
    left_out,
    left_out_share,
    no_certificate,
)
from policies.statistics import decide


def out(number: int, reason: str, arm: str | None, part: str | None = None, order: str = "on_first", **extra):
    facts = {} if part is None else {"part": part}
    return block(number, state="left_out", order=order, reason=reason, reason_arm=arm, extra={**facts, **extra})


def test_case_117_only_counted_blocks_with_both_rates_and_off_progress_count() -> None:
    rows = [
        block(3),
        block(1),
        block(2, off=0.0),
        block(4, on=None),
        block(5, state="left_out", reason="suspend"),
        block(6, state="cut", reason="cut"),
        block(7, on=0.0),
        block(8).model_copy(update={"off": None}),
    ]
    assert [row.number for row in counted(rows)] == [1, 3, 7]
    assert [row.number for row in left_out(rows)] == [2, 4, 5, 6, 8]
    assert left_out_share(rows) == pytest.approx(5 / 8)
    assert left_out_share([]) == 0.0


def test_blocks_go_to_the_verdict_in_the_order_in_which_they_ran() -> None:
    rows = [block(2, on=9.0, order="off_first"), block(1, on=11.0, order="on_first")]
    assert decide_blocks(rows) == [("on_first", 11.0, 10.0), ("off_first", 9.0, 10.0)]
    assert decide_blocks(rows, 1) == [("on_first", 11.0, 10.0)]


def test_case_118_a_window_with_a_suspend_in_it_is_never_counted() -> None:
    rows = [*blocks(8), block(9, on=0.1, state="left_out", reason="suspend", reason_arm="on")]
    assert decide(decide_blocks(rows)).verdict == "no slowdown shown"
    assert harm_suspected(rows) is None


# --- the reason ---------------------------------------------------------------------------------------------------


def test_harm_is_the_reason_before_all_else() -> None:
    seen = [Happening("phase", "off"), Happening("program_died", "on"), Happening("memory_guard", "on")]
    assert foremost(seen) == seen[1]
    assert foremost(seen[:1]) == seen[0]
    assert foremost([]) is None


# --- harm ---------------------------------------------------------------------------------------------------------


def test_one_death_in_on_is_harm() -> None:
    harm = harm_suspected([*blocks(3), out(4, "program_died", "on")])
    assert harm is not None
    assert (harm.deaths_on, harm.deaths_off) == (1, 0)
    assert "block 4" in harm.words


def test_a_death_in_off_is_not() -> None:
    assert harm_suspected([out(1, "program_died", "off", "window")]) is None


def test_as_many_deaths_in_off_are_not_harm_and_fewer_are() -> None:
    died_on, died_off = out(1, "program_died", "on"), out(2, "program_died", "off", "window")
    assert harm_suspected([died_on, died_off]) is None
    assert harm_suspected([died_on, died_off, out(3, "program_died", "on")]) is not None


@pytest.mark.parametrize("reason", ["memory_guard", "source_unreadable"])
def test_two_of_the_others_are_harm_and_one_is_not(reason: str) -> None:
    assert harm_suspected([out(1, reason, "on")]) is None
    assert harm_suspected([out(1, reason, "on"), out(2, reason, "on")]) is not None
    assert harm_suspected([out(1, reason, "on"), out(2, reason, "on"), out(3, reason, "off", "window")]) is not None
    even = [out(1, reason, "on"), out(2, reason, "on"), out(3, reason, "off"), out(4, reason, "off")]
    assert harm_suspected(even) is None


def test_the_others_add_up() -> None:
    assert harm_suspected([out(1, "memory_guard", "on"), out(2, "source_unreadable", "on")]) is not None


def test_the_washout_after_on_speaks_against_the_work() -> None:
    # within the block: ON first, so the washout of OFF follows the work
    assert harm_suspected([out(1, "program_died", "off", "washout", order="on_first")]) is not None
    # OFF first: the washout before OFF follows whatever the block before ended with
    off_first = out(2, "program_died", "off", "washout", order="off_first")
    assert harm_suspected([block(1, order="off_first"), off_first]) is not None
    assert harm_suspected([block(1, order="on_first"), off_first]) is None
    assert harm_suspected([off_first]) is None


def test_the_washout_of_on_itself_is_on() -> None:
    assert harm_suspected([out(1, "program_died", "on", "washout", order="off_first")]) is not None


def test_a_process_that_came_beside_the_others_is_no_death() -> None:
    assert harm_suspected([out(1, "program_restarted", "on"), out(2, "program_restarted", "on")]) is None


def test_harm_beside_the_reason_is_not_hidden() -> None:
    row = out(1, "phase", "on", "window", also=[{"reason": "program_died", "arm": "on", "part": "window"}])
    assert harm_suspected([row]) is not None


def test_the_same_thing_twice_in_one_block_is_one() -> None:
    row = out(1, "memory_guard", "on", "window", also=[{"reason": "memory_guard", "arm": "on", "part": "window"}])
    assert harm_suspected([row]) is None


# --- certificates -------------------------------------------------------------------------------------------------


def test_more_than_a_fifth_left_out_earns_no_certificate() -> None:
    at_limit = [*blocks(8), out(9, "phase", None), out(10, "phase", None)]
    assert certifiable(at_limit) is None
    assert no_certificate(spec(), at_limit) == []
    over = [*at_limit, out(11, "phase", None)]
    assert "3 of 11 blocks (27 %)" in (certifiable(over) or "")
    # blocks that were cut are lost as well
    assert certifiable([*at_limit, block(11, state="cut", reason="cut")]) is not None


def test_other_kinds_earn_none_and_neither_do_quantised_counts() -> None:
    assert no_certificate(spec(kind="null"), blocks(8))
    assert no_certificate(spec(kind="self"), blocks(8))
    rows = [block(n, order="on_first" if n % 2 else "off_first") for n in range(1, 9)]
    decision = decide(decide_blocks(rows))
    assert decision.verdict == "no slowdown shown"
    assert decision.zero_variance
    assert "quantised" in no_certificate(spec(), rows, decision)[0]


def test_a_collapse_earns_no_certificate_whatever_came_after_it() -> None:
    rows = [*blocks(8), block(9, state="left_out", reason=None, collapse="1 event/s for 60 s")]
    assert "collapsed in block 9" in no_certificate(spec(), rows)[0]


# --- a program that stands still ----------------------------------------------------------------------------------


def stepping(number: int, steps: int | None, arm: str = "off"):
    row = block(number)
    window = row.off if arm == "off" else row.on
    assert window is not None
    return row.model_copy(update={arm: window.model_copy(update={"steps": steps})})


def test_a_program_that_hardly_moves_in_off_earns_no_certificate() -> None:
    """Nothing could slow it down; and a step as long as both windows has one rate in both of them."""
    idle = [stepping(number, 4) for number in range(1, 9)]
    assert decide(decide_blocks(idle)).verdict == "no slowdown shown", "its rates alone would pass"
    (why,) = no_certificate(spec(), idle)
    assert "fewer than 5 steps in the OFF window" in why
    assert "8 of 8" in why


def test_an_idle_stretch_now_and_then_is_the_programs_own() -> None:
    for steps in (5, None):
        assert certifiable([stepping(number, steps) for number in range(1, 9)]) is None
    rows = [stepping(number, 100) for number in range(1, 10)]
    assert certifiable([*rows[:8], *(stepping(number, 0) for number in (9, 10))]) is None
    assert certifiable([*rows[:7], *(stepping(number, 0) for number in (8, 9))]) is not None


def test_few_steps_in_on_are_harm_and_no_reason_to_look_away() -> None:
    assert certifiable([stepping(number, 0, "on") for number in range(1, 9)]) is None
