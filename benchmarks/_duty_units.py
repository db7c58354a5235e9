"""The child of ``duty_accuracy``: units of a fixed amount of work, by turns in a plain loop, under ``Duty`` and under bare sleeps.

``python _duty_units.py WORKDIR UNIT_S DUTY DEVICE PLAN`` where PLAN is ``free:2,held:12,bare:3,…`` (seconds). Prints one JSON object
a stretch as it ends: ``{kind, began, ended, units}`` (monotonic seconds). It says nothing of CPU time: that is the parent's to measure.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cotenant.sdk.control import Control
from cotenant.sdk.duty import BURST_S, Duty

CALIBRATE_S = 0.4
# An entry that took this long has waited. Where the host gives less than the duty none does: the stretch is then cut anyway.
WAITED_S = 0.0002
STARVED_S = 1.0


def work(loops: int) -> int:
    total = 0
    for number in range(loops):
        total += number * number
    return total


def loops_for(unit_s: float) -> int:
    """How many loops take ``unit_s`` of CPU time, by the fastest of short tries."""
    loops, best = 5000, float("inf")
    end = time.thread_time() + CALIBRATE_S
    while time.thread_time() < end:
        began = time.thread_time()
        work(loops)
        best = min(best, time.thread_time() - began)
    return max(1, round(loops * unit_s / best))


def whole_idles(duty: Duty, loops: int, end: float) -> tuple[int, float]:
    """Units under a duty until one that had to wait could begin after ``end``; how many were done, and that moment.

    What was used is then paid back: a stretch cut in a row of units would be credited with the work and not with its idle.
    """
    units = 0
    while True:
        asked = time.monotonic()
        with duty.unit():
            began = time.monotonic()
            if began >= end and (began - asked >= WAITED_S or began >= end + STARVED_S):
                return units, began
            work(loops)
        units += 1


def bare_sleeps(duty: float, loops: int, unit_s: float, end: float) -> tuple[int, float]:
    """The least that holds a duty: rows of units as long as ``Duty`` makes them, one sleep after each, and no account."""
    row = max(1, round(BURST_S / unit_s))
    units = 0
    while (began := time.monotonic()) < end:
        used = time.process_time()
        for _ in range(row):
            work(loops)
        units += row
        used = time.process_time() - used
        time.sleep(max(0.0, began + used / duty - time.monotonic()))
    return units, began


def main() -> None:
    workdir, unit_s, asked, device, plan = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
    ctl = Control(workdir)
    loops = loops_for(unit_s)
    for part in plan.split(","):
        kind, _, seconds = part.partition(":")
        units, began = 0, time.monotonic()
        end = began + float(seconds)
        if kind == "free":
            while time.monotonic() < end:
                work(loops)
                units += 1
            ended = time.monotonic()
        elif kind == "bare":
            units, ended = bare_sleeps(asked, loops, unit_s, began + float(seconds))
        else:
            # an account of its own: what the plain loop used is not owed by this stretch
            with Duty(ctl, events=f"{workdir}/events.ndjson", device="gpu" if device == "gpu" else "cpu") as duty:
                began = time.monotonic()
                units, ended = whole_idles(duty, loops, began + float(seconds))
        print(json.dumps({"kind": kind, "began": began, "ended": ended, "units": units}), flush=True)


if __name__ == "__main__":
    main()
