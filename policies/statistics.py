"""Verdicts from paired ON/OFF blocks: the order-adjusted sequential design, and the plain t analysis beside it.

Source: ``harness-statistics.md``, section 1 (the design, "final"), "As a function", and section 5 (planning).
With d = ln(on / off) and o = +1 when ON ran first, -1 when OFF did, each look fits d = mu + b*o by least squares;
mu is the effect of the work, b that of the order (drift). The interval is widened for the number of looks, so that
it is valid at every look, and no verdict is computed at any other number of blocks.

``python -m policies.statistics`` reads ``{"blocks": [[order, on_rate, off_rate], ...], "margin", "n_max",
"first_look"}`` on standard input and prints the decision as one JSON object; bad input is exit status 2 with the
reason on standard error.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from functools import lru_cache

from scipy import special

from policies.harness.ratios import Block, fit, is_number, log_ratios
from policies.harness.spec import FIRST_LOOK, LOOK_STEP
from policies.harness.verdict import (
    INCONCLUSIVE,
    K50_LIMIT,
    PASS,
    REFUSED,
    SLOWDOWN,
    ZERO_SD,
    Analysis,
    Decision,
    Look,
    Refusal,
    Verdict,
)

__all__ = [
    "Analysis",
    "Decision",
    "Look",
    "Refusal",
    "Verdict",
    "analyse",
    "chi2_quantile",
    "decide",
    "likely_done_by",
    "look_p",
    "t_quantile",
    "two_sided_t_power",
]

# One-sided error of each look by the largest number of blocks (rule 6), simulated over all noise models.
LOOK_P: tuple[tuple[int, float], ...] = (
    (8, 0.0439),
    (12, 0.0278),
    (16, 0.0210),
    (20, 0.0175),
    (24, 0.0154),
    (28, 0.0138),
    (32, 0.0128),
    (36, 0.0119),
    (40, 0.0110),
    (48, 0.0099),
    (60, 0.0088),
    (80, 0.0077),
    (100, 0.0069),
    (120, 0.0064),
    (160, 0.0057),
    (200, 0.0052),
)
K80_LIMIT = 160
Z80 = 0.84  # 80 % normal quantile, as the planning formulas have it
ANALYSE_MORE_LIMIT = 1000
# Two logarithms of the same ratio may differ in the last place: a tie within this is a tie.
TIE = 1e-12


@lru_cache(maxsize=65536)
def t_quantile(df: int, upper_p: float) -> float:
    """Student-t value with ``df`` degrees of freedom that is exceeded with chance ``upper_p``."""
    return float(special.stdtrit(df, 1.0 - upper_p))


@lru_cache(maxsize=1024)
def chi2_quantile(df: int, lower_p: float) -> float:
    """Chi-square value with ``df`` degrees of freedom that is not exceeded with chance ``lower_p``."""
    return float(special.chdtri(df, 1.0 - lower_p))


def two_sided_t_power(df: int, noncentrality: float, level: float) -> float:
    """Chance that a two-sided t test at ``level`` alarms when its statistic has this noncentrality."""
    critical = t_quantile(df, level / 2.0)
    above = 1.0 - float(special.nctdtr(df, noncentrality, critical))
    below = float(special.nctdtr(df, noncentrality, -critical))
    return min(1.0, above + below)


def look_p(n_max: int) -> float:
    """One-sided error of each look in a run of at most ``n_max`` blocks; unlisted numbers take the next larger row."""
    for rows_n, p in LOOK_P:
        if n_max <= rows_n:
            return p
    raise ValueError(f"n_max {n_max}: a run has at most {LOOK_P[-1][0]} blocks")


def decide(blocks: Sequence[Block], margin: float = 0.02, n_max: int = 40, first_look: int = FIRST_LOOK) -> Decision:
    """The design "final" as a function of all blocks so far, in the order in which they ran.

    Looks come at ``first_look``, +4, ... up to ``n_max`` usable blocks (n_max is rounded down to a multiple of 4);
    the first that decides is final, whatever follows. An ON rate of 0 beside OFF progress is "slowdown" before any
    look. Blocks without OFF progress are void.

    Args:
        blocks: ``(order, on_rate, off_rate)`` each, rates in events per second.
        margin: the slowdown that counts, a fraction in [0, 1).
        n_max: the most blocks the run may have, 8 to 200.
        first_look: a multiple of 4, 8 to n_max.

    Raises:
        ValueError: naming the argument or the block, and what is wrong with it.
    """
    floor = _log_floor(margin)
    n_max, first_look = _check_looks(n_max, first_look)
    d, o, void, collapse = log_ratios(blocks)
    p = look_p(n_max)
    if collapse:
        return Decision(
            SLOWDOWN,
            None,
            None,
            None,
            len(d),
            None,
            margin,
            n_max,
            first_look,
            p,
            collapse=True,
            usable=len(d),
            void=void,
        )
    looks: list[Look] = []
    refusal: Refusal | None = None
    mu = 0.0
    for n in range(first_look, min(n_max, len(d)) + 1, LOOK_STEP):
        c = t_quantile(n - 2, p)
        f = fit(d[:n], o[:n])
        if f is None:
            looks.append(Look(n, INCONCLUSIVE, None, None, None, None, None, None, None, c))
            continue
        mu, verdict = f.mu, _verdict(f.mu, c * f.se, floor)
        if verdict == INCONCLUSIVE and n == first_look and n < n_max:
            refusal = _refusal(f.s, n - 2, n_max, p, floor)
            verdict = REFUSED if refusal else INCONCLUSIVE
        bounds = _exp(f.mu), _exp(f.mu - c * f.se), _exp(f.mu + c * f.se)
        looks.append(Look(n, verdict, *bounds, f.b, f.se_b, f.s, f.se, c))
        if verdict != INCONCLUSIVE:
            break
    if not looks:
        return Decision(
            INCONCLUSIVE, None, None, None, len(d), None, margin, n_max, first_look, p, usable=len(d), void=void
        )
    last = looks[-1]
    k50 = k80 = None
    if last.verdict == INCONCLUSIVE and last.s is not None:
        k50, k80 = _how_many(last.n, mu, last.s, p, floor)
    return Decision(
        verdict=last.verdict,
        R=last.R,
        lo=last.lo,
        hi=last.hi,
        n=last.n,
        more_blocks=k50 - last.n if k50 is not None else None,
        margin=margin,
        n_max=n_max,
        first_look=first_look,
        p=p,
        b=last.b,
        se_b=last.se_b,
        s=last.s,
        se=last.se,
        c=last.c,
        k50=k50,
        k80=k80,
        looks=tuple(looks),
        refusal=refusal,
        zero_variance=last.s is not None and last.s < ZERO_SD,
        usable=len(d),
        void=void,
    )


def analyse(blocks: Sequence[Block], margin: float = 0.02) -> Analysis:
    """Plain two-sided 90 % t interval of mean ln(on / off) over all usable blocks; orders play no part.

    ``more_blocks``: the smallest number of further blocks (at most 1000) at which the interval would decide if mean
    and sd stayed. Raises ValueError as ``decide`` does.
    """
    floor = _log_floor(margin)
    d, _, _, collapse = log_ratios(blocks)
    n = len(d)
    if collapse:
        return Analysis(SLOWDOWN, None, None, None, n, None)
    if n < 2:
        return Analysis(INCONCLUSIVE, _exp(d[0]) if d else None, None, None, n, None)
    mu = math.fsum(d) / n
    s = math.sqrt(math.fsum([(x - mu) ** 2 for x in d]) / (n - 1))
    half = t_quantile(n - 1, 0.05) * s / math.sqrt(n)
    verdict = _verdict(mu, half, floor)
    more = None
    if verdict == INCONCLUSIVE:
        gap = mu - floor if mu > floor else -mu
        more = next(
            (
                total - n
                for total in range(n + 1, n + ANALYSE_MORE_LIMIT + 1)
                if t_quantile(total - 1, 0.05) * s <= gap * math.sqrt(total)
            ),
            None,
        )
    return Analysis(verdict, _exp(mu), _exp(mu - half), _exp(mu + half), n, more, s)


def likely_done_by(s: float, df: int, n: int, margin: float, n_max: int, first_look: int = FIRST_LOOK) -> int | None:
    """The look at which a run without harm has likely passed, from an early sd (section 5); None: none in ``n_max``.

    Uses the 80 % upper limit of the sd, since the raw one is too small half of the time. After block 4 ``s`` is the
    plain sd of d (3 df), after look 8 the residual sd (6 df). Text for people only: no verdict comes from it.
    """
    floor = _log_floor(margin)
    n_max, first_look = _check_looks(n_max, first_look)
    p = look_p(n_max)
    upper_s = s * round(math.sqrt(df / chi2_quantile(df, 0.20)), 3)
    for total in range(first_look, n_max + 1, LOOK_STEP):
        if total > n and (t_quantile(total - 2, p) + Z80) * upper_s <= -floor * math.sqrt(total):
            return total
    return None


def _verdict(mu: float, half: float, floor: float) -> Verdict:
    """Rule 7, in its order, on the logarithmic scale."""
    if mu - half >= floor - TIE:
        return PASS
    if mu + half < -TIE and mu < floor - TIE:
        return SLOWDOWN
    return INCONCLUSIVE


def _refusal(s: float, df: int, n_max: int, p: float, floor: float) -> Refusal | None:
    """Rule 10: refuse when even a favourable sd (its 90 % lower limit) cannot reach the margin at R = 1."""
    favourable = math.sqrt(df / round(chi2_quantile(df, 0.90), 3))

    def reach(blocks: int, look: float) -> float:
        return t_quantile(blocks - 2, look) * favourable / math.sqrt(blocks)

    if s * reach(n_max, p) <= -floor:
        return None
    longer = range(n_max + LOOK_STEP, LOOK_P[-1][0] + 1, LOOK_STEP)
    needed = next((n for n in longer if s * reach(n, look_p(n)) <= -floor), None)
    return Refusal(s, -floor / reach(n_max, p), -math.expm1(-s * reach(n_max, p)), needed)


def _how_many(n: int, mu: float, s: float, p: float, floor: float) -> tuple[int | None, int | None]:
    """Section 5: total blocks (k50, k80) that would decide if mean and sd stay."""
    gap = mu - floor if mu > floor else -mu
    k50 = k80 = None
    for total in range(n + LOOK_STEP, K50_LIMIT + 1, LOOK_STEP):
        width = t_quantile(total - 2, p) * s / math.sqrt(total)
        if k50 is None and width <= gap:
            k50 = total
        if total <= K80_LIMIT and width + Z80 * s * math.sqrt((total - n) / (total * n)) <= gap:
            k80 = total
        if k80 is not None or (k50 is not None and total >= K80_LIMIT):
            break
    return k50, k80


def _check_looks(n_max: int, first_look: int) -> tuple[int, int]:
    for name, value in (("n_max", n_max), ("first_look", first_look)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} {value!r}: must be a whole number of blocks")
    if not FIRST_LOOK <= n_max <= LOOK_P[-1][0]:
        raise ValueError(f"n_max {n_max}: must be {FIRST_LOOK} to {LOOK_P[-1][0]} blocks")
    n_max -= n_max % LOOK_STEP
    if first_look % LOOK_STEP or not FIRST_LOOK <= first_look <= n_max:
        raise ValueError(
            f"first_look {first_look}: must be a multiple of {LOOK_STEP} from {FIRST_LOOK} to n_max ({n_max})"
        )
    return n_max, first_look


def _log_floor(margin: float) -> float:
    """ln(1 - margin)."""
    if not is_number(margin) or not 0.0 <= margin < 1.0:
        raise ValueError(f"margin {margin!r}: must be a fraction, 0 <= margin < 1 (0.02 is 2 %)")
    return math.log1p(-margin)


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def main(text: bytes) -> tuple[int, str]:
    """Exit status and the text to print for one JSON request."""
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        return 2, f"standard input is no JSON: {error}"
    if not isinstance(request, dict) or not isinstance(request.get("blocks"), list):
        return 2, 'must be an object {"blocks": [[order, on_rate, off_rate], ...], "margin", "n_max", "first_look"}'
    unknown = sorted(set(request) - {"blocks", "margin", "n_max", "first_look"})
    if unknown:
        return 2, f"unknown key {unknown[0]!r}: known are blocks, margin, n_max, first_look"
    try:
        return 0, json.dumps(decide(**request).as_dict(), allow_nan=False)
    except ValueError as error:
        return 2, str(error)


if __name__ == "__main__":
    status, answer = main(sys.stdin.buffer.read())
    print(answer, file=sys.stderr if status else sys.stdout)
    sys.exit(status)
