"""What a run does next: coins, looks, ends."""

from __future__ import annotations

import math

import pytest
from harness_rows import block, blocks, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.harness.schedule import End, Judge, NextBlock, coin, longest_s, most_blocks, next_action, run_looks

# --- the coin -----------------------------------------------------------------------------------------------------


def test_the_coin_is_the_same_for_ever() -> None:
    """These orders stand in journals: a resumed run, and a reader who verifies one, must find the same."""
    orders = "".join("N" if coin(7, number) == "on_first" else "f" for number in range(1, 25))
    assert orders == "fNffNfffNfffNfNNNffNffNf"


def test_the_coin_is_fair() -> None:
    tosses = 20_000
    heads = sum(coin(seed, number) == "on_first" for seed in range(200) for number in range(100))
    assert abs(heads - tosses / 2) <= 4.0 * math.sqrt(tosses) / 2


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 7])
def test_the_coin_does_not_know_the_past(lag: int) -> None:
    """Not balanced, not alternating: whatever came ``lag`` blocks ago, both orders are as likely."""
    pairs = [(coin(seed, number), coin(seed, number + lag)) for seed in range(200) for number in range(1, 101)]
    alike = sum(a == b for a, b in pairs)
    assert abs(alike - len(pairs) / 2) <= 4.0 * math.sqrt(len(pairs)) / 2


def test_orders_of_eight_blocks_are_not_balanced() -> None:
    """Of 2,000 runs about 1 in 128 has all eight in one order; a balanced design would have none."""
    one_order = sum(len({coin(seed, number) for number in range(1, 9)}) == 1 for seed in range(2_000))
    expected = 2_000 / 128
    assert abs(one_order - expected) <= 4.0 * math.sqrt(expected)


@given(st.integers(0, 2**63), st.integers(1, 10_000))
@settings(max_examples=50)
def test_the_coin_takes_any_seed(seed: int, number: int) -> None:
    assert coin(seed, number) in ("on_first", "off_first")


# --- looks and lengths --------------------------------------------------------------------------------------------


def test_looks_are_every_fourth_from_the_first() -> None:
    assert run_looks(spec()) == spec().looks == (8, 12, 16, 20, 24, 28, 32, 36, 40)
    assert spec(max_hours=2.4, first_look=12).looks == (12,)


@pytest.mark.parametrize(("asked", "judged"), [(12, 12), (8, 8), (1, 8), (9, 12), (100, 40)])
def test_an_aa_run_is_judged_once_at_its_planned_number(asked: int, judged: int) -> None:
    assert run_looks(spec(kind="null", blocks=asked)) == (judged,)


def test_a_run_starts_no_more_blocks_than_fit_into_its_hours() -> None:
    assert most_blocks(spec()) == 40
    assert longest_s(spec(), switch_s=0.0) == 60.0 + 8 * 3600.0
    # so short that only the first look fits: the fifth that may be left out may be repeated
    assert most_blocks(spec(max_hours=1.6)) == 10


# --- what next ----------------------------------------------------------------------------------------------------


def test_a_run_begins_with_block_one_and_its_coin() -> None:
    assert next_action(spec(seed=7), [], {}) == NextBlock(1, coin(7, 1))


def test_blocks_follow_until_the_first_look() -> None:
    rows = []
    for number in range(1, 9):
        assert next_action(spec(), rows, {}) == NextBlock(number, coin(0, number))
        rows.append(block(number))
    assert next_action(spec(), rows, {}) == Judge(8, 40, 8)


def test_a_look_is_asked_for_once_and_an_undecided_run_goes_on() -> None:
    rows = blocks(8)
    assert next_action(spec(), rows, {8: "inconclusive"}) == NextBlock(9, coin(0, 9))
    assert next_action(spec(), blocks(11), {8: "inconclusive"}) == NextBlock(12, coin(0, 12))
    assert next_action(spec(), blocks(12), {8: "inconclusive"}) == Judge(12, 40, 8)


def test_a_look_missed_in_a_crash_is_made_up_in_order() -> None:
    assert next_action(spec(), blocks(13), {}) == Judge(8, 40, 8)
    assert next_action(spec(), blocks(13), {8: "inconclusive"}) == Judge(12, 40, 8)


@pytest.mark.parametrize("verdict", ["no slowdown shown", "slowdown", "refused"])
def test_a_look_that_decides_ends_the_run(verdict) -> None:
    action = next_action(spec(), blocks(8), {8: verdict})
    assert isinstance(action, End)
    assert action.ending == verdict
    assert "8 blocks" in action.reason


def test_undecided_at_the_last_look_is_inconclusive() -> None:
    judged = dict.fromkeys(range(8, 41, 4), "inconclusive")
    action = next_action(spec(), blocks(40), judged)
    assert isinstance(action, End)
    assert action.ending == "inconclusive"


def test_a_left_out_block_is_repeated_under_a_new_number_and_coin() -> None:
    rows = [*blocks(3), block(4, state="left_out", reason="phase", reason_arm="on")]
    assert next_action(spec(), rows, {}) == NextBlock(5, coin(0, 5))
    rows = [*rows, *(block(number) for number in range(5, 9))]
    assert next_action(spec(), rows, {}) == NextBlock(9, coin(0, 9))
    assert next_action(spec(), [*rows, block(9)], {}) == Judge(8, 40, 8)


def test_a_collapse_ends_the_run_as_a_slowdown_at_once() -> None:
    rows = [block(1), block(2, state="left_out", collapse="0.1/s for 60 s")]
    action = next_action(spec(), rows, {})
    assert isinstance(action, End)
    assert action.ending == "slowdown"
    assert "block 2" in action.reason


def test_a_counted_on_window_without_progress_is_a_slowdown() -> None:
    action = next_action(spec(), [block(1), block(2, on=0.0)], {})
    assert isinstance(action, End)
    assert action.ending == "slowdown"


def test_three_no_dose_blocks_in_a_row_end_the_run() -> None:
    def no_dose(number: int):
        return block(number, state="left_out", reason="no_dose", reason_arm="on")

    assert isinstance(next_action(spec(), [no_dose(1), no_dose(2)], {}), NextBlock)
    action = next_action(spec(), [no_dose(1), no_dose(2), no_dose(3)], {})
    assert isinstance(action, End)
    assert action.ending == "no_dose"
    assert isinstance(next_action(spec(), [no_dose(1), block(2), no_dose(3), no_dose(4)], {}), NextBlock)
    # a block that was cut says nothing of the dose
    rows = [no_dose(1), no_dose(2), block(3, state="cut", reason="cut"), no_dose(4)]
    assert isinstance(next_action(spec(), rows, {}), End)


def test_harm_that_was_left_out_ends_the_run() -> None:
    action = next_action(spec(), [block(1, state="left_out", reason="program_died", reason_arm="on")], {})
    assert isinstance(action, End)
    assert action.ending == "harm_suspected"


def test_nothing_speaks_against_work_that_did_not_run() -> None:
    died = block(1, state="left_out", reason="program_died", reason_arm="on")
    assert isinstance(next_action(spec(kind="null"), [died], {}), NextBlock)


def test_many_left_out_blocks_do_not_stop_a_run_early() -> None:
    rows = [block(n, state="left_out", reason="phase") if n % 2 else block(n) for n in range(1, 15)]
    assert isinstance(next_action(spec(), rows, {}), NextBlock)


def test_left_out_blocks_cannot_carry_a_run_past_its_hours() -> None:
    rows = [block(n, state="left_out", reason="phase") for n in range(1, 33)]
    assert isinstance(next_action(spec(), rows, {}), NextBlock)
    action = next_action(spec(), [*rows, block(33, state="left_out", reason="phase")], {})
    assert isinstance(action, End)
    assert action.ending == "inconclusive"
    assert "33 left out" in action.reason


def test_no_block_starts_that_would_end_after_the_limit() -> None:
    assert isinstance(next_action(spec(), blocks(4), {}, elapsed_s=longest_s(spec()) - 720.0), NextBlock)
    late = next_action(spec(), blocks(4), {}, elapsed_s=longest_s(spec()) - 719.0)
    assert isinstance(late, End)
    assert late.ending == "inconclusive"
    # an owner's hours that end earlier
    assert isinstance(next_action(spec(), blocks(4), {}, elapsed_s=3600.0, limit_s=4000.0), End)
    # what is measured is judged, however late it is
    assert next_action(spec(), blocks(8), {}, elapsed_s=1e9) == Judge(8, 40, 8)


def test_an_aa_run_is_not_judged_before_its_number() -> None:
    null = spec(kind="null", blocks=12)
    assert isinstance(next_action(null, blocks(8), {}), NextBlock)
    assert next_action(null, blocks(12), {}) == Judge(12, 12, 12)
    done = next_action(null, blocks(12), {12: "inconclusive"})
    assert isinstance(done, End)


kinds = st.sampled_from(["counted", "phase", "no_dose", "cut"])


@given(st.lists(kinds, max_size=60), st.sampled_from([1.6, 2.0, 4.0, 8.0]))
@settings(max_examples=40, deadline=None)
def test_any_undecided_run_ends_and_is_judged_at_looks_only(happen: list[str], max_hours: float) -> None:
    """Whatever befalls the blocks, the run ends within its cap, with every look judged once and in order."""
    this, rows, judged = spec(max_hours=max_hours), [], {}
    befalls = iter(happen)
    for _ in range(200):
        action = next_action(this, rows, judged)
        if isinstance(action, End):
            break
        if isinstance(action, Judge):
            assert action.n in this.looks
            assert action.n not in judged
            assert action.n > max(judged, default=0)
            judged[action.n] = "inconclusive"
            continue
        assert action.number == len(rows) + 1
        what = next(befalls, "counted")
        if what == "counted":
            rows.append(block(action.number))
        else:
            rows.append(block(action.number, state="cut" if what == "cut" else "left_out", reason=what))
    assert isinstance(action, End)
    assert len(rows) <= most_blocks(this)
    assert action.ending in ("inconclusive", "no_dose")
