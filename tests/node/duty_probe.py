"""A child process for the tests of Duty: units of CPU work under a governor; its own ``os.times()`` are the judge.

``python duty_probe.py WORKDIR UNIT_S DUTY SECONDS [--children]``: prints one JSON object with ten samples a second of
(monotonic seconds, CPU seconds of the process and its collected children), and how many units were done.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cotenant.sdk.control import Control
from cotenant.sdk.duty import Duty


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def main() -> None:
    workdir, unit_s, duty_asked, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    children = "--children" in sys.argv
    Path(workdir, "control.json").write_text(json.dumps({"seq": 1, "gpu_duty": duty_asked if duty_asked < 1 else None}))
    ctl = Control(workdir)
    duty = Duty(ctl, events=os.path.join(workdir, "events.ndjson"), device="cpu")
    samples: list[tuple[float, float]] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.1):
            # utime and stime of the process by clock_gettime: os.times() has ticks of 10 ms
            times = os.times()
            own = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
            samples.append((time.monotonic(), own + times.children_user + times.children_system))

    threading.Thread(target=sample, daemon=True).start()
    units = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with duty.unit():
            if children:
                pid = os.fork()
                if pid == 0:
                    spin(unit_s)
                    os._exit(0)
                os.waitpid(pid, 0)
            else:
                spin(unit_s)
        units += 1
    ended.set()
    duty.close()
    print(json.dumps({"samples": samples, "units": units, "busy_s": duty.busy_s, "idle_s": duty.idle_s}))


if __name__ == "__main__":
    main()
