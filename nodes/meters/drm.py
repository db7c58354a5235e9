"""Device time by process from DRM's ``fdinfo``: AMD, Intel and other devices whose drivers count engine time by client.

A client is counted once however many descriptors share it, and it is its earliest holder's: a descriptor that was
inherited from a compositor holds the device and uses nothing of it. Where the protected program and fleet work share a
client, its time is the program's.

Looking is cheap: processes of interest are looked at on every reading, others when they are new and then in turn.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodes.meters.drm_counters import Counters, advance, class_clocks
from nodes.meters.fdinfo import DrmFile, parse_fdinfo
from nodes.meters.reading import Memory, Use

__all__ = ["DrmDevice", "DrmMeter", "DrmReading", "drm_devices"]

LEAST_PERIOD_S: Final = 1.0
CYCLE: Final = 30
"""Processes of no interest are looked at anew within so many readings."""
BUSY_PCT: Final = 50
LATE_S: Final = 0.5
UNIFIED_DRIVERS: Final = ("i915", "xe", "panfrost", "panthor", "msm", "v3d", "asahi", "lima")
NEEDS: Final = (
    "give the agent CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (a system service has them), or run it as that user"
)

Client = tuple[str, int]


@dataclass(frozen=True, slots=True)
class DrmDevice:
    """A device with a render node. ``pdev`` is its bus address."""

    pdev: str
    driver: str
    sys: Path

    def busy_pct(self) -> int | None:
        """The device's own figure, where the driver has one."""
        return _number(self.sys / "gpu_busy_percent")

    def memory(self, machine: tuple[int | None, int | None]) -> Memory:
        total, used = _number(self.sys / "mem_info_vram_total"), _number(self.sys / "mem_info_vram_used")
        if total:
            return Memory(total, None if used is None else max(0, total - used))
        return Memory(*machine, unified=True) if self.driver in UNIFIED_DRIVERS else Memory(None, None)


def drm_devices(sys: Path = Path("/sys")) -> tuple[DrmDevice, ...]:
    """Devices that count engine time by client; NVIDIA's own driver does not, and has its own meter."""
    found: dict[str, DrmDevice] = {}
    for node in sorted((sys / "class/drm").glob("renderD*")):
        device = (node / "device").resolve()
        driver = os.path.basename(os.path.realpath(device / "driver"))
        if not driver.startswith("nvidia"):
            found.setdefault(device.name, DrmDevice(device.name, driver, device))
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class DrmReading:
    """One device. ``engine_s``: busy seconds by owner's pid and engine class; ``unreadable``: pids that cannot be told."""

    device: str
    at_s: float
    span_s: float = 0.0
    why: str | None = None
    engine_s: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    unreadable: Mapping[int, str] = field(default_factory=dict)
    util_pct: int | None = None
    memory: Memory | None = None
    unattributed: bool = False

    def use(self, pids: Iterable[int]) -> Use:
        """Device time of these processes together: of the engine class that they kept busiest."""
        if self.why is not None:
            return Use(0.0, self.why)
        wanted = set(pids)
        classes: dict[str, float] = defaultdict(float)
        for pid in wanted:
            for name, seconds in self.engine_s.get(pid, {}).items():
                classes[name] += seconds
        why = next((self.unreadable[pid] for pid in sorted(wanted & self.unreadable.keys())), None)
        return Use(max(classes.values(), default=0.0), why)


@dataclass
class _Seen:
    """What is remembered of a client: its counters, and its holders at the last reading."""

    counters: Counters
    holders: frozenset[int]


class DrmMeter:
    """Reads all DRM devices. ``proc`` and ``sys`` may be fake trees. Not thread-safe."""

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc = str(proc)
        self.devices = drm_devices(sys)
        self._by_pdev = {device.pdev: device for device in self.devices}
        self._clients: dict[Client, _Seen] = {}
        self._clocks: dict[tuple[str, str], int] = {}
        self._known: set[int] = set()
        self._looked: set[int] = set()
        self._known_before: set[int] = set()
        self._looked_before: set[int] = set()
        self._holding: set[int] = set()
        self._turn: list[int] = []
        self._read_s: float | None = None
        self._readings: tuple[DrmReading, ...] = ()

    def read(
        self,
        now_s: float,
        interest: Collection[int],
        protected: Collection[int] = (),
        machine: tuple[int | None, int | None] = (None, None),
    ) -> tuple[DrmReading, ...]:
        """A reading of each device; the one before again within a second of it.

        Args:
            interest: pids that will be asked about.
            protected: those of them that are the protected program's.
            machine: (total, available) bytes of the machine, for devices that share its memory.
        """
        if self._read_s is not None and now_s - self._read_s < LEAST_PERIOD_S - 0.05:
            return self._readings
        elapsed_s = None if self._read_s is None else now_s - self._read_s
        files, holders, unreadable = self._look(set(interest))
        clocks = class_clocks(list(files.values()))
        engine_s: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
        doubts: dict[str, dict[int, str]] = defaultdict(dict)
        clients: dict[Client, _Seen] = {}
        for client, file in files.items():
            owner = self._owner(holders[client], set(protected))
            if not file.metered:
                doubts[file.pdev][owner] = f"driver {file.driver} does not tell the engine time of its clients"
                continue
            before = self._before(client, holders[client], elapsed_s)
            ticks = {name: clocks[file.pdev, name] - self._clocks.get((file.pdev, name), 0) for name in file.cycles}
            counters, used = advance(before or Counters(), file, ticks, elapsed_s or 0.0)
            clients[client] = _Seen(counters, holders[client])
            # a client that has more than the time since the last reading did not come up since then
            young = client in self._clients or max(used.values(), default=0.0) <= (elapsed_s or 0.0) + LATE_S
            if before is None or not young:
                doubts[file.pdev][owner] = "first reading: no baseline yet"
                continue
            for name, seconds in used.items():
                engine_s[file.pdev][owner][name] += seconds
        self._clients, self._clocks, self._read_s = clients, clocks, now_s
        self._readings = tuple(
            self._reading(device, now_s, elapsed_s, engine_s[device.pdev], doubts[device.pdev] | unreadable, machine)
            for device in self.devices
        )
        return self._readings

    def _reading(
        self,
        device: DrmDevice,
        now_s: float,
        elapsed_s: float | None,
        engine_s: Mapping[int, Mapping[str, float]],
        unreadable: Mapping[int, str],
        machine: tuple[int | None, int | None],
    ) -> DrmReading:
        busy_pct = device.busy_pct()
        why = "first reading: no baseline yet" if elapsed_s is None else None
        stands_still = not any(seconds for classes in engine_s.values() for seconds in classes.values())
        if why is None and busy_pct is not None and busy_pct >= BUSY_PCT and engine_s and stands_still:
            why = f"the clients' counters stand still while the device is {busy_pct} % busy"
        return DrmReading(
            device.pdev, now_s, elapsed_s or 0.0, why, engine_s, unreadable, busy_pct, device.memory(machine)
        )

    def _before(self, client: Client, holders: frozenset[int], elapsed_s: float | None) -> Counters | None:
        """What a client's counters stood at; 0 where it certainly came up since the last reading; None: not known."""
        seen = self._clients.get(client)
        if seen is not None:
            return seen.counters
        born = elapsed_s is not None and any(
            pid in self._looked_before or pid not in self._known_before for pid in holders
        )
        return Counters() if born else None

    # -- looking at processes ---------------------------------------------------------------------------------------

    def _look(self, interest: set[int]) -> tuple[dict[Client, DrmFile], dict[Client, frozenset[int]], dict[int, str]]:
        """Clients, who holds each, and which processes of interest cannot be read."""
        present = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        self._known_before, self._looked_before = self._known, self._looked
        self._turn = [pid for pid in self._turn if pid in present] or sorted(present)
        share = -(-len(present) // CYCLE)
        turn, self._turn = self._turn[:share], self._turn[share:]
        looking = (interest | self._holding | (present - self._known) | set(turn)) & present
        files: dict[Client, DrmFile] = {}
        holders: dict[Client, set[int]] = defaultdict(set)
        unreadable: dict[int, str] = {}
        looked: set[int] = set()
        self._holding = set()
        queue = sorted(looking)
        for pid in queue:
            try:
                for file in self._files(pid):
                    client = (file.pdev, file.client)
                    files[client] = _newer(files.get(client), file)
                    holders[client].add(pid)
                    self._holding.add(pid)
                looked.add(pid)
                if pid in self._holding and pid not in self._known_before:
                    # a newcomer may have inherited its descriptors: whose they were is seen in the same look
                    parent = self._stat(pid)[1]
                    if parent in present and parent not in looking:
                        looking.add(parent)
                        queue.append(parent)
            except PermissionError:
                if pid in interest:
                    unreadable[pid] = f"the open files of process {pid} cannot be read; {NEEDS}"
            except (FileNotFoundError, ProcessLookupError):
                pass  # it ended
            except OSError as error:
                if pid in interest:
                    unreadable[pid] = f"the open files of process {pid} cannot be read ({error.strerror})"
        self._known, self._looked = present, looked
        return files, {client: frozenset(pids) for client, pids in holders.items()}, unreadable

    def _files(self, pid: int) -> list[DrmFile]:
        found = []
        for fd in os.listdir(f"{self._proc}/{pid}/fd"):
            try:
                target = os.readlink(f"{self._proc}/{pid}/fd/{fd}")
                if not target.startswith("/dev/dri/"):
                    continue
                with open(f"{self._proc}/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as text:
                    file = parse_fdinfo(text.read())
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ESRCH):
                    continue  # closed in between
                raise
            if file is not None and file.pdev in self._by_pdev:
                found.append(file)
        return found

    def _owner(self, holders: frozenset[int], protected: set[int]) -> int:
        return min(holders & protected or holders, key=lambda pid: (self._stat(pid)[0], pid))

    def _stat(self, pid: int) -> tuple[int, int]:
        """(start ticks, parent); one that cannot be read started last and has no parent."""
        try:
            with open(f"{self._proc}/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            return int(fields[19]), int(fields[1])
        except (OSError, ValueError, IndexError):
            return 1 << 62, 0


def _newer(one: DrmFile | None, other: DrmFile) -> DrmFile:
    """Of two looks at one client moments apart, the one with the higher counters."""
    if one is None:
        return other
    sums = [sum(f.busy_ns.values()) + sum(used for used, _ in f.cycles.values()) for f in (one, other)]
    return one if sums[0] > sums[1] else other


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
