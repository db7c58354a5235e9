"""The node's GPUs in the agent's loop: who is read, which unit is on which device, and where a job may start.

A unit is put on one device by ``CUDA_VISIBLE_DEVICES`` where the node has several and the module works through CUDA; any
other unit may use all of them. The assignment stands in the attempt's launch document, so a restarted agent knows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodes.agent.seen_on_gpu import SeenOnGpu
from nodes.clock import monotonic_s
from nodes.identity import ProcessId
from nodes.jobs import Attempt
from nodes.jobs.runnerfiles import read_document
from nodes.meters.device import WAIT_S, DeviceMeters, UnitPids
from nodes.meters.reading import Unreadable
from policies.devices import DeviceView, Placement, place
from policies.manifest import Gpu
from policies.views import Reason, Unit

__all__ = ["GPU_ENV", "Gpus"]

GPU_ENV = "CUDA_VISIBLE_DEVICES"
STRAY = 0.01
STRAYED = "strayed"
EDGE_WAIT_S = 1.0
"""How long the edge of a window waits for the driver's newest samples."""


class Gpus:
    """Not thread-safe. ``attempts`` are the live ones; ``tree`` gives an attempt's processes."""

    def __init__(
        self,
        meters: DeviceMeters,
        attempts: Callable[[], Sequence[Attempt]],
        tree: Callable[[str], Sequence[ProcessId]],
        uses_gpu: Callable[[Attempt], bool],
        note: Callable[[str, dict[str, Any]], None] = lambda code, data: None,
        seen: SeenOnGpu | None = None,
        digest_of: Callable[[str], str | None] = lambda attempt: None,
    ) -> None:
        self.meters = meters
        self._attempts, self._tree, self._uses_gpu, self._note = attempts, tree, uses_gpu, note
        self._seen = SeenOnGpu() if seen is None else seen
        self._digest_of = digest_of
        self._told: dict[str, frozenset[str]] = {}
        self._strayed: set[str] = set()
        self._protected: Collection[int] = ()
        self._at_rest: set[str] = set()
        self._moving: dict[str, frozenset[str] | None] = {}
        self._ran: list[frozenset[str] | None] = []

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(
        self, now_s: float, protected: Collection[int], trees: Mapping[str, Sequence[ProcessId]]
    ) -> frozenset[str] | None:
        """Read what is due. ``protected``: pids of protected programs; ``trees``: processes by attempt.

        Answers with the devices that fleet work may have been on since this was last asked; None: any.
        """
        self._read(now_s, protected, trees, WAIT_S)
        ran, self._ran = self._ran, []
        known = [keys for keys in ran if keys is not None]
        return frozenset[str]().union(*known) if len(known) == len(ran) else None

    def _read(
        self, now_s: float, protected: Collection[int], trees: Mapping[str, Sequence[ProcessId]], wait_s: float
    ) -> None:
        self._protected = protected
        live = {attempt.attempt_id: attempt for attempt in self._attempts()}
        self._told = {name: told for name, told in self._told.items() if name in live}
        self._strayed &= live.keys()
        units = {
            name: UnitPids(
                [who.pid for who in trees[name]], self.devices_of(attempt) if self._uses_gpu(attempt) else None
            )
            for name, attempt in live.items()
            if name in trees and (self.meters.devices or self._uses_gpu(attempt))
        }
        self.meters.tick(now_s, protected, units, wait_s=wait_s)
        for name, unit in units.items():
            if not self._uses_gpu(live[name]):
                self._look_for_undeclared(live[name], unit, now_s)
            elif unit.devices is not None and self._strays(unit, now_s):
                self._keep_strayed(live[name])
        self._see_who_ran(live)

    def _look_for_undeclared(self, attempt: Attempt, unit: UnitPids, now_s: float) -> None:
        """Work that says it uses no GPU is held by no rule of one: seen on a device it is no such work any more."""
        seen = {key: share for key, (share, _) in self.meters.shares(unit.pids, now_s).items() if share > STRAY}
        if seen:
            self._seen.add(attempt.module, attempt.stage, self._digest_of(attempt.attempt_id))
            shares = {key: round(share, 3) for key, share in seen.items()}
            self._note("JOB_GPU_UNDECLARED", {"job": attempt.job_id, "attempt": attempt.attempt_id,
                                              "module": attempt.module, "stage": attempt.stage, "shares": shares})  # fmt: skip

    def was_seen(self, module: str, stage: str, digest: str | None) -> bool:
        """Whether such work was seen on a device, whatever its manifest says."""
        return self._seen.was(module, stage, digest)

    def _keep_strayed(self, attempt: Attempt) -> None:
        """For the agent's next process too: it stands in the attempt's folder, beside what it was put on."""
        self._strayed.add(attempt.attempt_id)
        with contextlib.suppress(OSError):
            (attempt.folder.root / STRAYED).touch()

    def _see_who_ran(self, live: Mapping[str, Attempt]) -> None:
        """A unit ran unless it was seen at rest at this look and at the one before, and used no device in between."""
        at_rest = {
            name
            for name, attempt in live.items()
            if attempt.state == "held" and attempt.hold_confirmed and not self._uses(name)
        }
        moving = {name: self.devices_of(attempt) for name, attempt in live.items() if self._uses_gpu(attempt)}
        ended = [keys for name, keys in self._moving.items() if name not in live and name not in self._at_rest]
        still = at_rest & self._at_rest
        self._ran += [*ended, *(keys for name, keys in moving.items() if name not in still)]
        self._at_rest, self._moving = at_rest, moving

    def _uses(self, name: str) -> bool:
        share = self.meters.unit_share(name)
        return isinstance(share, float) and share > STRAY

    def _strays(self, unit: UnitPids, now_s: float) -> bool:
        """Whether a unit is seen on a device that it was not put on: from then on it may be on any."""
        shares = self.meters.shares(unit.pids, now_s)
        return any(share > STRAY for key, (share, _) in shares.items() if unit.devices and key not in unit.devices)

    def read_now(self) -> None:
        """The newest figures for the edge of a window."""
        trees = {attempt.attempt_id: self._tree(attempt.attempt_id) for attempt in self._attempts()}
        self._read(monotonic_s(), self._protected, trees, EDGE_WAIT_S)

    def share(self, attempt: str) -> float | Unreadable:
        return self.meters.unit_share(attempt)

    def share_window(self, attempt: str) -> tuple[float, float] | None:
        return self.meters.unit_window(attempt)

    def share_age_s(self, attempt: str, now_s: float) -> float:
        return self.meters.unit_age_s(attempt, now_s)

    def total(self, attempt: str, since_s: float | None, only: Collection[str] | None = None) -> float | Unreadable:
        return self.meters.unit_total(attempt, since_s, only)

    def totals(self, attempt: str) -> dict[str, float]:
        return self.meters.unit_totals(attempt)

    # -- which unit is where ----------------------------------------------------------------------------------------

    def devices_of(self, attempt: Attempt) -> frozenset[str] | None:
        """The devices an attempt was put on; None: it may use any."""
        name = attempt.attempt_id
        if name not in self._told:
            env = (read_document(attempt.folder.root / "launch.json") or {}).get("env")
            text = env.get(GPU_ENV, "") if isinstance(env, dict) else ""
            self._told[name] = frozenset(part for part in str(text).split(",") if part)
            if (attempt.folder.root / STRAYED).exists():
                self._strayed.add(name)
        told = self._told[name]
        # a name that the meters do not know (an index, a device that is gone) says nothing of which device it is
        known = bool(told) and told <= {device.key for device in self.meters.devices}
        return told if known and name not in self._strayed else None

    def place(self, unit: Unit, gpu: Gpu, soft_free_pct: float, held: Callable[[Unit], Sequence[Reason]]) -> Placement:
        """Where a waiting job may start, or why it may not.

        Args:
            gpu: what its manifest says of the GPU.
            held: everything but the device's own state that keeps a unit (with its devices) from starting.
        """
        why = self._not_ready()
        if why is not None:
            return Placement(None, (*held(unit), why))
        views = self._views()
        if not views:
            return Placement(None, tuple(held(unit)))
        pinned = self._pins(gpu)
        if pinned:
            views = [view for view in views if view.key in pinned]
        held_anywhere = None if pinned else tuple(held(unit))

        def held_on(key: str) -> Sequence[Reason]:
            return held(replace(unit, devices=frozenset({key}))) if held_anywhere is None else held_anywhere

        found = place(views, held_on, needs_bytes=gpu.min_vram_gb * 1e9, soft_free_pct=soft_free_pct)
        return found if pinned or found.device is None else Placement(None)

    def environment(self, device: str | None) -> dict[str, str]:
        return {} if device is None else {GPU_ENV: device}

    def _not_ready(self) -> Reason | None:
        if self.meters.down is not None:
            why, remedy = self.meters.down
            return Reason("GPU_METER_DOWN", why, remedy)
        if self.meters.present and not self.meters.devices:
            return Reason("GPU_METER_DOWN", "the GPU driver is still being probed")
        return None

    def _pins(self, gpu: Gpu) -> frozenset[str]:
        """The devices among which a module's work is put on one; empty: it may use all."""
        devices = self.meters.devices
        nvidia = frozenset(device.key for device in devices if device.kind == "nvml" and not device.mig)
        # a module that names no interface works through CUDA where there is nothing else
        through_cuda = set(gpu.apis_any) <= {"cuda"} and (bool(gpu.apis_any) or len(nvidia) == len(devices))
        return nvidia if len(devices) > 1 and through_cuda else frozenset()

    def _views(self) -> list[DeviceView]:
        counts: dict[str, int] = {}
        for attempt in self._attempts():
            for key in self.devices_of(attempt) or ():
                counts[key] = counts.get(key, 0) + 1
        found = []
        for device in self.meters.devices:
            memory = self.meters.memory(device.key)
            found.append(
                DeviceView(
                    device.key,
                    device.name,
                    memory.total_bytes,
                    memory.free_bytes,
                    memory.unified,
                    self.meters.busy(device.key),
                    counts.get(device.key, 0),
                )
            )
        return found

    def describe(self) -> list[dict[str, Any]]:
        """Rows for ``status``: each device, and the attempts that were put on it."""
        on = {attempt.attempt_id: self.devices_of(attempt) for attempt in self._attempts()}
        rows = self.meters.describe()
        for row in rows:
            row["attempts"] = sorted(name for name, keys in on.items() if keys is not None and row["device"] in keys)
        return rows
