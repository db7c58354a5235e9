"""What the kit makes of what it measured: pure, and anchored outside the measured path.

Every function takes seconds and shares as plain numbers and answers ``(verdict, words)``. Where a limit depends on what the host gives,
the host's share comes from a probe's own ``os.times()``, never from the meter that is judged by it.

Source: ``governor.md`` ("Conformance kit").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.conform.check import Verdict

__all__ = [
    "ALLOWANCE",
    "Interval",
    "Judged",
    "acknowledged",
    "ended",
    "honest",
    "meter_agrees",
    "paused",
    "reported",
    "resumed",
    "share_of",
    "tree_agrees",
    "within",
    "within_device",
]

Judged = tuple[Verdict, str]

# the contract's allowance over a duty
ALLOWANCE = 0.1
ACKNOWLEDGE_S = 2.0
# /proc counts in ticks of 10 ms, for user and kernel time each, and the reading falls between two of them
TICK_S = 0.01
METER_PART = 0.05
PAUSED_PART = 0.1
PAUSED_CORES = 0.1
# below this many cores a runner's work cannot be told from its housekeeping
VISIBLE_CORES = 0.05
# a report covers two seconds and a unit may straddle its end
HONEST = 0.05
DUTY_TOLERANCE = 1e-6
UNREAD = "what its processes use could not be read"


@dataclass(frozen=True, slots=True)
class Interval:
    """One of the runner's reports beside the kit's own count of the same stretch."""

    seconds: float
    value: float
    cpu_s: float


def share_of(cpu_s: float, seconds: float, cores: float) -> float:
    """Busy share of ``cores`` over a stretch."""
    return cpu_s / (seconds * cores)


def meter_agrees(metered_s: float, child_user_s: float, child_kernel_s: float) -> Judged:
    """The kit's meter against what a child counted of itself (``os.times()``), user and kernel time."""
    child_s = child_user_s + child_kernel_s
    said = f"{metered_s:.2f} s metered, {child_s:.2f} s by the probe's own os.times() ({child_kernel_s:.2f} s in the kernel)"
    if child_s < 20.0 * TICK_S or child_kernel_s < 4.0 * TICK_S:
        return "skip", f"{said}: too little to compare"
    agrees = abs(metered_s - child_s) <= 4.0 * TICK_S + METER_PART * child_s
    return ("ok" if agrees else "FAIL"), said


def tree_agrees(metered_s: float, ended_s: float, after_s: float) -> Judged:
    """The kit's last reading of a runner's tree against the kernel's count when it was collected.

    Args:
        after_s: what it can have used between the reading and its end (wall seconds times processors).
    """
    said = f"{metered_s:.2f} s metered, {ended_s:.2f} s by the kernel when it had ended"
    slack_s = 8.0 * TICK_S + METER_PART * ended_s
    agrees = -slack_s <= ended_s - metered_s <= after_s + slack_s
    return ("ok" if agrees else "FAIL"), said


def acknowledged(seconds: float | None, host_share: float, late_s: float) -> Judged:
    """A stop, from the nudge to ``failure.json`` or ``result.json``; None: not at all.

    On a host that gives a share of a core the same work takes 1/share as long, so the limit does.
    """
    limit_s = ACKNOWLEDGE_S / host_share + late_s
    within_s = f"within {ACKNOWLEDGE_S:g} s"
    if limit_s > 1.05 * ACKNOWLEDGE_S:
        within_s += f" ({limit_s:.1f} s here, where the host gives {host_share:.2f} of a core)"
    if seconds is None:
        return "FAIL", f"not {within_s} of the nudge"
    return ("ok" if seconds <= limit_s else "FAIL"), f"{seconds:.2f} s after the nudge, to be {within_s}"


def ended(seconds: float | None, grace_s: float, exit_code: int | None, signal: int | None, transient: bool) -> Judged:
    """A cancellable runner's end after a stop: in its grace, by itself, with 75 and a transient failure or with a result.

    Args:
        transient: ``failure.json`` names a transient fault.
    """
    if seconds is None:
        return "FAIL", f"still there {grace_s:g} s (its stop_grace_s) after the nudge"
    said = f"{seconds:.2f} s after the nudge, stop_grace_s {grace_s:g}"
    if signal is not None:
        return "FAIL", f"{said}; ended by signal {signal}, not by itself"
    if exit_code == 75 and transient:
        return "ok", f"{said}, exit 75"
    if exit_code == 0:
        return "ok", f"{said}, with its result"
    why = "without a transient failure.json" if exit_code == 75 else "not 75"
    return "FAIL", f"{said}; exit {exit_code}, {why}"


def paused(before_cores: float | None, held_cores: float | None, held_s: float) -> Judged:
    """A pause by what the tree uses: next to nothing, against what it used before. None: it could not be read."""
    if before_cores is None or held_cores is None:
        return "skip", UNREAD
    said = f"{held_cores:.3f} cores over {held_s:.1f} s of pause, {before_cores:.3f} before"
    if before_cores < VISIBLE_CORES:
        return "skip", f"{said}: it uses too little CPU for a pause to be seen"
    calm = held_cores <= _calm_cores(before_cores, held_s)
    return ("ok" if calm else "FAIL"), said


def _calm_cores(before_cores: float, seconds: float) -> float:
    """What a paused tree may use: a tenth of what it did, two ticks of the clock, and no more than the agent allows."""
    return min(PAUSED_CORES, PAUSED_PART * before_cores + 2.0 * TICK_S / seconds)


def resumed(before_cores: float | None, again_cores: float | None, seconds: float) -> Judged:
    """After a pause the runner uses more than a paused one may. None: it could not be read."""
    if before_cores is None or again_cores is None:
        return "skip", UNREAD
    said = f"{again_cores:.3f} cores after the pause, {before_cores:.3f} before"
    if before_cores < VISIBLE_CORES:
        return "skip", f"{said}: it uses too little CPU for this to be seen"
    return ("ok" if again_cores > _calm_cores(before_cores, seconds) else "FAIL"), said


def reported(reports: Sequence[Mapping[str, Any]], duty: float) -> Judged:
    """The runner's ``gpu_duty`` metric lines of the measured stretch: there, for the duty asked, and within the allowance."""
    if not reports:
        return "FAIL", "the runner reports no gpu_duty metric"
    values = [report.get("value") for report in reports]
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) != len(values):
        return "FAIL", f"a report's value is no number: {next(v for v in values if v not in numbers)!r}"
    if any(report.get("device") not in ("gpu", "cpu") for report in reports):
        return "FAIL", 'a report\'s device is neither "gpu" nor "cpu"'
    other = [r.get("duty") for r in reports if not _same(r.get("duty"), duty)]
    if other:
        return "FAIL", f"asked for {duty:g}, a report says duty {other[0]!r}"
    highest = max(numbers)
    said = f"{len(numbers)} report(s), highest {highest:.3f}, limit {duty + ALLOWANCE:g}"
    return ("ok" if highest <= duty + ALLOWANCE else "FAIL"), said


def _same(value: Any, duty: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value - duty) <= DUTY_TOLERANCE


def within(share: float, duty: float, cores: float, host_share: float) -> Judged:
    """The kit's own measure against the duty. A host that gives less than the limit cannot show an overrun.

    Args:
        host_share: of one core, by the probe's own count.
    """
    limit = duty + ALLOWANCE
    said = f"{share:.3f} of {cores:g} core(s) measured, limit {limit:g}"
    if share > limit:
        return "FAIL", said
    if host_share / cores < limit:
        return "skip", f"{said}: this host gives {host_share:.2f} of a core, too little to show an overrun"
    return "ok", said


def within_device(share: float, duty: float) -> Judged:
    """The host's own meter of a GPU against the duty."""
    limit = duty + ALLOWANCE
    return ("ok" if share <= limit else "FAIL"), f"{share:.3f} of the device measured, limit {limit:g}"


def honest(intervals: Sequence[Interval], cores: float) -> Judged:
    """What the runner reported against what the kit measured in the very same stretches. Saying more is no fault."""
    if not intervals:
        return "FAIL", "no two reports in a row to compare with"
    seconds = sum(item.seconds for item in intervals)
    told = sum(item.value * item.seconds for item in intervals) / seconds
    measured = share_of(sum(item.cpu_s for item in intervals), seconds, cores)
    said = f"{told:.3f} reported, {measured:.3f} measured over the same {seconds:.1f} s"
    return ("ok" if told >= measured - HONEST - METER_PART * measured else "FAIL"), said
