"""Which devices a protected program uses, and which one a unit of fleet work may start on. Pure.

Source: ``protection.md``, "GPU work beside a protected program" and "Per device". What cannot be told counts as use, and a
device's free memory counts as much as its idleness: one that is idle and full has no room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from policies.views import Reason

__all__ = [
    "DEVICE_USE",
    "DEVICE_USE_KEPT_S",
    "DOUBT",
    "DeviceUse",
    "DeviceView",
    "Placement",
    "UseState",
    "device_use",
    "place",
    "step_use",
    "used_since",
]

DEVICE_USE: Final = 0.05
"""A program uses a device above this share of its time."""
DEVICE_USE_KEPT_S: Final = 60.0
"""A program that paused between steps still counts as using the device for this long."""
QUIET_SLACK: Final = 0.01
"""So much more than it had alone is no change: drivers give whole percents."""
GB: Final = 1e9
DOUBT: Final = (
    f"it had no more than {DEVICE_USE:.0%} of the device, and fleet work was on it within the last minute: whether it is "
    "idle or is kept from the device cannot be told"
)


@dataclass(frozen=True, slots=True)
class UseState:
    """What was seen of a program on each device.

    Args:
        used_at_s: when it last used it for certain.
        doubted_at_s: when it was last too little beside fleet work to tell.
        quiet: the largest share it had with no fleet work there, since it last used it.
        unread: what could not be read at the last look, and why.
    """

    used_at_s: Mapping[str, float] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    read: bool = False
    doubted_at_s: Mapping[str, float] = field(default_factory=dict)
    quiet: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """``uses`` None: cannot be told, which counts as using; ``why`` says why. ``devices`` None: it may be any; else those it
    (may) use. ``doubted``: fleet work may keep it from one.
    """

    uses: bool | None
    devices: frozenset[str] | None = None
    why: str = ""
    doubted: bool = False


def step_use(
    state: UseState,
    shares: Mapping[str, tuple[float, str | None]],
    now_s: float,
    fleet_on: Collection[str] | None = (),
) -> UseState:
    """One reading.

    A small share beside fleet work is no sign of idleness: a program that fleet work starves has one too. So the minute
    after which a device counts as unused runs only while no fleet work is on it; and a program that was seen to leave it
    alone is in doubt again as soon as it has more than it had then.

    Args:
        shares: by device what certainly was the program's, and why there may be more (None: there is not).
        fleet_on: devices that fleet work may have been on since the last reading; None: any.
    """
    used, doubted, quiet = dict(state.used_at_s), dict(state.doubted_at_s), dict(state.quiet)
    for device, (share, why) in shares.items():
        if share > DEVICE_USE:
            used[device] = now_s
            quiet.pop(device, None)
        elif why is not None:
            continue  # unread, which says nothing
        elif fleet_on is not None and device not in fleet_on:
            quiet[device] = max(share, quiet.get(device, 0.0))
        elif (
            device not in quiet
            or share > quiet[device] + QUIET_SLACK
            or device in _lately(used, now_s) | _lately(doubted, now_s)
        ):
            doubted[device] = now_s
    unread = {device: why for device, (_, why) in shares.items() if why is not None}
    return UseState(used, unread, bool(shares), doubted, quiet)


def _lately(at_s: Mapping[str, float], now_s: float) -> frozenset[str]:
    return frozenset(device for device, at in at_s.items() if now_s - at <= DEVICE_USE_KEPT_S)


def used_since(state: UseState, since_s: float) -> frozenset[str]:
    """The devices that it certainly used at some time since then."""
    return frozenset(device for device, at in state.used_at_s.items() if at >= since_s)


def device_use(state: UseState, now_s: float) -> DeviceUse:
    """What holds now. Without any reading the program may use every device."""
    used, doubted = _lately(state.used_at_s, now_s), _lately(state.doubted_at_s, now_s)
    if not state.read:
        return DeviceUse(True if used else None, why="no device was read yet")
    devices = used | doubted | state.unread.keys()
    if used:
        return DeviceUse(True, devices)
    why = DOUBT if doubted else next(iter(state.unread.values()), "")
    return DeviceUse(None if devices else False, devices, why, bool(doubted))


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
