"""The devices of this node and who uses them: the one face of all device meters for the agent.

Without any sign of a device this costs a few lookups a minute, and no driver's binding is imported. NVIDIA's driver is
first probed by a child process, then asked in a thread of its own: a driver that hangs stops no tick, it makes readings old,
and an old reading is unreadable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from nodes.meters.nvml_probe import Inventory, Probe, nvidia_present
from nodes.meters.nvml_thread import NvmlThread
from nodes.meters.reading import DeviceReading, Memory, Unreadable

__all__ = ["WAIT_S", "Device", "DeviceMeters", "UnitPids"]

log = logging.getLogger(__name__)

WAIT_S: Final = 0.05
"""How long a tick waits for the driver before it goes on with the reading before."""
OLD_S: Final = 10.0
"""A reading older than this is no present one."""
PERIOD_S: Final = 2.0
"""How often readings are asked for. Where the driver's calls are dear they come less often, and each is good for as much longer."""
AGAIN_S: Final = 60.0
"""Between two looks for a driver that is not there or does not answer; each that is in vain doubles it."""
MOST_AGAIN_S: Final = 3600.0


ENDED_KEPT: Final = 256
NO_BASELINE: Final = Unreadable("first reading: no baseline yet")


@dataclass(frozen=True, slots=True)
class Device:
    """``key`` is NVIDIA's UUID or the bus address; it stays the same while the machine runs."""

    key: str
    name: str
    kind: Literal["nvml", "drm"]
    driver: str | None
    memory_bytes: int | None = None
    mig: bool = False


@dataclass(frozen=True, slots=True)
class UnitPids:
    """A unit's processes, and the devices it was put on (None: it may use any)."""

    pids: Collection[int]
    devices: frozenset[str] | None = None


@dataclass
class _Unit:
    """Device seconds of a unit so far by device, and when it last could not be read."""

    busy_s: dict[str, float] = field(default_factory=dict)
    pids: frozenset[int] = frozenset()
    share: float | Unreadable = NO_BASELINE
    as_of_s: float | None = None
    window: tuple[float, float] | None = None
    gap_s: float | None = None
    gap_why: str = ""


class DeviceMeters:
    """Not thread-safe: one loop ticks it.

    Args:
        note: takes a timeline code and its facts.
        machine_memory: (total, available) bytes of the machine.
    """

    def __init__(
        self,
        note: Callable[[str, dict[str, Any]], None] = lambda code, data: None,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        root: Path = Path("/"),
        machine_memory: Callable[[], tuple[int | None, int | None]] = lambda: (None, None),
    ) -> None:
        self._note, self._proc, self._sys, self._root = note, proc, sys, root
        self._machine_memory = machine_memory
        self._probe: Probe | None = None
        self._inventory: Inventory | None = None
        self._nvml: NvmlThread | None = None
        self._drm: Any = None
        self._look_again_s = 0.0
        self._wait_s = AGAIN_S / 2.0
        self._down = ""
        self._readings: dict[str, DeviceReading] = {}
        self._told: dict[str, float] = {}
        self._units: dict[str, _Unit] = {}
        self._ended: dict[str, _Unit] = {}
        self.devices: tuple[Device, ...] = ()
        if nvidia_present(root):
            self._probe = Probe()
        if (root / "dev/dri").exists():
            self._find_drm()

    # -- which devices there are ------------------------------------------------------------------------------------

    @property
    def present(self) -> bool:
        """Whether there is any sign of a device."""
        first_probe = self._probe is not None and self._inventory is None
        return bool(self.devices) or first_probe or bool(self._down)

    @property
    def down(self) -> tuple[str, str] | None:
        """(why, remedy) while NVIDIA devices cannot be metered at all: no GPU work is admitted then."""
        if not self._down:
            return None
        return self._down, (self._inventory.remedy if self._inventory else "") or "cotenant doctor NODE"

    def cannot_meter(self) -> str | None:
        """Why no process's device time can be read on any device of this node; None: on some it can."""
        if not self.present:
            return "no GPU that can be metered was found on this node"
        if self._down:
            return self._down
        if not self.devices:
            return "the GPU driver is still being probed"
        whys = [self._why(device.key) for device in self.devices]
        return None if None in whys else whys[0]

    def _why(self, key: str) -> str | None:
        reading = self._readings.get(key)
        why = None if reading is None else reading.why
        # what only wants a second reading, or somebody who asks, is no lack
        return why if why is not None and not why.startswith(("first reading", "not metered")) else None

    def whys(self) -> list[tuple[Device, str | None]]:
        """Each device, and why no process's time can be told on it (None: it can, as far as is known)."""
        return [(device, self._why(device.key)) for device in self.devices]

    def words(self) -> str:
        """The meter's name in a certificate."""
        kinds = sorted({device.kind for device in self.devices})
        how = {"nvml": "nvml: utilisation samples of the NVIDIA driver", "drm": "drm: engine time by client (fdinfo)"}
        return "; ".join(how[kind] for kind in kinds)

    def _find_drm(self) -> None:
        from nodes.meters.drm import DrmMeter

        meter = DrmMeter(self._proc, self._sys)
        if meter.devices:
            self._drm = meter
            self._list_devices()

    def _list_devices(self) -> None:
        found: list[Device] = []
        if self._inventory is not None and self._inventory.why is None:
            found += [
                Device(d.uuid, d.name, "nvml", self._inventory.driver, d.memory_bytes, d.mig)
                for d in self._inventory.devices
            ]
        if self._drm is not None:
            found += [Device(d.pdev, f"{d.driver} {d.pdev}", "drm", d.driver) for d in self._drm.devices]
        self.devices = tuple(found)

    def _follow_probe(self, now_s: float) -> None:
        if self._probe is None:
            if now_s >= self._look_again_s:
                self._look_again_s = now_s + AGAIN_S
                if self._nvml is None and nvidia_present(self._root):
                    self._probe = Probe()
            return
        found = self._probe.poll()
        if found is None:
            return
        self._probe, self._inventory = None, found
        # each probe is a process: one that finds nothing is made less and less often
        self._wait_s = AGAIN_S if found.why is None else min(2.0 * self._wait_s, MOST_AGAIN_S)
        self._look_again_s = now_s + self._wait_s
        self._list_devices()
        if found.why is not None and not found.library_missing:
            self._goes_down(found.why)
        elif found.devices:
            self._nvml = NvmlThread(self._proc, self._machine_memory)
            if self._down:
                self._note("GPU_METER_UP", {"driver": found.driver})
            self._down = ""

    def _goes_down(self, why: str) -> None:
        if self._down != why:
            self._note("GPU_METER_DOWN", {"why": why, "remedy": self._inventory.remedy if self._inventory else ""})
        self._down, self._nvml = why, None
        nvidia = {device.key for device in self.devices if device.kind == "nvml"}
        self._readings = {key: reading for key, reading in self._readings.items() if key not in nvidia}

    # -- reading ----------------------------------------------------------------------------------------------------

    def tick(
        self, now_s: float, protected: Collection[int], units: Mapping[str, UnitPids], *, wait_s: float = WAIT_S
    ) -> None:
        """Read what is due, and count each unit's seconds on.

        Args:
            now_s: monotonic seconds.
            protected: pids of protected programs.
            units: running units by attempt. One that is not named any more has ended.
        """
        self._follow_probe(now_s)
        for gone in self._units.keys() - units.keys():
            self._ended[gone] = self._units.pop(gone)
        for old in list(self._ended)[:-ENDED_KEPT]:
            del self._ended[old]
        fleet = {pid for unit in units.values() for pid in unit.pids}
        # what a process of a unit used before it ended is still handed out after it
        fleet |= {pid for unit in self._units.values() for pid in unit.pids}
        if self._nvml is not None:
            self._nvml.ask(now_s, frozenset(fleet | set(protected)), wait_s)
            if self._nvml.fault is not None:
                self._goes_down(self._nvml.fault)
                self._look_again_s = now_s + AGAIN_S
            else:
                self._readings |= {reading.device: reading for reading in self._nvml.readings}
        if self._drm is not None and (fleet or protected):
            readings = self._drm.read(now_s, fleet | set(protected), protected, self._machine_memory())
            self._readings |= {reading.device: reading for reading in readings}
        for name, unit in units.items():
            self._count(self._units.setdefault(name, _Unit()), unit, now_s)
        self._told = {key: reading.at_s for key, reading in self._readings.items()}

    def _count(self, kept: _Unit, unit: UnitPids, now_s: float) -> None:
        pids = kept.pids | frozenset(unit.pids)
        kept.pids = frozenset(unit.pids)
        whys: list[str] = []
        shares: list[float] = []
        kept.as_of_s = kept.window = None
        for device in self._of(unit.devices):
            reading = self._readings.get(device.key)
            if reading is None or now_s - reading.at_s > OLD_S:
                whys.append(self._down or "the device was not read lately")
                continue
            used = reading.use(pids)
            whys += [used.why] if used.why is not None else []
            shares.append(_part(used.busy_s, reading.span_s))
            as_of_s = reading.at_s + max(0.0, min(reading.span_s, OLD_S) - PERIOD_S)
            kept.as_of_s = as_of_s if kept.as_of_s is None else min(kept.as_of_s, as_of_s)
            from_s, to_s = kept.window or (reading.at_s, reading.at_s)
            kept.window = min(from_s, reading.at_s - reading.span_s), min(to_s, reading.at_s)
            if reading.at_s == self._told.get(device.key):
                continue
            kept.busy_s[device.key] = kept.busy_s.get(device.key, 0.0) + used.busy_s
            if "busy_unattributed" in used.flags:
                whys.append("the device is busy with work that no process is behind")
        if not shares and not whys:
            whys.append(self.cannot_meter() or "no device of this node is metered")
        if whys:
            kept.gap_s, kept.gap_why = now_s, whys[0]
        kept.share = Unreadable(whys[0]) if whys else max(shares)

    def _of(self, keys: frozenset[str] | None) -> list[Device]:
        return [device for device in self.devices if keys is None or device.key in keys]

    # -- answers ----------------------------------------------------------------------------------------------------

    def shares(self, pids: Collection[int], now_s: float) -> dict[str, tuple[float, str | None]]:
        """By device: the share of its time that these processes certainly used, and why there may be more.

        Empty: no device is known.
        """
        found: dict[str, tuple[float, str | None]] = {}
        for device in self.devices:
            reading = self._readings.get(device.key)
            if reading is None or now_s - reading.at_s > OLD_S:
                found[device.key] = (0.0, self._down or "the device was not read lately")
                continue
            used = reading.use(pids)
            found[device.key] = (_part(used.busy_s, reading.span_s), used.why)
        unlisted = self._unlisted()
        if found and unlisted is not None:
            found["nvidia"] = (0.0, unlisted)
        return found

    def _unlisted(self) -> str | None:
        """Why NVIDIA's devices are not among those that are listed, though there may be some; None: they are, or none is."""
        if any(device.kind == "nvml" for device in self.devices):
            return None
        if self._probe is not None and self._inventory is None:
            return "the GPU driver is still being probed"
        return self._down or None

    def share(self, pids: Collection[int], now_s: float) -> float | Unreadable:
        """The largest share of a device's time that these processes used together."""
        found = self.shares(pids, now_s)
        why = next((why for _, why in found.values() if why is not None), None)
        if not found:
            return Unreadable(self.cannot_meter() or "no device of this node is metered")
        return max(share for share, _ in found.values()) if why is None else Unreadable(why)

    def unit_share(self, name: str) -> float | Unreadable:
        """A unit's share of its device at the newest reading: of the device that it kept busiest."""
        kept = self._units.get(name)
        return NO_BASELINE if kept is None else kept.share

    def unit_window(self, name: str) -> tuple[float, float] | None:
        """From when to when (monotonic) the readings behind ``unit_share`` reach; None: there is none."""
        kept = self._units.get(name)
        return None if kept is None else kept.window

    def unit_age_s(self, name: str, now_s: float) -> float:
        """How old the oldest reading behind ``unit_share`` is, beyond what the meter's own period makes it; 0 where none is."""
        kept = self._units.get(name)
        return 0.0 if kept is None or kept.as_of_s is None else max(0.0, now_s - kept.as_of_s)

    def unit_total(
        self, name: str, since_s: float | None = None, only: Collection[str] | None = None
    ) -> float | Unreadable:
        """Device seconds of a unit since it began to be read, up to the driver's newest sample.

        For the difference of two moments; ``since_s`` (monotonic): unreadable where a reading since then was. Of a unit
        that ended: up to the last reading before its end. ``only``: of these devices.
        """
        kept = self._units.get(name) or self._ended.get(name)
        if kept is None:
            return Unreadable("it was never read")
        if kept.gap_s is not None and since_s is not None and kept.gap_s >= since_s:
            return Unreadable(kept.gap_why)
        return max((busy for key, busy in kept.busy_s.items() if only is None or key in only), default=0.0)

    def unit_totals(self, name: str) -> dict[str, float]:
        """Device seconds of a unit by device, as ``unit_total`` counts them; empty: it was never read."""
        kept = self._units.get(name) or self._ended.get(name)
        return {} if kept is None else dict(kept.busy_s)

    def memory(self, key: str) -> Memory:
        reading = self._readings.get(key)
        found = None if reading is None else reading.memory
        return found or Memory(None, None)

    def busy(self, key: str) -> float | None:
        """The device's own figure of how busy it was at the last moment; None: not known."""
        reading = self._readings.get(key)
        return None if reading is None or reading.util_pct is None else reading.util_pct / 100.0

    def describe(self) -> list[dict[str, Any]]:
        """For people: ``[{device, name, kind, driver, total_bytes, free_bytes, unified, busy, why, cost_ms_per_s, …}]``."""
        rows = []
        for device in self.devices:
            memory, reading = self.memory(device.key), self._readings.get(device.key)
            rows.append(
                {
                    "device": device.key,
                    "name": device.name,
                    "kind": device.kind,
                    "driver": device.driver,
                    "total_bytes": memory.total_bytes,
                    "free_bytes": memory.free_bytes,
                    "unified": memory.unified,
                    "busy": self.busy(device.key),
                    "why": "not read yet" if reading is None else reading.why,
                    "unattributed": reading is not None and reading.unattributed,
                    "unresolvable": len(getattr(reading, "unresolvable", ())),
                    "cost_ms_per_s": self._nvml.cost_ms_per_s if self._nvml and device.kind == "nvml" else None,
                }
            )
        return rows


def _part(busy_s: float, span_s: float) -> float:
    """A share of a device. The driver's samples do not end with the stretch they are counted in, so it may come out above 1."""
    return min(1.0, busy_s / span_s) if span_s > 0.0 else 0.0
