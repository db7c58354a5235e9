"""Whether a window suits a source's cadence, and the rate over one that does.

A source that flushes its lines in bursts tells in a short window when it flushed, not what the program did.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from policies.sources.progress import ProgressTrack

__all__ = ["NOTHING_YET", "Fit", "LiveRate", "fitting_window_s", "holds_steps", "live_rate", "window_fits"]

# A window must hold this many arrivals, or what it counts is when the program flushed, not what it did.
ARRIVALS_A_WINDOW = 5
NOTHING_YET = "nothing was read yet: waiting for the first event"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a window is long enough for a source. ``ok`` is None while too little is known."""

    ok: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class LiveRate:
    """A rate over ``window_s``, the window asked for or the longer one that the source's cadence needs."""

    per_s: float | None
    window_s: float
    why: str


def fitting_window_s(track: ProgressTrack, window_s: float) -> float:
    """The window asked for, or the longer one that holds 5 arrivals at the source's cadence."""
    cadence = track.arrival_cadence_s
    return window_s if cadence is None else max(window_s, ARRIVALS_A_WINDOW * cadence)


def window_fits(track: ProgressTrack, window_s: float, *, live: bool = True) -> Fit:
    """Whether a window of this length measures the program, and not when it flushes its buffers.

    A window must hold 5 arrivals at the 90th percentile of their gaps. For a count that is read after the window closed
    (``live=False``) lines that carry their own times are exempt: late arrival does not move them.
    """
    cadence = track.arrival_cadence_s
    if cadence is None:
        return Fit(None, "fewer than 6 reads brought anything so far: how often the source writes is not known yet")
    if not live and track.is_stamped:
        return Fit(True, "lines carry their own times")
    needed = ARRIVALS_A_WINDOW * cadence
    if needed <= window_s:
        return Fit(True, f"lines arrive every {cadence:.3g} s")
    return Fit(
        False,
        f"lines arrive only every {cadence:.3g} s (90th percentile), so a window needs {needed:.3g} s, "
        f"not {window_s:g} s; flush each line, or stamp the lines and name the stamp in time_key",
    )


def holds_steps(track: ProgressTrack, window_s: float, least: int) -> Fit:
    """Whether a window holds ``least`` steps of the program at the median of its newest ones.

    Refused is only what its newest ``least`` steps agree on, each of them alone: so many are what a window is judged by, so
    these are one whole window's worth. The few long steps of a program that compiles as it starts are no evidence, and
    one short step among the newest means that the long ones may be over. Where they do not agree ``ok`` is None: what
    the windows held is judged when they were measured.
    """
    median_s, newest = track.median_step_s, track.newest_steps_s(least)
    if median_s is None or len(newest) < least:
        return Fit(None, "how long the program's steps take is not known yet")
    if least * median_s <= window_s:
        return Fit(True, f"a step takes {median_s:.3g} s (median)")
    if least * min(newest) <= window_s:
        return Fit(None, f"the program's steps are of no one length yet: {min(newest):.3g} to {max(newest):.3g} s")
    median_s = statistics.median(newest)
    # one more than the least: the steps of a window are not of one length
    works_s = math.ceil((least + 1) * median_s)
    return Fit(
        False,
        f"a step of the program takes {median_s:.3g} s (median), so that a window of {window_s:g} s holds fewer than {least}, "
        f"which shows nothing about the work beside it; --window {works_s} would work",
    )


def live_rate(track: ProgressTrack, now_s: float, window_s: float) -> LiveRate:
    """The rate for reactions: over ``window_s``, or over the longer window that a bursty source needs.

    So a source that is silent for a minute and then brings a hundred lines does not read as a stall.
    """
    window = fitting_window_s(track, window_s)
    per_s = track.rate(now_s, window)
    if per_s is None:
        why = NOTHING_YET if track.points == 0 else f"over half of the last {window:.3g} s is not known"
        return LiveRate(None, window, why)
    return LiveRate(per_s, window, "" if window == window_s else f"widened to the source's cadence from {window_s:g} s")
