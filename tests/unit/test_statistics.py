"""The sequential design as a function: vectors, the rules one by one, edges, bad input, and the module as a child process."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from policies.harness.ratios import fit
from policies.statistics import LOOK_P, analyse, chi2_quantile, decide, likely_done_by, look_p, t_quantile

ROOT = Path(__file__).parents[2]
VECTORS = json.loads((ROOT / "tests" / "data" / "harness_vectors.json").read_text(encoding="utf-8"))

# Signs and errors with sum e = sum o*e = 0 in the first eight, so that mu, b and s are what a test asks for.
SIGNS = (1, 1, 1, 1, -1, -1, -1, -1)
ERRORS = (1, -1, 1, -1, 1, -1, 1, -1)


def blocks_of(mu: float, s: float, n: int = 8, b: float = 0.0) -> list[tuple[str, float, float]]:
    """n blocks (a multiple of 8) whose fit gives exactly mu and b, and at n = 8 the residual sd s."""
    scale = s * math.sqrt(6.0 / 8.0)
    return [
        (
            "on_first" if SIGNS[i % 8] > 0 else "off_first",
            10.0 * math.exp(mu + b * SIGNS[i % 8] + scale * ERRORS[i % 8]),
            10.0,
        )
        for i in range(n)
    ]


def same(got: float | None, expected: float | None) -> bool:
    if got is None or expected is None:
        return got is expected
    return abs(got - expected) <= 1e-6


def as_expected(got: object, vector: dict) -> None:
    for key, expected in vector["expect"].items():
        value = getattr(got, key)
        assert same(value, expected) if isinstance(expected, float) else value == expected, key


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda v: v["name"])
def test_plain_vectors(vector: dict) -> None:
    as_expected(analyse(vector["blocks"], vector["margin"]), vector)


@pytest.mark.parametrize("vector", VECTORS["final_vectors"], ids=lambda v: v["name"])
def test_final_vectors(vector: dict) -> None:
    as_expected(decide(vector["blocks"], vector["margin"]), vector)


# --- the pieces ---------------------------------------------------------------------------------------------------


def test_c_at_forty_blocks_is_the_published_row() -> None:
    published = (3.0679, 2.7082, 2.5755, 2.5067, 2.4646, 2.4362, 2.4158, 2.4003, 2.3883)
    for n, c in zip(range(8, 41, 4), published, strict=True):
        assert t_quantile(n - 2, look_p(40)) == pytest.approx(c, abs=5e-5)


def test_quantiles_are_those_of_printed_tables() -> None:
    assert t_quantile(1, 0.05) == pytest.approx(6.3138, abs=5e-5)
    assert t_quantile(10, 0.025) == pytest.approx(2.2281, abs=5e-5)
    assert t_quantile(60, 0.005) == pytest.approx(2.6603, abs=5e-5)
    assert chi2_quantile(6, 0.90) == pytest.approx(10.645, abs=5e-4)
    assert chi2_quantile(3, 0.20) == pytest.approx(1.005, abs=5e-4)


@pytest.mark.parametrize(
    ("n_max", "p"), [(8, 0.0439), (40, 0.0110), (44, 0.0099), (48, 0.0099), (52, 0.0088), (96, 0.0069), (180, 0.0052)]
)
def test_an_unlisted_n_max_takes_the_next_larger_row(n_max: int, p: float) -> None:
    assert look_p(n_max) == p
    assert decide([], n_max=n_max).p == p


def test_longer_runs_are_stricter_at_every_look() -> None:
    ps = [p for _, p in LOOK_P]
    assert ps == sorted(ps, reverse=True)


def test_fit_agrees_with_least_squares() -> None:
    d = np.array([0.01, -0.02, 0.015, 0.0, -0.01, 0.03, 0.002, -0.004, 0.011])
    o = np.array([1.0, -1, -1, 1, 1, 1, -1, 1, 1])
    got = fit(d.tolist(), o.tolist())
    design = np.column_stack([np.ones(9), o])
    (mu, b), rest, *_ = np.linalg.lstsq(design, d)
    covariance = rest[0] / 7 * np.linalg.inv(design.T @ design)
    assert got is not None
    assert (got.mu, got.b) == pytest.approx((mu, b))
    assert (got.se, got.se_b) == pytest.approx(tuple(np.sqrt(np.diag(covariance))))


def test_drift_goes_into_the_order_effect_and_not_into_r() -> None:
    got = decide(blocks_of(math.log(0.995), 0.004, b=0.08))
    assert pytest.approx(0.995) == got.R
    assert got.b == pytest.approx(0.08)
    assert got.verdict == "no slowdown shown"


def test_drift_stays_out_of_r_where_one_order_came_more_often() -> None:
    # the second window of a block runs 5 % faster, the work takes 1 %: a mean over three to one orders would say 0.966
    on_first, off_first = ("on_first", 9.9, 10.5), ("off_first", 9.9 * 1.05, 10.0)
    got = decide([on_first, on_first, on_first, off_first] * 2)
    assert pytest.approx(0.99) == got.R
    assert got.b == pytest.approx(-math.log(1.05))


# --- verdicts -----------------------------------------------------------------------------------------------------


def test_a_pass_needs_the_lower_bound_at_the_margin() -> None:
    half = t_quantile(6, 0.011) * 0.004 / math.sqrt(8)
    assert decide(blocks_of(math.log(0.98) + half + 1e-6, 0.004)).verdict == "no slowdown shown"
    assert decide(blocks_of(math.log(0.98) + half - 1e-6, 0.004)).verdict == "inconclusive"


def test_a_slowdown_needs_both_the_interval_under_one_and_the_estimate_under_the_margin() -> None:
    half = t_quantile(6, 0.011) * 0.03 / math.sqrt(8)
    assert half > -math.log(0.98)
    assert decide(blocks_of(-half - 1e-6, 0.03)).verdict == "slowdown"
    assert decide(blocks_of(-half + 1e-6, 0.03)).verdict == "inconclusive"
    # wholly under 1 with the estimate inside the margin
    inside = decide(blocks_of(math.log(0.981), 0.004))
    assert inside.hi is not None
    assert inside.hi < 1.0
    assert inside.verdict == "inconclusive"


def test_a_tie_with_the_margin_is_a_pass() -> None:
    blocks = [("on_first" if i % 2 else "off_first", 9.8, 10.0) for i in range(12)]
    assert decide(blocks).verdict == "no slowdown shown"
    assert decide([(order, 9.7999, off) for order, _, off in blocks]).verdict == "slowdown"


def test_the_first_look_that_decides_is_final() -> None:
    passed = blocks_of(0.0, 0.004)
    harmed = [("on_first" if i % 3 else "off_first", 7.0, 10.0) for i in range(32)]
    assert dataclasses.replace(decide(passed + harmed), usable=8) == decide(passed)


@pytest.mark.parametrize("n", [9, 10, 11])
def test_between_looks_nothing_is_judged(n: int) -> None:
    undecided = blocks_of(math.log(0.985), 0.02, 16)
    at_8, now = decide(undecided[:8]), decide(undecided[:n])
    assert (now.n, now.R, now.more_blocks, len(now.looks)) == (8, at_8.R, at_8.more_blocks, 1)
    assert now.usable == n


def test_blocks_beyond_n_max_are_not_looked_at() -> None:
    undecided = blocks_of(math.log(0.985), 0.02, 24)
    got = decide(undecided, n_max=18)
    assert (got.n_max, got.n, got.verdict) == (16, 16, "inconclusive")
    assert [look.n for look in got.looks] == [8, 12, 16]


def test_a_later_first_look_skips_the_earlier_ones() -> None:
    blocks = blocks_of(0.0, 0.002, 16)
    assert decide(blocks).n == 8
    assert decide(blocks, first_look=12).n == 12
    assert decide(blocks[:8], first_look=12).looks == ()


def test_one_order_only_gives_no_estimate_at_that_look() -> None:
    blocks = [("on_first", 10.0 + 0.01 * (i % 3), 10.0) for i in range(8)]
    got = decide(blocks)
    assert (got.verdict, got.n, got.R, got.lo, got.hi, got.more_blocks, got.refusal) == (
        "inconclusive", 8, None, None, None, None, None,
    )  # fmt: skip
    more = [*blocks, *(("off_first", 10.0 + 0.01 * (i % 3), 10.0) for i in range(4))]
    assert decide(more).n == 12
    assert decide(more).verdict == "no slowdown shown"


def test_one_order_with_wild_noise_is_not_refused() -> None:
    assert decide([("off_first", 10.0 + 5.0 * (i % 2), 10.0) for i in range(8)]).verdict == "inconclusive"


# --- collapse and void --------------------------------------------------------------------------------------------


def test_no_progress_in_on_is_a_slowdown_at_any_number_of_blocks() -> None:
    for before in (0, 3, 8, 20):
        blocks = [*blocks_of(0.0, 0.002, 24)[:before], ("off_first", 0.0, 10.0)]
        got = decide(blocks)
        assert (got.verdict, got.n, got.R, got.lo, got.hi, got.more_blocks) == (
            "slowdown",
            before,
            None,
            None,
            None,
            None,
        )
        assert got.collapse
    assert analyse([("on_first", 0.0, 5.0)]).verdict == "slowdown"


def test_blocks_without_off_progress_are_void() -> None:
    blocks = blocks_of(0.0, 0.002)
    with_void = [blocks[0], ("on_first", 10.0, 0.0), *blocks[1:], ("off_first", 0.0, 0.0)]
    got = decide(with_void)
    assert (got.verdict, got.n, got.R, got.void, got.usable) == ("no slowdown shown", 8, decide(blocks).R, 2, 8)
    assert decide(with_void[:7]).n == 6


# --- refusal ------------------------------------------------------------------------------------------------------


def test_refusal_begins_at_seven_point_one_percent_at_the_defaults() -> None:
    limit = -math.log(0.98) * math.sqrt(40) / (2.3883 * math.sqrt(6 / 10.645))
    assert limit == pytest.approx(0.071, abs=5e-4)
    below, above = decide(blocks_of(0.0, limit - 2e-5)), decide(blocks_of(0.0, limit + 2e-5))
    assert (below.verdict, below.refusal) == ("inconclusive", None)
    assert above.verdict == "refused"
    assert above.more_blocks is None
    assert above.refusal is not None
    assert above.refusal.s_limit == pytest.approx(limit, rel=1e-4)


def test_a_refusal_says_what_would_do() -> None:
    blocks = blocks_of(0.0, 0.09)
    refusal = decide(blocks).refusal
    assert refusal is not None
    assert refusal.n_max_needed is not None
    assert decide(blocks, n_max=refusal.n_max_needed).verdict == "inconclusive"
    assert decide(blocks, n_max=refusal.n_max_needed - 4).verdict == "refused"
    assert decide(blocks, margin=refusal.margin_needed + 1e-6).verdict == "inconclusive"
    assert decide(blocks, margin=refusal.margin_needed - 1e-6).verdict == "refused"


def test_a_slowdown_is_said_before_a_refusal() -> None:
    assert decide(blocks_of(-0.5, 0.09)).verdict == "slowdown"


def test_refusals_come_at_the_first_look_only() -> None:
    quiet, wild = blocks_of(math.log(0.985), 0.02), blocks_of(0.0, 0.5)
    assert [look.verdict for look in decide(quiet + wild).looks] == ["inconclusive"] * 3


def test_with_a_later_first_look_the_refusal_uses_its_degrees_of_freedom() -> None:
    blocks = blocks_of(0.0, 0.075, 16)
    got = decide(blocks, first_look=16)
    assert got.s is not None
    limit = -math.log(0.98) * math.sqrt(40) / (t_quantile(38, 0.011) * math.sqrt(14 / chi2_quantile(14, 0.9)))
    assert (got.verdict == "refused") == (got.s > limit)


# --- how many more ------------------------------------------------------------------------------------------------


def test_more_blocks_is_the_first_look_whose_interval_would_decide() -> None:
    got = decide(blocks_of(math.log(0.99), 0.03))
    assert got.verdict == "inconclusive"
    assert got.k50 is not None
    assert got.more_blocks == got.k50 - 8
    gap = math.log(0.99) - math.log(0.98)
    for total in range(12, got.k50 + 1, 4):
        assert (t_quantile(total - 2, 0.011) * 0.03 / math.sqrt(total) <= gap) == (total == got.k50)
    assert got.k80 is None or got.k80 >= got.k50


def test_more_blocks_can_be_more_than_the_run_may_use_and_none_at_the_margin() -> None:
    far = decide(blocks_of(math.log(0.983), 0.02))
    assert far.more_blocks is not None
    assert 8 + far.more_blocks > 40
    assert decide(blocks_of(math.log(0.9802), 0.02)).more_blocks is None


def test_below_the_margin_the_gap_is_to_full_speed() -> None:
    got = decide(blocks_of(math.log(0.975), 0.03))
    assert got.verdict == "inconclusive"
    assert got.k50 is not None
    assert t_quantile(got.k50 - 2, 0.011) * 0.03 / math.sqrt(got.k50) <= -math.log(0.975)
    assert got.k50 == 12 or t_quantile(got.k50 - 6, 0.011) * 0.03 / math.sqrt(got.k50 - 4) > -math.log(0.975)


def test_likely_done_uses_the_upper_limit_of_the_sd() -> None:
    # 1.728 after block 4 and 1.398 after look 8
    for s, df, seen, factor in ((0.01, 3, 4, 1.728), (0.02, 3, 4, 1.728), (0.02, 6, 8, 1.398)):
        expected = next(
            (
                n
                for n in range(8, 41, 4)
                if n > seen and (t_quantile(n - 2, 0.011) + 0.84) * factor * s / math.sqrt(n) <= -math.log(0.98)
            ),
            None,
        )
        assert likely_done_by(s, df, seen, 0.02, 40) == expected
    assert likely_done_by(0.2, 3, 4, 0.02, 40) is None


# --- bad input ----------------------------------------------------------------------------------------------------

GOOD = ("on_first", 1.0, 1.0)


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([("on_first", math.nan, 1.0)], "block 1: on_rate nan"),
        ([GOOD, ("on_first", 1.0, math.inf)], "block 2: off_rate inf"),
        ([("off_first", -1.0, 1.0)], "on_rate -1.0"),
        ([("off_first", True, 1.0)], "on_rate True"),
        ([("off_first", "1", 1.0)], "on_rate '1'"),
        ([("off_first", None, 1.0)], "on_rate None"),
        ([("off_first", 10**400, 1.0)], "on_rate"),
        ([("onfirst", 1.0, 1.0)], "order 'onfirst'"),
        ([("on_first", 1.0)], "block 1"),
        ([5], "block 1"),
    ],
)
def test_bad_blocks_are_named(blocks: list, said: str) -> None:
    for function in (decide, analyse):
        with pytest.raises(ValueError, match=said):
            function(blocks)


@pytest.mark.parametrize("margin", [-0.01, 1.0, 2.0, math.nan, math.inf, "0.02", None, True])
def test_bad_margins_are_named(margin: object) -> None:
    for function in (decide, analyse):
        with pytest.raises(ValueError, match="margin"):
            function([GOOD], margin)  # type: ignore[operator]


@pytest.mark.parametrize(
    "bad", [{"n_max": 7}, {"n_max": 201}, {"n_max": 40.0}, {"first_look": 4}, {"first_look": 10}, {"first_look": 44}]
)
def test_bad_looks_are_named(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        decide([GOOD], **bad)


# --- as a child process -------------------------------------------------------------------------------------------


def child(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "policies.statistics"],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )


def test_the_module_answers_as_the_function() -> None:
    vector = VECTORS["final_vectors"][2]
    done = child(json.dumps({"blocks": vector["blocks"], "margin": 0.02, "n_max": 40, "first_look": 8}))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(decide(vector["blocks"]).as_dict()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"blocks": 3}',
        '{"blocks": [["x", 1, 1]]}',
        '{"blocks": [], "margn": 1}',
        '{"blocks": [["on_first", NaN, 1]]}',
    ],
)
def test_the_module_refuses_bad_input_with_a_reason(text: str) -> None:
    from policies.statistics import main

    status, said = main(text.encode())
    assert status == 2
    assert said


def test_the_module_exits_2_with_the_reason_on_stderr() -> None:
    done = child('{"blocks": [["on_first", 1, -2]]}')
    assert done.returncode == 2
    assert "block 1: off_rate -2" in done.stderr
    assert done.stdout == ""
