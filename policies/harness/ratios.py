"""What blocks say: the logarithm of each one's ratio, and its least squares fit on the order (harness-statistics.md, rule 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

__all__ = ["Block", "Fit", "fit", "is_number", "log_ratios"]

Block = Sequence[str | float]
"""``(order, on_rate, off_rate)``: order "on_first" or "off_first", rates in events per second."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Least squares of d = mu + b*o over n blocks; ``s`` is the residual sd (n-2 df), ``se`` mu's, ``se_b`` b's."""

    n: int
    mu: float
    b: float
    s: float
    se: float
    se_b: float
    residuals: tuple[float, ...]


def log_ratios(blocks: Sequence[Block]) -> tuple[list[float], list[float], int, bool]:
    """``(d, o, void, collapse)`` of checked blocks.

    Void: no OFF progress. Collapse: an ON rate of 0 beside OFF progress; it has no logarithm and is in neither list.

    Raises:
        ValueError: a block of another shape, an unknown order, a rate that is no finite number >= 0; names the block.
    """
    d: list[float] = []
    o: list[float] = []
    void = 0
    collapse = False
    for i, block in enumerate(blocks, 1):
        try:
            order, on, off = block
        except (TypeError, ValueError):
            raise ValueError(f"block {i}: is {block!r}, must be [order, on_rate, off_rate]") from None
        if order == "on_first":
            sign = 1.0
        elif order == "off_first":
            sign = -1.0
        else:
            raise ValueError(f"block {i}: order {order!r} is unknown, must be 'on_first' or 'off_first'")
        on_rate, off_rate = _rate(i, "on", on), _rate(i, "off", off)
        if off_rate == 0.0:
            void += 1
        elif on_rate == 0.0:
            collapse = True
        else:
            d.append(math.log(on_rate) - math.log(off_rate))
            o.append(sign)
    return d, o, void, collapse


def fit(d: Sequence[float], o: Sequence[float]) -> Fit | None:
    """Fit d = mu + b*o (rule 5); None where all orders are the same, so that mu and b cannot be told apart."""
    n = len(d)
    o_mean = math.fsum(o) / n
    # o is +1 or -1: sum (o - mean)^2 = n - n*mean^2, exact in floats for these n
    sxx = n - n * o_mean * o_mean
    if n < 3 or sxx <= 0.0:
        return None
    d_mean = math.fsum(d) / n
    b = math.fsum([(oi - o_mean) * (di - d_mean) for oi, di in zip(o, d, strict=True)]) / sxx
    mu = d_mean - b * o_mean
    residuals = tuple([di - mu - b * oi for oi, di in zip(o, d, strict=True)])
    s = math.sqrt(math.fsum([e * e for e in residuals]) / (n - 2))
    return Fit(n, mu, b, s, s * math.sqrt(1.0 / n + o_mean * o_mean / sxx), s / math.sqrt(sxx), residuals)


def is_number(value: object) -> TypeGuard[float]:
    """A finite number, which ``true`` is not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond what a float holds
        return False


def _rate(i: int, arm: str, value: object) -> float:
    if not is_number(value) or value < 0:
        raise ValueError(f"block {i}: {arm}_rate {value!r} must be a finite number of events per second, at least 0")
    return float(value)
