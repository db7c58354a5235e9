"""The agent with clocks that are set while it runs: ``COTENANT_TEST_CLOCK`` names a file with ``{"wall_s": …, "asleep_s": …}``.

``wall_s`` is added to the wall clock, ``asleep_s`` to boottime alone, which is what a suspend does. Monotonic stays as it is. The
edge that is shifted is ``nodes.clock`` and ``time.time``: all that the agent learns of dates and of sleep comes through them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime, timedelta

import nodes.clock as clock

_PATH = os.environ["COTENANT_TEST_CLOCK"]
_really = time.time, clock.utc_now, clock.boottime_s


def _shift(name: str) -> float:
    try:
        with open(_PATH, encoding="ascii") as file:
            return float(json.load(file).get(name, 0.0))
    except (OSError, ValueError):
        return 0.0


def _time() -> float:
    return _really[0]() + _shift("wall_s")


def _utc_now() -> datetime:
    return _really[1]() + timedelta(seconds=_shift("wall_s"))


def _boottime_s() -> float:
    return _really[2]() + _shift("asleep_s")


if __name__ == "__main__":
    time.time, clock.utc_now, clock.boottime_s = _time, _utc_now, _boottime_s
    from nodes.agent.__main__ import main

    sys.exit(main())
