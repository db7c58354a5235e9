"""The node at one instant, as judgements see it: units of fleet work, rules with their phases, the run that measures, and why
something is held. Frozen values; what follows from them stands in ``policies.units`` and ``policies.admission``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policies.caps import NO_CAPS, NO_RESERVE, Caps, Reserve
from policies.governed import Governed
from policies.reaction import Level
from policies.section.models import DutyDevice, GpuJobs, Mode, Scope
from policies.work import WorkSelector

__all__ = ["Action", "Desired", "NodeView", "PhaseView", "Reason", "RuleView", "RunView", "Unit"]

Action = Literal["run", "pause", "evict"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A running attempt or, for admission, a waiting job (``attempt`` is then empty)."""

    attempt: str
    job: int
    module: str
    stage: str
    device: bool
    cooperative: bool = True
    feed_of: str | None = None
    cores: float = 1.0
    """What its stage declares."""
    gpu: bool = False
    """Whether it uses a GPU (with the CPU as duty device all work is device work, and some of it uses no GPU)."""
    digest: str | None = None
    """Of the bundle it runs from; None: unknown, which no certificate covers."""
    model: str | None = None
    """That its payload names; None: it names none."""
    model_file: str | None = None
    """What identifies that model's file now; None: there is none that the agent could find."""
    devices: frozenset[str] | None = None
    """The devices it was put on; None: it may use any."""


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A ``during`` block. ``on`` is already true for a phase that cannot be read. ``scope``: of its ``pause_fleet``.

    ``soon``: it was announced. What it would pause runs on, and nothing new of that is admitted.
    """

    index: int
    on: bool
    scope: Scope | None
    readable: bool = True
    evict: Scope | None = None
    lower: Scope | None = None
    cap: Caps = NO_CAPS
    reserve: Reserve = NO_RESERVE
    soon: bool = False


@dataclass(frozen=True, slots=True)
class RuleView:
    """A rule at this instant. ``uses_device`` None is unknown and counts as using it.

    ``reaction`` is what its limits on progress and on the device's share let other fleet work do; None while it was not
    judged, which holds that work. ``stall`` is the same of its limits on ``cpu_stall``, which bind more work (``_stall_binds``).
    ``measures``: all fleet work is held, so that the program is measured without it.
    """

    id: str
    active: bool
    holding: bool
    uses_device: bool | None = None
    protects_progress: bool = False
    pause: Scope | None = None
    evict: Scope | None = None
    phases: tuple[PhaseView, ...] = ()
    protects_share: bool = False
    protects_stall: bool = False
    reaction: Level | None = None
    reaction_why: str = ""
    reaction_code: str = "PROTECTION_BASELINE"
    stall: Level | None = None
    stall_why: str = ""
    stall_code: str = "PROTECTION_BASELINE"
    measures: bool = False
    lower: Scope | None = None
    cap: Caps = NO_CAPS
    reserve: Reserve = NO_RESERVE
    devices: frozenset[str] | None = None
    """The devices its program uses, or may use; None: it may be any."""
    device_doubt: str = ""
    """Why it cannot be told whether it uses one, in words."""

    @property
    def protects(self) -> bool:
        return self.protects_progress or self.protects_share or self.protects_stall

    @property
    def level(self) -> Level:
        """What other fleet work may do beside it. A rule that protects and was not judged holds it while the rule holds."""
        return self._judged(self.reaction) if self.protects_progress or self.protects_share else "free"

    @property
    def stall_level(self) -> Level:
        """The same, of its limits on ``cpu_stall`` alone."""
        return self._judged(self.stall) if self.protects_stall else "free"

    def _judged(self, found: Level | None) -> Level:
        if found is None:
            return "paused" if self.holding else "free"
        return found


@dataclass(frozen=True, slots=True)
class RunView:
    """The harness run that has the node's lock. ``hold``: OFF, and between blocks; ``grant``: ON."""

    run: str
    rule: str
    work: WorkSelector
    part: Literal["hold", "grant"]
    off: Literal["paused", "evicted"] = "paused"
    duty: float | None = None
    feed: str | None = None
    tests_work: bool = True
    stays_held: frozenset[str] = frozenset()
    """Attempts of other work that something held which the work under test can bring about: they wait in both arms from then on."""
    stays_lowered: frozenset[str] = frozenset()

    def tests(self, unit: Unit) -> bool:
        """Whether this unit is the work under test. With a feed the feed's units are, and nothing else of that name."""
        if not self.tests_work:
            return False
        if self.feed is not None or unit.feed_of is not None:
            return unit.feed_of == self.run
        return self.work.selects(unit.module, unit.stage, device=unit.device)


@dataclass(frozen=True, slots=True)
class NodeView:
    mode: Mode = "moderate"
    pause: bool = False
    unknown: tuple[Reason, ...] = ()
    """Why all fleet work is held for a protection section of which nobody knows what it said."""
    gpu_jobs: GpuJobs = "when_no_gpu_protected"
    duty_device: DutyDevice = "gpu"
    rules: tuple[RuleView, ...] = ()
    run: RunView | None = None
    admits: bool = True
    """False while nothing may start: the agent has not judged every rule yet or does not see them, or memory is short or unknown."""
    admits_why: str = ""
    admits_code: str = "MEMORY_SOFT"
    fresh: bool = True
    """False where this is of a look too old to let anything go that is held."""
    governed: Governed | None = None
    """What governor and compliance check say under ``certified``; None: they were not asked yet, so nothing is certified."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a unit is held. ``run`` marks the holds of a harness run, which the ten-minute limit does not count."""

    code: str
    why: str
    remedy: str = ""
    action: Literal["pause", "evict"] = "pause"
    run: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    attempt: str
    action: Action
    reasons: tuple[Reason, ...]
    duty: float | None = None
    lowered: bool = False
    """In the lowest scheduling class, held or not."""
    threads: int | None = None

    @property
    def unlimited(self) -> bool:
        return bool(self.reasons) and all(reason.run for reason in self.reasons)
