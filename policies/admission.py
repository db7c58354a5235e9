"""Whether a waiting job may start now, and if not why: rules, ceilings, slots, cores, memory (protection.md).

What a stage declares counts before its job starts, and what a running job has not taken yet of what it declares still
counts as taken. Every pool of memory binds: the machine, and each control group with a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.governed import idle_code
from policies.memory_guard import Pool
from policies.run_holds import nothing_starts
from policies.units import caps_in_force, in_scope, over_the_caps, reasons, reserve_in_force, rules_beside
from policies.views import NodeView, Reason, Unit

__all__ = ["Room", "Taken", "admission", "memory_short"]

_GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Taken:
    """A unit that has its place already. ``footprint_bytes`` None: what it holds could not be read.

    One that is held keeps its slot and its memory; cores and the places under a ceiling go to those that run. Only the work
    that feeds a harness run takes the slot as well: what the run holds goes nowhere before that work has ended.
    """

    unit: Unit
    mem_bytes: float = 0.0
    footprint_bytes: int | None = None
    held: bool = False

    @property
    def owed_bytes(self) -> float:
        """What it declared and has not taken yet; all of it where that is not known."""
        return max(0.0, self.mem_bytes - (self.footprint_bytes or 0))


@dataclass(frozen=True, slots=True)
class Room:
    """What the node has. ``cores`` and ``pools`` are the smaller of machine and control group.

    ``soft_free_pct``: free memory that must be left (``node.memory``). ``programs_hold_bytes``: what the programs hold
    already for which memory is reserved.
    """

    slots: int
    cores: float
    taken: tuple[Taken, ...] = ()
    pools: tuple[Pool, ...] = ()
    soft_free_pct: float = 0.0
    programs_hold_bytes: float = 0.0


def admission(unit: Unit, node: NodeView, room: Room | None = None, mem_bytes: float = 0.0) -> tuple[Reason, ...]:
    """What keeps a waiting job from starting; empty: it may start.

    Args:
        unit: the job as a unit, without an attempt.
        room: what the node has and what is taken; None judges the rules alone.
        mem_bytes: what its stage declares.
    """
    why = [*reasons(unit, node), *_announced(unit, node)]
    why += [] if any(reason.code == "RUN_HOLD" for reason in why) else nothing_starts(unit, node.run)
    if not node.admits:
        why.append(Reason(node.admits_code, node.admits_why))
    if node.run is None and node.gpu_jobs == "certified" and not why and rules_beside(unit, node):
        idle = idle_code(node.governed) if node.governed is not None else None
        if idle is not None:
            why.append(Reason(idle.code, idle.why))
    if room is not None and not why:
        why += _no_room(unit, node, room, mem_bytes)
    return tuple(why)


def _announced(unit: Unit, node: NodeView) -> list[Reason]:
    """Phases that were announced and would pause or evict the job as soon as it had started."""
    return [
        Reason("PROTECTION_PHASE_SOON", f"phase {phase.index + 1} of rule {rule.id} is about to begin")
        for rule in node.rules
        for phase in rule.phases
        if phase.soon
        and not phase.on
        and any(scope is not None and in_scope(unit, scope, node.duty_device) for scope in (phase.scope, phase.evict))
    ]


def _no_room(unit: Unit, node: NodeView, room: Room, mem_bytes: float) -> list[Reason]:
    units = [taken.unit for taken in room.taken if not taken.held]
    capped = over_the_caps([*units, unit], caps_in_force(node)).get(unit.attempt)
    found = [capped] if capped is not None else []
    feeds_the_run = node.run is not None and unit.feed_of == node.run.run
    if len(units if feeds_the_run else room.taken) >= room.slots:
        found.append(Reason("JOB_NO_SLOT", f"all {room.slots} slots of the node are taken"))
    found += _no_cores(unit, units, node, room)
    found += _no_memory(node, room, mem_bytes)
    return found


def _no_cores(unit: Unit, units: Sequence[Unit], node: NodeView, room: Room) -> list[Reason]:
    """A job that declares more cores than the node has may have all of them."""
    reserve = reserve_in_force(node)
    free = room.cores - reserve.cores
    asked = min(unit.cores, room.cores)
    taken = sum(each.cores for each in units)
    if taken + asked <= free + 1e-9:
        return []
    aside = f", {reserve.cores:g} set aside by {reserve.by}" if reserve.cores else ""
    return [
        Reason(
            "PROTECTION_RESERVE" if taken + asked <= room.cores + 1e-9 else "JOB_NO_CORES",
            f"it declares {unit.cores:g} cores; of {room.cores:g} {taken:g} are taken{aside}",
        )
    ]


def memory_short(node: NodeView, room: Room) -> tuple[Reason, ...]:
    """What of memory is no longer there that was promised to running jobs, set aside for programs, or is to stay free.

    Empty: nothing, or it cannot be told.
    """
    return tuple(each for each in _no_memory(node, room, 0.0) if each.code != "MEMORY_UNKNOWN")


def _no_memory(node: NodeView, room: Room, mem_bytes: float) -> list[Reason]:
    reserve = reserve_in_force(node)
    aside = max(0.0, reserve.mem_bytes - room.programs_hold_bytes)
    owed = sum(taken.owed_bytes for taken in room.taken)
    for pool in room.pools:
        if pool.total_bytes is None or pool.available_bytes is None or pool.total_bytes <= 0:
            return [Reason("MEMORY_UNKNOWN", f"memory of {pool.name} cannot be read")]
        left = pool.available_bytes - owed - mem_bytes
        floor = room.soft_free_pct / 100.0 * pool.total_bytes
        if left >= max(floor, aside):
            continue
        reserved = aside > floor
        keeps = f"{aside / _GB:.1f} GB reserved by {reserve.by}" if reserved else f"{room.soft_free_pct:g} % kept free"
        declares = f"it declares {mem_bytes / _GB:.2g} GB; " if mem_bytes else ""
        return [
            Reason(
                "PROTECTION_RESERVE" if reserved else "MEMORY_SHORT",
                f"{declares}{pool.name} has {pool.available_bytes / _GB:.1f} GB available, "
                f"{owed / _GB:.1f} GB of it promised to running jobs, and {keeps}",
            )
        ]
    return []
