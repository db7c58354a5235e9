"""What this machine has for the agent, found by trying it. Blocks (a driver may be slow): call it in a thread."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from nodes.capacity import usable_cores
from nodes.jobs.cgroup import Group, make_group, parents
from nodes.jobs.lowering import AUTOGROUP, may_raise
from nodes.memory import read_memory
from nodes.meters.drm import drm_devices
from nodes.meters.nvml_probe import nvidia_present, probe_now
from nodes.meters.pidspace import PidSpace
from nodes.meters.reading import Unreadable
from policies.doctor import Gpu, MachineFacts

__all__ = ["read_machine"]

FREEZE_WITHIN_S = 5.0
ALIVE_S = 60


def read_machine(
    *,
    programs: Collection[int] = (),
    unreadable: Collection[int] = (),
    gpus: Sequence[Gpu] | None = None,
) -> MachineFacts:
    """Everything that ``policies.doctor`` judges, as this process finds it.

    Args:
        programs: pids of protected programs.
        unreadable: pids that a rule may mean and that cannot be judged.
        gpus: devices as the agent's meters read them; None: what the probes say alone.
    """
    return MachineFacts(
        **_groups(programs),
        **_kernel(),
        **_nvidia(gpus),
        **_memory(),
        **_inotify(),
        drm_devices=len(drm_devices()),
        capabilities=_capabilities(),
        unreadable_programs=tuple(sorted(unreadable)),
        machine_cores=os.cpu_count() or 1,
        usable_cores=int(usable_cores()),
    )


def _groups(programs: Collection[int]) -> dict[str, Any]:
    places = parents()
    name = f"doctor-{os.getpid()}-{secrets.token_hex(4)}"
    group = make_group(name, places)
    found: dict[str, Any] = {"cgroup2_mounts": tuple(places), "shares_group": _sharing(programs)}
    if group is None:
        return found | {"freezer_why": "no child group can be made" if places else "there is no cgroup2 mount"}
    try:
        controllers = _text(Path(group.path) / "cgroup.controllers").split()
        kills = (Path(group.path) / "cgroup.kill").exists()
        why = _try_freezing(group)
    finally:
        _remove(group)
    return found | {
        "freezes": why is None,
        "freezer_why": why or "",
        "controllers": frozenset(controllers),
        "kills_group": kills,
    }


def _remove(group: Group) -> None:
    """The kernel lets a group go a moment after its last process."""
    until = time.monotonic() + FREEZE_WITHIN_S
    while not group.remove() and time.monotonic() < until:
        time.sleep(0.01)


def _try_freezing(group: Group) -> str | None:
    """None where a process of ours in the group was seen frozen; else why not."""
    try:
        sleeper = subprocess.Popen(
            ["sleep", str(ALIVE_S)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        return f"no process to try it on: {error}"
    try:
        if not group.add(sleeper.pid):
            return "a process cannot be moved into a child group"
        if not group.freeze():
            return "cgroup.freeze cannot be written"
        until = time.monotonic() + FREEZE_WITHIN_S
        while time.monotonic() < until:
            if group.frozen:
                return None
            time.sleep(0.01)
        return f"a group was not seen frozen within {FREEZE_WITHIN_S:g} s"
    finally:
        group.thaw()
        sleeper.kill()
        sleeper.wait()


def _sharing(programs: Collection[int]) -> tuple[int, ...]:
    """Programs in our own group, which every attempt starts in; in the root everything is, which nothing ends whole."""
    own = _group_of("self")
    if own in (None, "/"):
        return ()
    return tuple(sorted(pid for pid in programs if _group_of(str(pid)) == own))


def _group_of(name: str) -> str | None:
    for line in _text(Path("/proc") / name / "cgroup").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def _kernel() -> dict[str, Any]:
    autogroup = _text(AUTOGROUP).strip()
    try:
        os.close(os.pidfd_open(os.getpid()))
        pidfd = True
    except (OSError, AttributeError):
        pidfd = False
    return {
        "autogroup": None if not autogroup else autogroup == "1",
        "may_raise": may_raise(),
        "pidfd": pidfd,
        "schedstat": bool(_text(Path("/proc/self/schedstat"))),
    }


def _nvidia(gpus: Sequence[Gpu] | None) -> dict[str, Any]:
    if not nvidia_present():
        return {"nvidia_present": False, "gpus": tuple(gpus or ())}
    inventory = probe_now()
    usable = PidSpace().usable
    if gpus is None:
        mig = "the device is split (MIG)"
        gpus = [Gpu(device.name, "nvml", mig if device.mig else None) for device in inventory.devices]
    return {
        "nvidia_present": True,
        "driver": inventory.driver,
        "driver_why": inventory.why,
        "driver_remedy": inventory.remedy,
        "pids_why": usable.why if isinstance(usable, Unreadable) else None,
        "gpus": tuple(gpus),
    }


def _memory() -> dict[str, Any]:
    pools = read_memory().pools
    machine = next((pool for pool in pools if pool.name == "machine"), None)
    limits = [pool for pool in pools if pool.name != "machine" and pool.total_bytes is not None]
    least = min(limits, key=lambda pool: pool.total_bytes or 0, default=None)
    return {
        "machine_bytes": None if machine is None else machine.total_bytes,
        "limit_bytes": None if least is None else least.total_bytes,
        "limit_name": "" if least is None else least.name,
        "limit_readable": all(pool.available_bytes is not None for pool in limits),
    }


def _inotify() -> dict[str, Any]:
    why = None
    try:
        import inotify_simple

        inotify_simple.INotify().close()
    except (ImportError, OSError) as error:
        why = f"no inotify instance can be made: {error}"
    return {
        "inotify_why": why,
        "max_user_watches": _number("/proc/sys/fs/inotify/max_user_watches"),
        "max_user_instances": _number("/proc/sys/fs/inotify/max_user_instances"),
    }


def _capabilities() -> int:
    for line in _text(Path("/proc/self/status")).splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _number(path: str) -> int | None:
    text = _text(Path(path)).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
