"""What must hold of the sequential design for any blocks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.statistics import decide

orders = st.sampled_from(["on_first", "off_first"])
rates = st.floats(9.0, 11.0, allow_nan=False)
many_blocks = st.lists(st.tuples(orders, rates, rates), max_size=44)


def close(a: float | None, b: float | None) -> bool:
    return a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


@given(many_blocks, st.floats(1e-6, 1e6))
@settings(max_examples=40, deadline=None)
def test_the_unit_of_the_rate_does_not_matter(blocks: list, scale: float) -> None:
    one, other = decide(blocks), decide([(o, on * scale, off * scale) for o, on, off in blocks])
    assert (one.verdict, one.n, one.more_blocks) == (other.verdict, other.n, other.more_blocks)
    assert close(one.R, other.R)
    assert close(one.lo, other.lo)


@given(st.lists(st.tuples(orders, rates, rates), min_size=8, max_size=8))
@settings(max_examples=40, deadline=None)
def test_swapping_the_arms_mirrors_the_estimate(blocks: list) -> None:
    other = {"on_first": "off_first", "off_first": "on_first"}
    one, mirrored = decide(blocks), decide([(other[o], off, on) for o, on, off in blocks])
    if one.R is None or one.lo is None or one.b is None:
        assert mirrored.R is None
        return
    assert mirrored.R is not None
    assert mirrored.hi is not None
    assert close(one.R, 1.0 / mirrored.R)
    assert close(one.lo, 1.0 / mirrored.hi)
    assert close(one.b, mirrored.b)


@given(many_blocks, many_blocks)
@settings(max_examples=40, deadline=None)
def test_more_blocks_never_change_a_decision(blocks: list, more: list) -> None:
    before = decide(blocks)
    after = decide(blocks + more)
    assert after.looks[: len(before.looks)] == before.looks
    if before.verdict != "inconclusive":
        assert (after.verdict, after.n, after.R, after.lo, after.hi) == (
            before.verdict, before.n, before.R, before.lo, before.hi,
        )  # fmt: skip


@given(st.lists(st.tuples(orders, rates, rates), min_size=8, max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_blocks_within_a_look_does_not_matter(blocks: list, random) -> None:
    shuffled = list(blocks)
    random.shuffle(shuffled)
    one, other = decide(blocks), decide(shuffled)
    assert one.verdict == other.verdict
    assert pytest.approx(other.R) == one.R
    assert one.lo == pytest.approx(other.lo)


@given(st.lists(st.tuples(orders, st.floats(0.1, 100.0), st.floats(0.1, 100.0)), max_size=12))
@settings(max_examples=40, deadline=None)
def test_a_run_of_eight_blocks_is_never_refused(blocks: list) -> None:
    assert decide(blocks, n_max=8).verdict != "refused"


@given(many_blocks, st.floats(0.0, 0.5))
@settings(max_examples=40, deadline=None)
def test_bounds_enclose_the_estimate_and_agree_with_the_verdict(blocks: list, margin: float) -> None:
    got = decide(blocks, margin)
    if got.R is None:
        return
    assert got.lo <= got.R <= got.hi
    if got.verdict == "no slowdown shown":
        assert got.lo >= 1.0 - margin - 1e-9
    if got.verdict == "slowdown":
        assert got.hi < 1.0
        assert 1.0 - margin > got.R


@given(many_blocks)
@settings(max_examples=40, deadline=None)
def test_a_wider_margin_never_turns_a_pass_into_anything_else(blocks: list) -> None:
    if decide(blocks[:8], 0.02).verdict == "no slowdown shown":
        assert decide(blocks[:8], 0.05).verdict == "no slowdown shown"
