"""Was there enough work in an ON window to speak of a dose, and which duty may a certificate name.

Source: ``harness.md``, "Left out and repeated" and "Certificates". A fleet that did not load the device proves nothing,
so the dose is what the meter read, never what the work reports of itself; an unknown share is no dose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from policies.harness.rows import BlockRow, WindowRow

__all__ = ["LEAST_OF_DOSE", "LEAST_OF_DUTY", "LEAST_RAN", "LEAST_SHARE", "Dose", "certified_duty", "judge_dose"]

LEAST_RAN = 0.90  # of the ON window's length
LEAST_OF_DUTY = 0.80  # of the duty asked
LEAST_SHARE = 0.05  # without a duty
# A stage with less than this share of the whole dose was hardly there: nothing was shown about it.
LEAST_OF_DOSE = 0.1
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Dose:
    """``held``: the window had its dose. ``share``: metered, None unknown. ``why``: what fell short, in words."""

    held: bool
    share: float | None
    ran_share: float
    why: str | None = None


def judge_dose(window: WindowRow, duty: float | None) -> Dose:
    """Judge one ON window: the work ran for 90 % of it, and held 80 % of ``duty`` (0.05 where no duty was asked)."""
    ran_share = window.work_ran_s / window.length_s if window.length_s > 0.0 else 0.0
    share = window.dose if window.dose is not None and math.isfinite(window.dose) else None
    if ran_share < LEAST_RAN - _ROUNDING:
        return Dose(False, share, ran_share, f"the work ran for {100 * ran_share:.0f} % of the window, under 90 %")
    if share is None:
        reason = window.dose_unknown_reason or "the meter gave no reading"
        return Dose(False, None, ran_share, f"its share of the device is unknown: {reason}")
    least = LEAST_SHARE if duty is None else LEAST_OF_DUTY * duty
    if share < least - _ROUNDING:
        asked = "0.05 of the device" if duty is None else f"{least:.3g}, 80 % of the duty {duty:g}"
        return Dose(False, share, ran_share, f"the work held {share:.3g} by the meter, under {asked}")
    return Dose(True, share, ran_share)


def certified_duty(rows: Sequence[BlockRow], duty: float | None) -> float | None:
    """The duty a certificate may name: the smaller of the duty asked and the mean metered share over the ON windows of
    the counted blocks ``rows``, rounded down to 0.01; without a duty that share. At most 1, and no more than lets each stage
    that was part of the dose have as many cores as all of it had: a share of eight cores is more than the same share of one.

    None: no blocks, or one whose share is unknown. Unknown is never a duty.
    """
    shares = [row.on.dose if row.on is not None else None for row in rows]
    known = [share for share in shares if share is not None and math.isfinite(share)]
    if not shares or len(known) < len(shares):
        return None
    mean = math.fsum(known) / len(known)
    held = min(mean, 1.0, _held_in_cores(rows), *(() if duty is None else (duty,)))
    # 0.29 * 100 is 28.999999999999996: without the allowance a duty held exactly would lose a hundredth
    return max(0, math.floor(held * 100.0 + _ROUNDING)) / 100.0


def _held_in_cores(rows: Sequence[BlockRow]) -> float:
    """The cores that the dose kept busy, as a share of those of the stage with the most among the ones that were part of it."""
    units = [unit for row in rows if row.on is not None for unit in row.on.units]
    metered = [unit for unit in units if unit.by_device] or units  # work off the device is no part of its dose
    shares: dict[tuple[str, str, float], float] = {}
    for unit in metered:
        key = (unit.module, unit.stage, unit.cores)
        shares[key] = shares.get(key, 0.0) + (unit.share or 0.0)
    total = math.fsum(shares.values())
    most = max(
        (
            cores
            for (_, _, cores), share in shares.items()
            if share > 0.0 and share >= LEAST_OF_DOSE * total - _ROUNDING
        ),
        default=0.0,
    )
    if most <= 0.0:
        return math.inf
    return math.fsum(share * cores for (_, _, cores), share in shares.items()) / len(rows) / most
