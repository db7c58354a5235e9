"""What goes into the governor and what comes out: frozen values, no behaviour beyond checking themselves.

Times are seconds of one clock that also runs through suspend (``nodes.clock.boottime_s``): then a suspend shows as a
late tick. Rates are the program's own progress per second. ``None`` means unknown, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from policies.codes import Entry
from policies.section.models import GpuJobs

__all__ = [
    "INITIAL",
    "STATES",
    "Baseline",
    "Entry",
    "GovernorState",
    "Holding",
    "Inputs",
    "Outputs",
    "StateName",
]

StateName = Literal["free", "closed", "baseline", "running", "taken_back", "unreadable", "stood_down"]
STATES: Final[tuple[StateName, ...]] = (
    "free",
    "closed",
    "baseline",
    "running",
    "taken_back",
    "unreadable",
    "stood_down",
)


def _check_share(name: str, value: float | None) -> None:
    if value is not None and not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be a share in 0..1, not {value!r}")


def _check_rate(name: str, value: float | None) -> None:
    if value is not None and not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite rate of at least 0, or None where it is unknown, not {value!r}")


@dataclass(frozen=True, slots=True)
class Holding:
    """One rule that holds device work back now, as read on this tick.

    Args:
        rule: the rule's id, told apart by scope where the node's and the fleet's section have the same.
        certified_duty: the duty that its valid certificate covers; None without one.
        readable: whether its progress source reads.
        short_rate: rate over the last ``numbers.short_window_s(median_step_s)``.
        minute_rate: rate over the last 60 s.
        baseline_rate: rate over the last ``numbers.baseline_window_s(median_step_s)``.
        median_step_s: the program's median step; None while too few steps are known.
        max_slowdown: the rule's target for harm.
        certified_off_rate: the OFF rate of the certificate's run.
    """

    rule: str
    certified_duty: float | None
    readable: bool
    short_rate: float | None
    minute_rate: float | None
    baseline_rate: float | None
    median_step_s: float | None
    max_slowdown: float = 0.05
    certified_off_rate: float | None = None

    def __post_init__(self) -> None:
        _check_share("certified_duty", self.certified_duty)
        _check_rate("short_rate", self.short_rate)
        _check_rate("minute_rate", self.minute_rate)
        _check_rate("baseline_rate", self.baseline_rate)
        _check_rate("median_step_s", self.median_step_s)
        _check_rate("certified_off_rate", self.certified_off_rate)
        if not 0.0 < self.max_slowdown <= 1.0:
            raise ValueError(f"max_slowdown must be in (0, 1], not {self.max_slowdown!r}")


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that one tick decides on.

    Args:
        holding: the rules that hold device work back.
        units: ids of the cooperative units that are to have a share (held ones keep theirs, so that the others'
            duty does not jump; those that are not trusted have none). How busy they are is the compliance check's.
        memory_hard: the memory guard is at its hard floor.
        gpu_jobs: the section's choice. ``always`` frees, ``certified`` governs, the other two close.
        run_measures: a harness run measures device work.
        run_duty: what that run gives device work now: 0 in OFF, its duty in ON, None for no limit.
    """

    holding: tuple[Holding, ...] = ()
    units: tuple[str, ...] = ()
    memory_hard: bool = False
    gpu_jobs: GpuJobs = "certified"
    run_measures: bool = False
    run_duty: float | None = None

    def __post_init__(self) -> None:
        _check_share("run_duty", self.run_duty)
        if len(self.holding) > 1 and len({rule.rule for rule in self.holding}) < len(self.holding):
            raise ValueError(f"rules must differ in name: {[rule.rule for rule in self.holding]}")


@dataclass(frozen=True, slots=True)
class Baseline:
    """A rule's rate without device work.

    ``rate`` is what harm is measured against (never under 0.95 of the one before); ``measured`` is what was read;
    ``low``: it lies over 10 % under the certificate's OFF rate, or that rate is unknown.
    """

    rule: str
    rate: float
    measured: float
    at_s: float
    low: bool


@dataclass(frozen=True, slots=True)
class GovernorState:
    """All that the governor remembers from one tick to the next.

    Args:
        name: the state.
        since_s: since when it is in it.
        budget: device duty of the node now; None: none is set.
        resume: the level at which it starts after the next baseline; None: at the ceiling.
        barred_until_s: no budget before this (five minutes after a take-back or the memory guard's hard floor),
            whatever states lie between.
        stretch_s: start of what is being judged: the minute in ``running``, this measurement in ``baseline``.
        ticks: ticks that came in time in that stretch.
        last_tick_s: when the last tick came.
        ended_s: when device work last could run.
        harm_s: when a tick last showed harm of half the target or more, or harm last made the budget fall. No growth
            within a minute of it: of a clean minute every tick is clean, not only the mean.
        baselines: newest baseline by rule, also of rules that hold nothing now.
        pressures: pressure of the last whole minute by rule.
        again: why the baseline is being measured again, "" at the first try.
    """

    name: StateName = "free"
    since_s: float = -math.inf
    budget: float | None = None
    resume: float | None = None
    barred_until_s: float = -math.inf
    stretch_s: float = -math.inf
    ticks: int = 0
    last_tick_s: float = -math.inf
    ended_s: float = -math.inf
    harm_s: float = -math.inf
    baselines: tuple[Baseline, ...] = ()
    pressures: tuple[tuple[str, float | None], ...] = ()
    again: str = ""

    def at_tick(self, last_tick_s: float, ticks: int, barred_until_s: float) -> GovernorState:
        """This state with its tick counted. Spelled out: it runs each tick, and ``dataclasses.replace`` is slow."""
        return GovernorState(
            name=self.name,
            since_s=self.since_s,
            budget=self.budget,
            resume=self.resume,
            barred_until_s=barred_until_s,
            stretch_s=self.stretch_s,
            ticks=ticks,
            last_tick_s=last_tick_s,
            ended_s=self.ended_s,
            harm_s=self.harm_s,
            baselines=self.baselines,
            pressures=self.pressures,
            again=self.again,
        )

    def baseline_of(self, rule: str) -> Baseline | None:
        for baseline in self.baselines:
            if baseline.rule == rule:
                return baseline
        return None


INITIAL: Final = GovernorState()


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the agent carries out.

    Args:
        budget: the node's device duty; None: no duty is set, no unit is throttled.
        shares: each unit's ``gpu_duty``. They sum to the budget where there are units. Empty while no duty is set and
            while a run decides (its own shares are in force then).
        entries: what goes into the timeline, in order.
        ceiling: the highest the budget may reach; None without one.
        decides: who decides what device work may do: nobody (free), the governor, or the harness run.
    """

    budget: float | None
    shares: Mapping[str, float] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    ceiling: float | None = None
    decides: Literal["nobody", "governor", "run"] = "governor"
