"""What NVIDIA devices this machine has, asked in a process of its own: on some systems the library ends who loads it.

``python -m nodes.meters.nvml_probe`` prints one JSON object: ``{ok, driver, devices: [{name, uuid, memory_bytes, mig}]}``
or ``{ok: false, code, why}``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Inventory", "NvidiaDevice", "Probe", "nvidia_present", "probe_now"]

LIMIT_S = 20.0
LIBRARY = "libnvidia-ml.so.1"
NODES = ("dev/nvidiactl", "dev/nvidia0", "dev/dxg", "proc/driver/nvidia/version")
FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib",
           "/usr/local/nvidia/lib64", "/run/opengl-driver/lib")  # fmt: skip


def nvidia_present(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is any sign of an NVIDIA device or driver. A few lookups, no import, no library loaded."""
    if any((root / name).exists() for name in NODES):
        return True
    folders = [root / folder.lstrip("/") for folder in FOLDERS]
    folders += [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return any((folder / LIBRARY).exists() for folder in folders)


@dataclass(frozen=True, slots=True)
class NvidiaDevice:
    index: int
    name: str
    uuid: str
    memory_bytes: int | None
    mig: bool


@dataclass(frozen=True, slots=True)
class Inventory:
    """``why`` None: the driver answers. Otherwise what is wrong with it, and ``remedy`` what to do."""

    devices: tuple[NvidiaDevice, ...] = ()
    driver: str | None = None
    why: str | None = None
    remedy: str = ""
    library_missing: bool = False


class Probe:
    """One probing child; ``poll`` never waits."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._inventory: Inventory | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nodes.meters.nvml_probe"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._inventory = Inventory(why=f"the driver cannot be probed: {error}", remedy="free some processes")

    def poll(self) -> Inventory | None:
        """The inventory; None while the child still works (at most ``LIMIT_S``)."""
        process = self._process
        if self._inventory is not None or process is None:
            return self._inventory
        code = process.poll()
        if code is None and time.monotonic() - self._began_s <= LIMIT_S:
            return None
        # the answer fits a pipe's buffer, so the child has never waited for a reader
        if code is None:
            process.kill()
            self._inventory = Inventory(
                why=f"the driver did not answer within {LIMIT_S:g} s", remedy="see dmesg; a reboot frees a stuck driver"
            )
        else:
            assert process.stdout is not None
            self._inventory = _understood(code, process.stdout.read())
        if process.stdout is not None:
            process.stdout.close()
        return self._inventory

    def wait(self) -> Inventory:
        while True:
            found = self.poll()
            if found is not None:
                return found
            time.sleep(0.02)


def probe_now() -> Inventory:
    """Probe and wait for it (at most ``LIMIT_S``): call it in a thread."""
    return Probe().wait()


def _understood(code: int, out: bytes) -> Inventory:
    if code < 0:
        name = signal.strsignal(-code) or str(-code)
        return Inventory(
            why=f"the NVIDIA library ends the process that loads it ({name}): not supported here",
            remedy="on WSL update the Windows driver; device time cannot be metered on this system",
        )
    try:
        raw: dict[str, Any] = json.loads(out)
    except ValueError:
        return Inventory(why=f"the driver's probe said nothing (exit {code})", remedy="cotenant doctor NODE")
    if not raw.get("ok"):
        return Inventory(
            why=str(raw.get("why")), remedy=str(raw.get("remedy", "")), library_missing=bool(raw.get("missing"))
        )
    devices = tuple(NvidiaDevice(index, **fields) for index, fields in enumerate(raw["devices"]))
    return Inventory(devices, raw["driver"])


def _remedy(code: int) -> str:
    import pynvml

    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "the driver was upgraded while it runs: reboot"
    if code in (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_NO_PERMISSION):
        return "load the nvidia kernel module and see that this account may open /dev/nvidiactl"
    return "see nvidia-smi and dmesg"


def inventory() -> dict[str, Any]:
    """Ask the library in this very process."""
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        devices = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            try:
                mig = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
            except pynvml.NVMLError:
                mig = False  # a device that does not know MIG has it not
            try:
                memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) or None
            except pynvml.NVMLError:
                memory = None
            name, uuid = str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle))
            devices.append({"name": name, "uuid": uuid, "memory_bytes": memory, "mig": mig})
        return {"ok": True, "driver": driver, "devices": devices}
    except pynvml.NVMLError as error:
        missing = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return {"ok": False, "code": error.value, "why": str(error), "remedy": _remedy(error.value), "missing": missing}


if __name__ == "__main__":
    print(json.dumps(inventory()))
