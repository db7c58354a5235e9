"""Which devices a protected program uses, and which one a unit of fleet work may start on. Pure.

Source: ``protection.md``, "GPU work beside a protected program" and "Per device". What cannot be told counts as use, and a
device's free memory counts as much as its idleness: one that is idle and full has no room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from policies.units import Reason

__all__ = [
    "DEVICE_USE",
    "DEVICE_USE_KEPT_S",
    "DeviceUse",
    "DeviceView",
    "Placement",
    "UseState",
    "device_use",
    "place",
    "step_use",
]

DEVICE_USE: Final = 0.05
"""A program uses a device above this share of its time."""
DEVICE_USE_KEPT_S: Final = 60.0
"""A program that paused between steps still counts as using the device for this long."""
GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class UseState:
    """When a program last used each device, and which of them could not be read at the last look (with why)."""

    used_at_s: Mapping[str, float] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    read: bool = False


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """``uses`` None: cannot be told, which counts as using. ``devices`` None: it may be any; else those it (may) use."""

    uses: bool | None
    devices: frozenset[str] | None = None


def step_use(state: UseState, shares: Mapping[str, tuple[float, str | None]], now_s: float) -> UseState:
    """One reading: by device the share that certainly was the program's, and why there may be more (None: there is not)."""
    used = {device: at for device, at in state.used_at_s.items() if now_s - at <= DEVICE_USE_KEPT_S}
    used |= {device: now_s for device, (share, _) in shares.items() if share > DEVICE_USE}
    return UseState(used, {device: why for device, (_, why) in shares.items() if why is not None}, bool(shares))


def device_use(state: UseState, now_s: float) -> DeviceUse:
    """What holds now. Without any reading the program may use every device."""
    used = {device for device, at in state.used_at_s.items() if now_s - at <= DEVICE_USE_KEPT_S}
    if not state.read:
        return DeviceUse(True if used else None)
    devices = frozenset(used | state.unread.keys())
    return DeviceUse(True if used else None if state.unread else False, devices)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device that a unit may be put on. ``busy`` is its share of busy time; None unknown. ``unified``: its memory is the
    machine's, which is judged elsewhere. ``units``: fleet units that are on it already.
    """

    key: str
    name: str
    total_bytes: int | None
    free_bytes: int | None
    unified: bool = False
    busy: float | None = None
    units: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The device for a unit, or why there is none."""

    device: str | None
    reasons: tuple[Reason, ...] = ()


def place(
    devices: Sequence[DeviceView],
    held: Callable[[str], Sequence[Reason]],
    *,
    needs_bytes: float = 0.0,
    soft_free_pct: float = 0.0,
) -> Placement:
    """Of the devices on which nothing holds the unit back and which have room, the one with the least on it.

    Args:
        held: what would hold the unit back on a device.
        needs_bytes: device memory that it asks for.
        soft_free_pct: what must stay free beside it, as for the machine's memory.
    """
    refused: list[Sequence[Reason]] = []
    for device in sorted(devices, key=_least_first):
        why = [*held(device.key), *_room(device, needs_bytes, soft_free_pct)]
        if not why:
            return Placement(device.key)
        refused.append(why)
    fewest = min(refused, key=len, default=())
    return Placement(None, tuple(fewest))


def _least_first(device: DeviceView) -> tuple[int, float, float, str]:
    return device.units, 1.0 if device.busy is None else device.busy, -float(device.free_bytes or 0), device.key


def _room(device: DeviceView, needs_bytes: float, soft_free_pct: float) -> list[Reason]:
    """Low use alone is no room: memory may be held by a process that does nothing any more."""
    if device.unified:
        return []
    if device.total_bytes is None or device.free_bytes is None:
        return [
            Reason("GPU_MEMORY_SHORT", f"the free memory of {device.name} cannot be read", "cotenant doctor NODE"),
        ]
    left = device.free_bytes - needs_bytes
    if left < soft_free_pct / 100.0 * device.total_bytes:
        return [
            Reason(
                "GPU_MEMORY_SHORT",
                f"{device.name} has {device.free_bytes / GB:.1f} of {device.total_bytes / GB:.1f} GB free, and "
                + (f"{needs_bytes / GB:.1f} GB with " if needs_bytes else "")
                + f"{soft_free_pct:g} % to stay free "
                + ("are needed" if needs_bytes else "is needed"),
                "wait until its memory is free, or end what holds it: nvidia-smi",
            )
        ]
    return []
