"""What this host gives a process, found just before the checks by children that count their own time.

The children are started as a launcher is: in a session of their own (with autogroup that decides what they get).
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from dataclasses import dataclass

from cotenant.conform.judge import Judged, meter_agrees
from cotenant.conform.meter import process_cpu_s

__all__ = ["Host", "probe"]

PROBE_LIMIT_S = 120.0
SPIN_S = 2.0
# a share below this is not told from none
SHARE_MIN = 0.02
_CHILD = """
import json, os, sys, time
late = []
for _ in range(20):
    began = time.monotonic()
    time.sleep(0.01)
    late.append(time.monotonic() - began - 0.01)
source = os.open("/dev/zero", os.O_RDONLY)
before, began = os.times(), time.monotonic()
while True:
    sum(range(2000))
    os.read(source, 1 << 18)
    after, ended = os.times(), time.monotonic()
    used = after.user + after.system - before.user - before.system
    # long enough for a share, and enough of it to compare a meter with
    if ended - began >= float(sys.argv[1]) and (used >= 0.4 or ended - began >= 60.0):
        break
print(json.dumps({"share": used / (ended - began), "late_s": max(late), "user_s": after.user, "system_s": after.system}))
sys.stdout.flush()
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Host:
    """``share``: of a core, for a process that wants all of it. ``late_s``: how late a sleeper is woken at worst."""

    share: float
    late_s: float
    meter: Judged


def probe(spin_s: float = SPIN_S) -> Host:
    """Blocks for about ``spin_s``.

    Raises:
        OSError: the probe cannot be started or does not answer.
    """
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD, str(spin_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        if not select.select([child.stdout], [], [], PROBE_LIMIT_S)[0]:
            child.kill()
            raise OSError(f"the probe of what this host gives did not answer within {PROBE_LIMIT_S:g} s")
        told = json.loads(child.stdout.readline() or "null")
        if not isinstance(told, dict):
            raise OSError("the probe of what this host gives ended early")
        metered_s = process_cpu_s(child.pid)  # it sleeps on its input now: both totals stand still
    finally:
        child.stdin.close()
        try:
            child.wait(PROBE_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()
    return Host(
        share=min(1.0, max(SHARE_MIN, told["share"])),
        late_s=told["late_s"],
        meter=meter_agrees(metered_s, told["user_s"], told["system_s"]),
    )
