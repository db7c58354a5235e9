"""On which devices a run showed its work beside the program: only there is anything certified.

A program that was idle on a device while its run passed shows nothing about the time when it is not (``harness.md``,
"Certificates"). It is looked for in the OFF windows: there nobody starves it, and the windows' order is a coin's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from policies.harness.dose import LEAST_OF_DUTY

__all__ = ["measured_devices"]


def measured_devices(blocks: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The devices that in every counted block (``BlockRow`` as JSON) the program used in OFF and the dose was on in ON.

    The dose is on a device that had ``LEAST_OF_DUTY`` of it or more. None of a block without a metered dose.
    """
    counted = [block for block in blocks if block.get("state") == "counted"]
    each = [
        frozenset((block.get("off") or {}).get("program_on") or ()) & _dosed(block.get("on") or {}) for block in counted
    ]
    return tuple(sorted(frozenset.intersection(*each))) if each else ()


def _dosed(window: Mapping[str, Any]) -> frozenset[str]:
    dose = window.get("dose")
    if not dose:
        return frozenset()
    held: dict[str, float] = {}
    for unit in window.get("units") or ():
        for device, share in (unit.get("by_device") or {}).items():
            held[device] = held.get(device, 0.0) + share
    return frozenset(device for device, share in held.items() if share >= LEAST_OF_DUTY * dose)
