"""Honesty checks: what alarms, what stays quiet, and what says that it sees too little."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest

from policies.harness.honesty import check_run, judge_null, rare_harm_share

NAMES = (
    "neighbouring blocks",
    "runs about the median",
    "first half against second",
    "trend of the effect",
    "order effect",
    "quantised counts",
    "rare harm",
)


def blocks_of(d, o) -> list[tuple[str, float, float]]:
    return [("on_first" if s > 0 else "off_first", math.exp(x), 1.0) for x, s in zip(d, o, strict=True)]


def noise(seed: int, n: int, sd: float = 0.01):
    rng = np.random.default_rng(seed)
    return sd * rng.standard_normal(n), np.where(rng.random(n) < 0.5, 1.0, -1.0)


def checks(blocks, margin: float = 0.02):
    return {check.name: check for check in check_run(blocks, margin)}


@lru_cache
def shares_of_alarms(n: int, shape: Callable[[int, int, np.ndarray], np.ndarray], runs: int = 300) -> dict[str, float]:
    """Of simulated runs at sd 1 % with this effect, the share in which each check alarms."""
    alarms = dict.fromkeys(NAMES, 0)
    for seed in range(runs):
        d, o = noise(seed, n)
        for check in check_run(blocks_of(d + shape(n, seed, o), o), 0.02):
            alarms[check.name] += check.alarm
    return {name: count / runs for name, count in alarms.items()}


def wander(n: int, seed: int, _o) -> np.ndarray:
    """An effect that wanders: AR(1) .9 from block to block, as large as the noise."""
    rng = np.random.default_rng(10_000 + seed)
    level = np.empty(n)
    level[0] = rng.standard_normal()
    for i in range(1, n):
        level[i] = 0.9 * level[i - 1] + math.sqrt(1 - 0.81) * rng.standard_normal()
    return 0.01 * level


def still(n: int, _seed: int, _o) -> np.ndarray:
    return np.zeros(n)


def drift(_n: int, _seed: int, o: np.ndarray) -> np.ndarray:
    """5 % an hour: half a percent from window to window."""
    return -0.005 * o


def fade(n: int, _seed: int, _o: np.ndarray) -> np.ndarray:
    return np.linspace(-0.04, 0.0, n)


def test_every_check_is_there_and_says_what_it_sees() -> None:
    d, o = noise(1, 20)
    got = check_run(blocks_of(d, o), 0.02)
    assert tuple(check.name for check in got) == NAMES
    assert all(check.sees and check.outcome for check in got)


@pytest.mark.parametrize("name", NAMES[:5])
def test_quiet_runs_alarm_rarely(name: str) -> None:
    # 5 % and three standard errors at 300 runs
    assert shares_of_alarms(40, still)[name] <= 0.09


@pytest.mark.parametrize(("name", "seen"), [(NAMES[0], 0.58), (NAMES[1], 0.36), (NAMES[2], 0.41), (NAMES[3], 0.42)])
def test_a_wandering_effect_is_seen_about_as_often_as_said(name: str, seen: float) -> None:
    # the published shares, within four standard errors and the room that "wanders" leaves
    assert shares_of_alarms(40, wander)[name] == pytest.approx(seen, abs=0.15)


def test_drift_shows_in_the_order_effect() -> None:
    assert shares_of_alarms(40, drift)["order effect"] == pytest.approx(0.87, abs=0.08)


def test_the_order_effect_has_the_sign_of_the_drift() -> None:
    d, o = noise(3, 40, 0.001)
    rising = checks(blocks_of(d - 0.01 * o, o))["order effect"]
    assert rising.alarm
    assert "+1.0" in rising.outcome
    assert "-1.0" in checks(blocks_of(d + 0.01 * o, o))["order effect"].outcome


def test_a_fading_effect_is_seen_at_eight_blocks() -> None:
    fading = shares_of_alarms(8, fade)["trend of the effect"]
    assert fading == pytest.approx(0.86, abs=0.08)


def test_with_few_blocks_a_check_that_cannot_see_says_so() -> None:
    d, o = noise(5, 8)
    o[:2] = (1, -1)
    got = checks(blocks_of(d, o))
    assert [name for name in NAMES if got[name].state == "too few blocks"] == [*NAMES[:3], "order effect"]
    assert "too few blocks to check (8" in got["order effect"].outcome
    assert all(check.state == "too few blocks" for check in check_run([], 0.02))


def test_blocks_that_do_not_vary_are_no_evidence() -> None:
    blocks = [("on_first" if i % 2 else "off_first", 10.0, 10.0) for i in range(12)]
    got = checks(blocks)
    assert got["quantised counts"].alarm
    assert "not evidence" in got["quantised counts"].outcome
    assert got["neighbouring blocks"].state == "too few blocks"


def test_whole_counts_show_as_few_distinct_ratios() -> None:
    counts = [15, 15, 14, 15, 15, 14, 15, 15, 15, 14, 15, 15]
    blocks = [("on_first" if i % 2 else "off_first", c / 300, 15 / 300) for i, c in enumerate(counts)]
    assert checks(blocks)["quantised counts"].alarm
    d, o = noise(6, 12)
    assert not checks(blocks_of(d, o))["quantised counts"].alarm


@pytest.mark.parametrize(("n", "pct"), [(8, 31), (12, 22), (20, 14), (40, 7)])
def test_rare_harm_may_be_unseen(n: int, pct: int) -> None:
    assert round(100 * rare_harm_share(n)) == pct


def test_rare_harm_needs_a_block() -> None:
    with pytest.raises(ValueError, match="n 0"):
        rare_harm_share(0)


def test_one_window_far_below_the_others_is_named() -> None:
    d, o = noise(7, 12, 0.005)
    d[4] = math.log(0.8)
    blocks = blocks_of(d, o)
    check = checks(blocks)["rare harm"]
    assert check.alarm
    assert "80.0 %" in check.outcome


# --- A/A ----------------------------------------------------------------------------------------------------------


def test_an_aa_run_without_bias_passes_and_says_its_width() -> None:
    d, o = noise(8, 12)
    got = judge_null(blocks_of(d, o), 0.02)
    assert got.passed
    assert got.half_width is not None
    assert f"{100 * got.half_width:.2f} %" in got.words
    assert got.lo99 is not None
    assert got.hi99 is not None
    assert got.lo99 < 1.0 < got.hi99


def test_the_interval_of_an_aa_run_is_the_printed_99_percent_one() -> None:
    d, o = noise(8, 12)
    got = judge_null(blocks_of((d - d.mean()) / d.std(ddof=1) * 0.02, o), 0.02)
    assert got.lo99 is not None
    # Student's t of 11 degrees of freedom exceeds 3.106 in 0.5 of 100 cases
    assert got.lo99 == pytest.approx(math.exp(-3.106 * 0.02 / math.sqrt(12)), abs=1e-5)


def test_an_aa_run_sees_a_bias() -> None:
    d, o = noise(9, 12, 0.005)
    got = judge_null(blocks_of(d - 0.02, o), 0.02)
    assert got.holds_1 is False
    assert not got.passed
    assert "does not hold 1" in got.words


def test_a_noisy_aa_run_that_holds_1_does_not_pass_as_proof() -> None:
    d, o = noise(10, 12)
    got = judge_null(blocks_of((d - d.mean()) / d.std(ddof=1) * 0.05, o), 0.02)
    assert got.holds_1
    assert not got.narrow
    assert not got.passed
    assert "shows little" in got.words


@pytest.mark.parametrize(("sd", "chance"), [(0.01, 1.00), (0.02, 0.64), (0.05, 0.08)])
def test_what_an_aa_run_of_twelve_blocks_can_see(sd: float, chance: float) -> None:
    d, o = noise(11, 12)
    exact = (d - d.mean()) / d.std(ddof=1) * sd
    assert judge_null(blocks_of(exact, o), 0.02).sees_margin == pytest.approx(chance, abs=0.02)


def test_too_short_an_aa_run_says_so() -> None:
    d, o = noise(12, 7)
    got = judge_null(blocks_of(d, o), 0.02)
    assert got.holds_1 is None
    assert not got.passed
    assert "too few" in got.words
