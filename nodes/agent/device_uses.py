"""How the protected programs use the node's duty device: GPUs, or its processor where that is what a duty counts on."""

from __future__ import annotations

from collections.abc import Collection

from nodes.agent.program_use import CpuUse, WantedCores
from nodes.capacity import usable_cores
from nodes.meters.device import DeviceMeters
from nodes.meters.reading import Unreadable
from nodes.processes import ProcessTable
from policies.devices import DeviceUse, UseState, device_use, step_use, used_since
from policies.rules import Group, PidStart
from policies.work import CPU

__all__ = ["DeviceUses"]


class DeviceUses:
    """Of each rule's program.

    Attributes:
        meters: who reads GPU time by process; None: nobody, and nothing is known of any GPU.
        on_cpu: the duty device is the processor.
    """

    def __init__(self, table: ProcessTable) -> None:
        self.table = table
        self.meters: DeviceMeters | None = None
        self.on_cpu = False
        self._cpu: dict[str, CpuUse] = {}
        self._wanted: dict[str, WantedCores] = {}
        self._gpus: dict[str, UseState] = {}

    def configure(self, kept: Collection[str], *, on_cpu: bool) -> None:
        """What is known of other rules than these is forgotten."""
        self.on_cpu = on_cpu
        known: tuple[dict[str, CpuUse] | dict[str, WantedCores] | dict[str, UseState], ...]
        known = self._cpu, self._wanted, self._gpus
        for table in known:
            for name in table.keys() - set(kept):
                del table[name]

    def read(self, rule: str, found: Group, now_s: float, fleet_on: Collection[str] | None) -> None:
        """More than 5 % of a GPU's time; with the CPU as duty device more than 5 % of a core.

        Args:
            fleet_on: the GPUs that fleet work may have been on since the last reading; None: any.
        """
        pids = [p.pid for p in found.holding]
        if not self.on_cpu:
            shares = {} if self.meters is None else self.meters.shares(pids, now_s)
            self._gpus[rule] = step_use(self._gpus.get(rule, UseState()), shares, now_s, fleet_on)
            return
        cores = self.table.cpu_cores_used(pids, now_s)
        use = self._cpu.setdefault(rule, CpuUse(self._wanted.setdefault(rule, WantedCores())))
        use.read(cores, _identities(found), now_s)

    def wanted_cores(self, rule: str, found: Group, now_s: float) -> float | None:
        """Cores that the program had or waited for; None: it cannot be told (yet)."""
        return self._wanted.setdefault(rule, WantedCores()).read(_identities(found), now_s)

    def busy(self, found: Group, now_s: float) -> float | None:
        """How busy the program keeps the device: of a GPU the share of its time, of the CPU the cores that it uses."""
        pids = [p.pid for p in found.holding]
        if self.on_cpu:
            return self.table.cpu_cores_used(pids, now_s)
        if self.meters is None:
            return None
        share = self.meters.share(pids, now_s)
        return None if isinstance(share, Unreadable) else share

    def share(self, found: Group, now_s: float) -> float | None:
        """The program's share of the whole device, for ``gpu_share``."""
        use = self.busy(found, now_s)
        return use if use is None or not self.on_cpu else min(1.0, use / usable_cores())

    def gpus(self, rule: str, now_s: float) -> DeviceUse:
        """Which GPUs the program uses, or may use. With the CPU as duty device nothing is known of any."""
        return DeviceUse(None) if self.on_cpu else device_use(self._gpus.get(rule, UseState()), now_s)

    def uses(self, rule: str, now_s: float) -> bool | None:
        """Whether the program uses the device; None: it cannot be told, which counts as use."""
        if not self.on_cpu:
            return self.gpus(rule, now_s).uses
        use = self._cpu.get(rule)
        return None if use is None else use.now(now_s)

    def seen_on(self, rule: str, since_s: float) -> frozenset[str]:
        """The devices that the program was seen to use at some time since then; "cpu" where that is the duty device."""
        if not self.on_cpu:
            return used_since(self._gpus.get(rule, UseState()), since_s)
        use = self._cpu.get(rule)
        return frozenset({CPU}) if use is not None and use.since(since_s) else frozenset()


def _identities(found: Group) -> tuple[PidStart, ...]:
    return tuple(p.pid_start for p in found.holding)
