"""The child of ``duty_accuracy``: units of a fixed amount of work, by turns in a plain loop and under ``Duty``.

``python _duty_units.py WORKDIR UNIT_S DEVICE PLAN`` where PLAN is ``free:2,held:12,…`` (seconds). Prints one JSON object a
stretch as it ends: ``{kind, began, ended, units}`` (monotonic seconds). It says nothing of CPU time: that is the parent's to measure.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cotenant.sdk.control import Control
from cotenant.sdk.duty import Duty

CALIBRATE_S = 0.4


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


def main() -> None:
    workdir, unit_s, device, plan = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4]
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
        else:
            # an account of its own: what the plain loop used is not owed by this stretch
            with Duty(ctl, events=f"{workdir}/events.ndjson", device="gpu" if device == "gpu" else "cpu") as duty:
                began = time.monotonic()
                end = began + float(seconds)
                while time.monotonic() < end:
                    with duty.unit():
                        work(loops)
                    units += 1
                ended = time.monotonic()
        print(json.dumps({"kind": kind, "began": began, "ended": ended, "units": units}), flush=True)


if __name__ == "__main__":
    main()
