"""The kit's meter of device time, where the host has one: the agent's own meters, over one runner's tree."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from nodes.meters.device import DeviceMeters, UnitPids
from nodes.meters.reading import Unreadable

__all__ = ["EVERY_S", "GpuMeter"]

EVERY_S = 1.0
# the driver is first asked by a child process; where it takes longer the device counts as not metered
FOUND_LIMIT_S = 30.0
LOOK_S = 0.1
WAIT_S = 0.3
# a meter needs two readings, and of one that nobody asked for a first
BEGINS = ("first reading", "not metered")
_KEY = "runner"


@dataclass
class GpuMeter:
    """Shares of a device's time, each of the stretch since the reading before (monotonic seconds)."""

    meters: DeviceMeters = field(default_factory=DeviceMeters)
    at_s: list[float] = field(default_factory=list)
    shares: list[float | Unreadable] = field(default_factory=list)

    def find(self) -> None:
        """Wait until it is known which devices there are. Blocks."""
        until = time.monotonic() + FOUND_LIMIT_S
        while self.meters.present and not self.meters.devices and self.meters.down is None and time.monotonic() < until:
            self.meters.tick(time.monotonic(), (), {})
            time.sleep(LOOK_S)

    def read(self, pids: Collection[int]) -> None:
        now_s = time.monotonic()
        self.meters.tick(now_s, (), {_KEY: UnitPids(pids)}, wait_s=WAIT_S)
        self.at_s.append(now_s)
        self.shares.append(self.meters.unit_share(_KEY))

    def share(self, began: float, ended: float) -> float | Unreadable:
        """Mean share between two moments; unreadable where one of the readings between them was."""
        why = self.meters.cannot_meter()
        if why is not None:
            return Unreadable(why)
        within = [share for at, share in zip(self.at_s, self.shares, strict=True) if began < at <= ended]
        while within and isinstance(within[0], Unreadable) and within[0].why.startswith(BEGINS):
            del within[0]
        known = [share for share in within if isinstance(share, float)]
        if not known or len(known) < len(within):
            unread = next((share for share in within if isinstance(share, Unreadable)), None)
            return unread or Unreadable("it was not read in the measured stretch")
        return sum(known) / len(known)
