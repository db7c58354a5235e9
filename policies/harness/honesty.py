"""Honesty checks: what a run's blocks say about the method itself. Reported with every run, never part of its verdict.

Source: ``harness-statistics.md``, section 6. Each check says what it found and what it can and cannot see; with few blocks
it says that it sees next to nothing, since a check that cannot alarm must not look like one that did not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from policies.harness.ratios import Block, Fit, fit, log_ratios
from policies.harness.verdict import ZERO_SD
from policies.statistics import analyse, t_quantile, two_sided_t_power

__all__ = ["ENOUGH_BLOCKS", "AaJudgement", "Check", "State", "check_run", "judge_null", "rare_harm_share"]

State = Literal["quiet", "alarm", "too few blocks"]

ENOUGH_BLOCKS = 12  # at 8 all but the trend see next to nothing (4 to 12 %)
FEWEST_FOR_TREND = 8
ONE_SIDED_5 = 1.645
LEVEL = 0.05  # of the two-sided t checks
NULL_LEVEL = 0.01  # the A/A interval is a 99 % one
FEWEST_NULL_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``value`` is its statistic (None: not computed), ``outcome`` what it found, ``sees`` what it can see."""

    name: str
    value: float | None
    state: State
    outcome: str
    sees: str

    @property
    def alarm(self) -> bool:
        return self.state == "alarm"


@dataclass(frozen=True, slots=True)
class AaJudgement:
    """What an A/A run shows. R and bounds as ratios; ``half_width`` is that of the 90 % interval.

    ``holds_1``: the 99 % interval holds 1. ``sees_margin``: chance that such a run sees a bias as large as the margin.
    """

    n: int
    R: float | None
    lo99: float | None
    hi99: float | None
    half_width: float | None
    holds_1: bool | None
    narrow: bool | None
    sees_margin: float | None
    words: str

    @property
    def passed(self) -> bool:
        """The interval holds 1 and is narrow enough to mean something at this margin."""
        return bool(self.holds_1 and self.narrow)


def check_run(blocks: Sequence[Block], margin: float) -> tuple[Check, ...]:
    """All checks of a run's counted blocks, in the order in which they ran. Raises ValueError as ``decide`` does."""
    d, o, _, _ = log_ratios(blocks)
    fitted = fit(d, o) if d else None
    return (
        _lag_1(fitted),
        _runs(fitted),
        _halves(fitted),
        _trend(d),
        _order(fitted),
        _variance(d, fitted),
        _rare_harm(d, margin),
    )


def rare_harm_share(n: int) -> float:
    """The share of ON windows in which harm may be and none of ``n`` windows shows it, with a chance of 5 %."""
    if n < 1:
        raise ValueError(f"n {n}: rare harm is told from at least one block")
    return float(1.0 - 0.05 ** (1.0 / n))


def judge_null(blocks: Sequence[Block], margin: float) -> AaJudgement:
    """Judge an A/A run: both windows OFF, through the same code, a number of blocks fixed before the run."""
    plain = analyse(blocks, margin)
    n, s = plain.n, plain.s
    if n < FEWEST_NULL_BLOCKS or s is None or plain.R is None or plain.lo is None or plain.hi is None:
        words = f"{n} blocks are too few for an A/A test: it takes {FEWEST_NULL_BLOCKS} or {ENOUGH_BLOCKS}"
        return AaJudgement(n, plain.R, None, None, None, None, None, None, words)
    mu, se = math.log(plain.R), s / math.sqrt(n)
    reach = t_quantile(n - 1, NULL_LEVEL / 2.0) * se
    holds = abs(mu) <= reach
    half = (plain.hi - plain.lo) / 2.0
    # no noise at all: either nothing varies (quantised) or every bias would be seen; say the former, promise nothing
    sees = two_sided_t_power(n - 1, -math.log1p(-margin) / se, NULL_LEVEL) if s >= ZERO_SD and margin > 0.0 else None
    found = "holds 1, as it must" if holds else "does not hold 1: the method itself is off by that much here"
    words = (
        f"A/A over {n} blocks: the 99 % interval {_percent(mu - reach)}–{_percent(mu + reach)} % {found}. "
        f"Half-width of the 90 % interval {100 * half:.2f} %, "
        + (f"within the {100 * margin:g} % margin" if half <= margin else f"wider than the {100 * margin:g} % margin")
        + (f"; such a run sees a bias of {100 * margin:g} % with a chance of {100 * sees:.0f} %" if sees else "")
        + ("; it shows little at this noise" if sees is not None and sees < 0.5 else "")
        + "."
    )
    return AaJudgement(n, plain.R, math.exp(mu - reach), math.exp(mu + reach), half, holds, half <= margin, sees, words)


def _too_few(name: str, n: int, least: int, sees: str) -> Check:
    return Check(name, None, "too few blocks", f"too few blocks to check ({n}, takes {least})", sees)


def _told(name: str, value: float, alarm: bool, outcome: str, sees: str) -> Check:
    return Check(name, value, "alarm" if alarm else "quiet", outcome, sees)


def _lag_1(fitted: Fit | None) -> Check:
    name = "neighbouring blocks"
    sees = (
        "An effect or noise that wanders from block to block. Alarms in 4 % of quiet runs; of runs whose effect wanders "
        "slowly in 58 % at 40 blocks, 14 % at 12, next to none at 8."
    )
    if fitted is None or fitted.n < ENOUGH_BLOCKS or fitted.s < ZERO_SD:
        return _too_few(name, fitted.n if fitted else 0, ENOUGH_BLOCKS, sees)
    e, n = fitted.residuals, fitted.n
    r1 = math.fsum([a * b for a, b in pairwise(e)]) / math.fsum([x * x for x in e])
    z = (r1 + 1.0 / n) * math.sqrt(n)
    alarm = z > ONE_SIDED_5
    outcome = f"correlation of neighbours {r1:+.2f}: " + ("they are alike, noise has memory" if alarm else "none seen")
    return _told(name, z, alarm, outcome, sees)


def _runs(fitted: Fit | None) -> Check:
    name = "runs about the median"
    sees = (
        "The same as neighbouring blocks, untouched by outliers. Alarms in 3 % of quiet runs; of runs whose effect "
        "wanders slowly in 36 % at 40 blocks, 15 % at 12."
    )
    if fitted is None or fitted.n < ENOUGH_BLOCKS or fitted.s < ZERO_SD:
        return _too_few(name, fitted.n if fitted else 0, ENOUGH_BLOCKS, sees)
    middle = statistics.median(fitted.residuals)
    sides = [x > middle for x in fitted.residuals if x != middle]
    above, below = sides.count(True), sides.count(False)
    n = above + below
    if min(above, below) < 2:  # most blocks sit on the median itself: quantised, and no runs to count
        return _too_few(name, n, ENOUGH_BLOCKS, sees)
    runs = 1 + sum(1 for a, b in pairwise(sides) if a != b)
    expected = 1.0 + 2.0 * above * below / n
    z = (runs - expected) / math.sqrt((expected - 1.0) * (expected - 2.0) / (n - 1.0))
    alarm = z < -ONE_SIDED_5
    outcome = f"{runs} runs, {expected:.0f} expected: " + ("too few, the level wandered" if alarm else "as expected")
    return _told(name, z, alarm, outcome, sees)


def _halves(fitted: Fit | None) -> Check:
    name = "first half against second"
    sees = (
        "An effect that changed during the run. Alarms in 5 % of quiet runs; of runs whose effect wanders slowly in "
        "41 % at 40 blocks, 15 % at 12."
    )
    if fitted is None or fitted.n < ENOUGH_BLOCKS or fitted.s < ZERO_SD:
        return _too_few(name, fitted.n if fitted else 0, ENOUGH_BLOCKS, sees)
    n, half = fitted.n, fitted.n // 2
    first, second = fitted.residuals[:half], fitted.residuals[half:]
    step = statistics.fmean(second) - statistics.fmean(first)
    spread = math.fsum([(x - statistics.fmean(part)) ** 2 for part in (first, second) for x in part]) / (n - 2)
    t = step / math.sqrt(spread * (1.0 / half + 1.0 / (n - half)))
    alarm = abs(t) > t_quantile(n - 2, LEVEL / 2.0)
    outcome = f"R changed by {100 * math.expm1(step):+.2f} % from the first half to the second: " + (
        "more than the noise" if alarm else "within the noise"
    )
    return _told(name, t, alarm, outcome, sees)


def _trend(d: Sequence[float]) -> Check:
    name = "trend of the effect"
    sees = (
        "An effect that grows or fades. Alarms in 5 % of quiet runs; at 8 blocks it sees an effect that fades from 4 % "
        "to nothing in 86 %, at 40 one that wanders slowly in 42 %."
    )
    n = len(d)
    if n < FEWEST_FOR_TREND or statistics.stdev(d) < ZERO_SD:
        return _too_few(name, n, FEWEST_FOR_TREND, sees)
    middle, mean = (n - 1) / 2.0, math.fsum(d) / n
    sxx = math.fsum([(i - middle) ** 2 for i in range(n)])
    slope = math.fsum([(i - middle) * x for i, x in enumerate(d)]) / sxx
    rest = math.fsum([(x - mean - slope * (i - middle)) ** 2 for i, x in enumerate(d)]) / (n - 2)
    t = slope / math.sqrt(rest / sxx) if rest > 0.0 else math.copysign(math.inf, slope)
    alarm = abs(t) > t_quantile(n - 2, LEVEL / 2.0)
    outcome = f"R moved by {100 * math.expm1(slope * (n - 1)):+.2f} % over the run: " + (
        "more than the noise" if alarm else "within the noise"
    )
    return _told(name, t, alarm, outcome, sees)


def _order(fitted: Fit | None) -> Check:
    name = "order effect"
    sees = (
        "A program that drifts (heat, growing steps); the verdict has it taken out. Alarms in 5 % of quiet runs, in "
        "87 % under a drift of 5 % an hour at 40 blocks."
    )
    if fitted is None or fitted.n < ENOUGH_BLOCKS or fitted.s < ZERO_SD:
        return _too_few(name, fitted.n if fitted else 0, ENOUGH_BLOCKS, sees)
    t = fitted.b / fitted.se_b
    alarm = abs(t) > t_quantile(fitted.n - 2, LEVEL / 2.0)
    outcome = f"the second window of a block ran {100 * math.expm1(-fitted.b):+.2f} % against the first: " + (
        "the program drifts" if alarm else "within the noise"
    )
    return _told(name, t, alarm, outcome, sees)


def _variance(d: Sequence[float], fitted: Fit | None) -> Check:
    name = "quantised counts"
    sees = "Blocks that agree too well because a window holds few events. They are no evidence of a quiet program."
    if len(d) < 2:
        return _too_few(name, len(d), 2, sees)
    s = fitted.s if fitted is not None else statistics.stdev(d)
    distinct = len({round(x, 9) for x in d})
    if s < ZERO_SD:
        return _told(name, s, True, "the blocks do not vary at all: not evidence, use longer windows", sees)
    alarm = 2 * distinct <= len(d)
    outcome = f"{distinct} of {len(d)} blocks have a ratio of their own, sd {100 * s:.2f} %"
    return _told(name, s, alarm, outcome + (": counts are quantised" if alarm else ""), sees)


def _rare_harm(d: Sequence[float], margin: float) -> Check:
    name = "rare harm"
    sees = (
        "Harm in a few windows only is averaged away: a mean of -2 % made of -20 % in 9 % of windows passes about half "
        "of the time. A first look at 12 or more blocks sees more of it."
    )
    if not d:
        return _too_few(name, 0, 1, sees)
    share, worst = rare_harm_share(len(d)), min(d)
    outcome = (
        f"harm in fewer than {100 * share:.0f} % of ON windows may be unseen; "
        f"the worst ON window ran at {_percent(worst)} % of its OFF window"
    )
    # an outlier by Tukey's far fence, and beyond the margin: one window that is not like the others
    alarm = len(d) >= 4 and worst < math.log1p(-margin) and worst < _far_fence(d)
    return _told(name, share, alarm, outcome + (", far below the others" if alarm else ""), sees)


def _far_fence(d: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(d, n=4, method="inclusive")
    return low - 3.0 * (high - low)


def _percent(log_ratio: float) -> str:
    return f"{100 * math.exp(log_ratio):.1f}"
