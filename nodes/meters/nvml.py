"""Device time by process on NVIDIA devices, from the driver's utilisation samples.

``NvmlMeter`` calls the driver and hands out frozen readings; what a reading says of a process is decided by ``Reading``
alone. Where the driver attributes nothing while the device is busy, no process is credited with it and none is cleared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodes.meters.nvml_gate import Fault, Gate
from nodes.meters.nvml_lists import Layout, UnfitError, layout_of, list_contexts
from nodes.meters.nvml_samples import Cursor, Sample, integrate
from nodes.meters.pidspace import PidSpace
from nodes.meters.reading import Memory, Unreadable, Use

__all__ = ["LEAST_PERIOD_S", "LIST_PERIOD_S", "Holder", "NvmlMeter", "Reading"]

LEAST_PERIOD_S: Final = 1.0
"""Between two readings of a device: asking oftener is itself a load on it."""
MOST_PERIOD_S: Final = 8.0
"""However dear the calls are: older figures are no present."""
LIST_PERIOD_S: Final = 10.0
"""Between two looks at the lists of processes: each may hold the driver's lock for milliseconds."""
UNEXPLAINED: Final = 0.25
"""Busier by this share than its processes together: something uses the device that nobody can name."""
IDLE_PCT: Final = 5
UNATTRIBUTED_AFTER: Final = 5
"""Readings in a row with a busy device and no process's time."""
MPS_SERVER: Final = "nvidia-cuda-mps-server"
UNKNOWN_MEMORY: Final = Memory(None, None)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process with a context. ``pid`` None: it is nobody that can be found here (``driver_pid`` is the driver's number).

    Never signalled: the number is the driver's word alone.
    """

    driver_pid: int
    pid: int | None
    memory_bytes: int | None
    kinds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reading:
    """One device at one moment.

    ``why`` is not None where no process's time can be told. ``busy_s`` by local pid. ``mixed_s``: time of an MPS server,
    which is its clients' together. ``unexplained``: the device was busy and nobody's samples say with what;
    ``unattributed``: for so long now that no process is behind it (work that outlived its process).
    """

    device: str
    at_s: float
    span_s: float = 0.0
    why: str | None = None
    busy_s: Mapping[int, float] = field(default_factory=dict)
    mixed_s: float = 0.0
    util_pct: int | None = None
    unexplained: bool = False
    unattributed: bool = False
    holders: tuple[Holder, ...] | Unreadable = ()
    memory: Memory = UNKNOWN_MEMORY

    def use(self, pids: Iterable[int]) -> Use:
        """The device time of these processes together since the reading before."""
        if self.why is not None:
            return Use(0.0, self.why)
        total, why, flags = 0.0, None, set()
        for pid in pids:
            used = self.busy_s.get(pid)
            total += used or 0.0
            why = why or self._doubt(pid, used is None)
            if used is None:
                flags.add("no_samples")
        if self.unattributed:
            flags.add("busy_unattributed")
        return Use(total, why, frozenset(flags))

    def _doubt(self, pid: int, silent: bool) -> str | None:
        """Why a process may have used more than its samples say (``silent``: it has none); None: it did not."""
        if isinstance(self.holders, Unreadable):
            if not silent:
                return None
            return self.holders.why if (self.util_pct is None or self.util_pct > IDLE_PCT) else None
        kinds = next((holder.kinds for holder in self.holders if holder.pid == pid), frozenset())
        if "MPSCompute" in kinds or (silent and kinds and self.mixed_s > 0.0):
            return "it shares an MPS server, whose time cannot be told apart"
        if silent and self.unexplained and not self.unattributed:
            return f"the device was {self.util_pct} % busy, and the driver does not say with whose work"
        return None

    @property
    def unresolvable(self) -> tuple[Holder, ...]:
        """Holders that are no process here. Their memory is held all the same."""
        return () if isinstance(self.holders, Unreadable) else tuple(h for h in self.holders if h.pid is None)


@dataclass
class _Device:
    """What is remembered of one device between readings."""

    uuid: str
    handle: Any
    mig: bool
    cursor: Cursor = field(default_factory=Cursor)
    reading: Reading | None = None
    holders: tuple[Holder, ...] | Unreadable = ()
    listed_s: float | None = None
    total_bytes: int | None = None
    attributed_ever: bool = False
    unexplained_for: int = 0


class NvmlMeter:
    """Reads every device. Needs a driver that a probe has found to answer. One thread; may block in the driver.

    Args:
        proc: where processes are looked up.
        wall_us: the clock that the driver's stamps come from.
        machine_memory: (total, available) bytes, for devices without memory of their own.

    Raises:
        Unusable: the driver cannot be used (any more).
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        *,
        gate: Gate | None = None,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        machine_memory: Callable[[], tuple[int | None, int | None]] = lambda: (None, None),
    ) -> None:
        import pynvml

        self._nvml = pynvml
        self.gate = gate or Gate()
        self._proc = proc
        self._wall_us = wall_us
        self._machine_memory = machine_memory
        self._pids = PidSpace(proc)
        self._must("init", pynvml.nvmlInit)
        self.driver = str(self._must("init", pynvml.nvmlSystemGetDriverVersion))
        self._layout: Layout = layout_of(self._exports)
        self._devices: list[_Device] = []
        for index in range(self._must("init", pynvml.nvmlDeviceGetCount)):
            handle = self._must("init", pynvml.nvmlDeviceGetHandleByIndex, index)
            mode = self.gate.call("init", pynvml.nvmlDeviceGetMigMode, handle)
            uuid = str(self._must("init", pynvml.nvmlDeviceGetUUID, handle))
            self._devices.append(_Device(uuid, handle, not isinstance(mode, Fault) and bool(mode[0])))

    def _must(self, kind: str, function: Callable[..., Any], *arguments: Any) -> Any:
        found = self.gate.call(kind, function, *arguments)
        if isinstance(found, Fault):
            raise Unusable(found.why)
        return found

    def _exports(self, name: str) -> bool:
        try:
            self._nvml._nvmlGetFunctionPointer(name)
        except self._nvml.NVMLError:
            return False
        return True

    def read(self, now_s: float, wanted: Collection[int] = ()) -> tuple[Reading, ...]:
        """A reading of each device; the one before again where the next is not due yet.

        Args:
            now_s: monotonic seconds.
            wanted: local pids that will be asked about; empty: memory alone is of interest, and samples are not asked for.
        """
        period_s = self.gate.period_s("util", LEAST_PERIOD_S, MOST_PERIOD_S, 2 * len(self._devices))
        for device in self._devices:
            before = device.reading
            if before is not None and now_s - before.at_s < period_s - 0.05:
                continue
            device.reading = self._read(device, now_s, wanted)
        return tuple(device.reading for device in self._devices if device.reading is not None)

    def _read(self, device: _Device, now_s: float, wanted: Collection[int]) -> Reading:
        memory = self._memory(device)
        self._list(device, now_s)
        refused = self._cannot_tell(device)
        span_s = now_s - device.cursor.read_s
        if refused is not None:
            return Reading(device.uuid, now_s, why=refused, holders=device.holders, memory=memory)
        if not wanted:
            device.cursor = Cursor()
            return Reading(device.uuid, now_s, why="not metered: nobody asked", holders=device.holders, memory=memory)
        util = self.gate.call("util", self._nvml.nvmlDeviceGetUtilizationRates, device.handle)
        util_pct = None if isinstance(util, Fault) else int(util.gpu)
        busy = self._samples(device, now_s)
        if isinstance(busy, str):
            return Reading(device.uuid, now_s, why=busy, util_pct=util_pct, holders=device.holders, memory=memory)
        return self._judged(device, now_s, span_s, util_pct, busy, memory)

    def _cannot_tell(self, device: _Device) -> str | None:
        if device.mig:
            return "not measurable: the device is split (MIG), and the driver gives no process's time on a part"
        if isinstance(device.holders, Unreadable) and device.holders.why.startswith("unusable"):
            return device.holders.why
        usable = self._pids.usable
        return usable.why if isinstance(usable, Unreadable) else None

    def _samples(self, device: _Device, now_s: float) -> dict[int, float] | str:
        """Busy seconds by the driver's pid since the last reading, or why there are none."""
        asked_us = self._wall_us()
        since_us = device.cursor.stamp_us or 0
        got = self.gate.call("util", self._nvml.nvmlDeviceGetProcessUtilization, device.handle, since_us)
        if isinstance(got, Fault):
            if not got.is_("NOT_FOUND", "NO_DATA"):
                device.cursor = Cursor()
                words = "not measurable: " if got.is_("NOT_SUPPORTED", "FUNCTION_NOT_FOUND") else ""
                return f"{words}the driver gives no process's time ({got.why})"
            got = []
        samples = [
            Sample(int(s.pid), int(s.timeStamp), max(int(s.smUtil), int(s.encUtil), int(s.decUtil))) for s in got
        ]
        device.cursor, busy = integrate(device.cursor, samples, now_s, asked_us)
        return "first reading: no baseline yet" if busy is None else busy

    def _judged(
        self, device: _Device, now_s: float, span_s: float, util_pct: int | None, busy: dict[int, float], memory: Memory
    ) -> Reading:
        local = self._pids.local(busy)
        servers = {pid for pid, here in local.items() if self._is_mps_server(here)}
        attributed_s = sum(busy.values())
        device.attributed_ever = device.attributed_ever or attributed_s > 0.0
        unexplained = self._unexplained(device, util_pct, attributed_s, span_s)
        device.unexplained_for = device.unexplained_for + 1 if unexplained and attributed_s == 0.0 else 0
        return Reading(
            device=device.uuid,
            at_s=now_s,
            span_s=span_s,
            busy_s={local[pid]: used for pid, used in busy.items() if pid in local and pid not in servers},
            mixed_s=sum(busy[pid] for pid in servers),
            util_pct=util_pct,
            unexplained=unexplained,
            # Where the driver never gave any process's time, its silence says nothing of who is behind it.
            unattributed=device.attributed_ever and device.unexplained_for >= UNATTRIBUTED_AFTER,
            holders=device.holders,
            memory=memory,
        )

    def _unexplained(self, device: _Device, util_pct: int | None, attributed_s: float, span_s: float) -> bool:
        """Whether the device did more than its processes' samples say."""
        if util_pct is None:
            return attributed_s == 0.0
        share = attributed_s / span_s if span_s > 0.0 else 0.0
        if util_pct <= IDLE_PCT or util_pct / 100.0 - share <= UNEXPLAINED:
            return False
        # The figure is of the last moment, the samples of the whole stretch: a burst makes them differ for good reason.
        mean = self._mean_util(device, span_s)
        return attributed_s == 0.0 if mean is None else mean - share > UNEXPLAINED

    def _mean_util(self, device: _Device, span_s: float) -> float | None:
        nvml = self._nvml
        since_us = self._wall_us() - int(span_s * 1e6)
        got = self.gate.call(
            "util", nvml.nvmlDeviceGetSamples, device.handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, since_us
        )
        if isinstance(got, Fault) or not got or not got[1]:
            return None
        values = [float(sample.sampleValue.uiVal) for sample in got[1] if sample.timeStamp > since_us]
        return sum(values) / len(values) / 100.0 if values else None

    def _list(self, device: _Device, now_s: float) -> None:
        period_s = self.gate.period_s("list", LIST_PERIOD_S, 6 * LIST_PERIOD_S, 3 * len(self._devices))
        if device.listed_s is not None and now_s - device.listed_s < period_s:
            return
        device.listed_s = now_s
        try:
            found = list_contexts(self.gate, device.handle, self._layout, device.total_bytes, self._exists)
        except UnfitError:
            device.holders = Unreadable(
                f"unusable: driver {self.driver} fills its process lists in a form that is not known (its pids and memory "
                "make no sense)"
            )
            return
        if isinstance(found, Fault):
            device.holders = Unreadable(f"the device's processes cannot be listed ({found.why})")
            return
        local = self._pids.local(context.pid for context in found)
        device.holders = tuple(Holder(each.pid, local.get(each.pid), each.memory_bytes, each.kinds) for each in found)

    def _exists(self, pid: int) -> bool:
        return (self._proc / str(pid)).exists()

    def _memory(self, device: _Device) -> Memory:
        got = self.gate.call("memory", self._nvml.nvmlDeviceGetMemoryInfo, device.handle)
        if isinstance(got, Fault):
            if got.is_("NOT_SUPPORTED"):
                return Memory(*self._machine_memory(), unified=True)
            return Memory(device.total_bytes, None)
        if int(got.total) <= 0:
            return Memory(*self._machine_memory(), unified=True)
        device.total_bytes = int(got.total)
        return Memory(int(got.total), int(got.free))

    def _is_mps_server(self, pid: int) -> bool:
        try:
            argv0 = (self._proc / str(pid) / "cmdline").read_bytes().split(b"\0")[0]
            comm = (self._proc / str(pid) / "comm").read_text().strip()
        except OSError:
            return False
        # the kernel keeps 15 characters of a name
        return argv0.rsplit(b"/", 1)[-1].decode("utf-8", "replace") == MPS_SERVER or comm == MPS_SERVER[:15]


class Unusable(Exception):
    """The driver answers nothing; the message says why."""
