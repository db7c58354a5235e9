"""This machine's hardware and system, as a certificate names them."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from nodes.meters.nvml_probe import Inventory, Probe, nvidia_present, probe_now
from policies.certificate import Gpu

__all__ = ["gpus", "gpus_are_asked", "hardware"]


OS_RELEASE = (Path("/etc/os-release"), Path("/usr/lib/os-release"))
DEVICES = (Path("/proc/driver/nvidia/gpus"), Path("/dev"))
DRIVER = Path("/proc/driver/nvidia/version")
# A GPU's node, or its address; what else a driver puts there (nvidia-uvm) comes with the first program that asks for it.
_DEVICE = re.compile(r"nvidia\d+|[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)


@lru_cache(maxsize=1)
def _cpu_model(_cores: int | None) -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@lru_cache(maxsize=1)
def _os_name(_stamps: tuple[tuple[int, ...] | None, ...]) -> tuple[str, str]:
    """Read here: ``platform.freedesktop_os_release`` keeps its first answer for as long as the process lives."""
    for path in OS_RELEASE:
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        pairs = (line.partition("=") for line in lines if not line.lstrip().startswith("#"))
        facts = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
        return facts.get("ID", "linux"), facts.get("VERSION_ID", "").partition(".")[0]
    return platform.system(), platform.release().partition(".")[0]


def _device_list() -> tuple[str, ...]:
    """What changes when a GPU comes, goes, or gets another driver; a few lookups, the driver is not asked."""
    found: list[str] = []
    for folder in DEVICES:
        with contextlib.suppress(OSError):
            found += sorted(name for name in os.listdir(folder) if _DEVICE.fullmatch(name))
    with contextlib.suppress(OSError):
        found.append(DRIVER.read_text(errors="replace"))
    return tuple(found)


# Over a changed list the driver is asked for so long, anew where it did not answer; nothing waits longer for it.
ASK_WITHIN_S = 25.0
# The first asking makes what a driver makes when it is first asked for; with that there, asking changes nothing.
FIRST_ASKINGS = 3

# Asked from the loop and from threads that read a fingerprint. Never held while anything waits.
_lock = threading.Lock()
_known_gpus: dict[tuple[str, ...], tuple[Gpu, ...]] = {}
_probes: dict[tuple[str, ...], Probe] = {}
_asked_since_s: list[float] = []  # one: since when the list is another one than the known


def gpus(*, wait: bool = False) -> tuple[Gpu, ...] | None:
    """Name, UUID, memory and driver of each NVIDIA GPU; () where there is no driver, None where it cannot be asked.

    Asked in a child process, and once it has answered again only when the list of devices or the loaded driver changed. That
    is not waited for (None, while ``gpus_are_asked``), but for ``wait``: in a thread, at most ``ASK_WITHIN_S`` long.
    """
    found = _gpus()
    while wait and found is None and gpus_are_asked():
        time.sleep(0.02)
        found = _gpus()
    return found


def gpus_are_asked() -> bool:
    """Whether the list of devices changed, and what they are now is being asked: not known yet, which is not another machine."""
    with _lock:
        return bool(_asked_since_s) and time.monotonic() - _asked_since_s[0] <= ASK_WITHIN_S


def _gpus() -> tuple[Gpu, ...] | None:
    devices = _device_list()
    with _lock:
        if devices in _known_gpus:
            _asked_since_s.clear()
            return _known_gpus[devices]
        known_others = bool(_known_gpus)
    if not nvidia_present():
        with _lock:
            _asked_since_s.clear()
        return ()
    return _asked_again(devices) if known_others else _asked_first()


def _asked_first() -> tuple[Gpu, ...] | None:
    """What the driver says, waited for. After a boot the first asking loads the driver and makes the devices' nodes."""
    for _ in range(FIRST_ASKINGS):
        devices = _device_list()
        inventory = probe_now()
        if inventory.why is not None:
            return () if inventory.library_missing else None
        if _device_list() == devices:
            return _keep(devices, inventory)
    return None


def _asked_again(devices: tuple[str, ...]) -> tuple[Gpu, ...] | None:
    """What the driver says of another list of devices; None while it is asked, in the midst of a tick."""
    with _lock:
        if not _asked_since_s:
            _asked_since_s.append(time.monotonic())
        if devices not in _probes:
            _probes.clear()
            _probes[devices] = Probe()
        inventory = _probes[devices].poll()
        if inventory is None:
            return None
        del _probes[devices]
    if inventory.why is not None:
        return () if inventory.library_missing else None
    # of a list that changed while it was asked for it is not told which of the two the answer is of
    return _keep(devices, inventory) if _device_list() == devices else None


def _keep(devices: tuple[str, ...], inventory: Inventory) -> tuple[Gpu, ...]:
    found = tuple(
        Gpu(name=each.name, uuid=each.uuid, memory_bytes=each.memory_bytes, driver=inventory.driver)
        for each in inventory.devices
    )
    with _lock:
        _known_gpus.clear()
        _known_gpus[devices] = found
        _asked_since_s.clear()
    return found


def hardware() -> dict[str, Any]:
    """This machine and its system now; what costs a file's reading is read again when the file or the count of cores changed.

    Memory is in GiB, rounded: firmware holes vary by a page or two.
    """
    cores = os.cpu_count()
    name, major = _os_name(tuple(_stamp(path) for path in OS_RELEASE))
    return {
        "cpu_model": _cpu_model(cores),
        "cores": cores,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30), 1),
        "os_name": name,
        "os_major": major,
        "kernel": platform.release(),
    }
