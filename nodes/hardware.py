"""This machine's hardware and system, as a certificate names them."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

from nodes.meters.nvml_probe import nvidia_present, probe_now
from policies.certificate import Gpu

__all__ = ["gpus", "hardware"]


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _os_name() -> tuple[str, str]:
    try:
        facts = platform.freedesktop_os_release()
        return facts.get("ID", platform.system()), facts.get("VERSION_ID", "").partition(".")[0]
    except OSError:
        return platform.system(), platform.release().partition(".")[0]


_known_gpus: list[tuple[Gpu, ...]] = []


def gpus() -> tuple[Gpu, ...] | None:
    """Name, UUID, memory and driver of each NVIDIA GPU; () where there is no driver, None where it cannot be asked.

    Asked in a child process, once it has answered never again: a driver that is replaced while the machine runs
    serves what runs already, and the next agent finds it.
    """
    if _known_gpus:
        return _known_gpus[0]
    if not nvidia_present():
        return ()
    inventory = probe_now()
    if inventory.why is not None:
        return () if inventory.library_missing else None
    found = tuple(
        Gpu(name=each.name, uuid=each.uuid, memory_bytes=each.memory_bytes, driver=inventory.driver)
        for each in inventory.devices
    )
    _known_gpus.append(found)
    return found


@lru_cache(maxsize=1)
def hardware() -> dict[str, Any]:
    """Facts that do not change while the machine runs (memory in GiB, rounded: firmware holes vary by a page or two)."""
    name, major = _os_name()
    return {
        "cpu_model": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30), 1),
        "os_name": name,
        "os_major": major,
        "kernel": platform.release(),
    }
