"""The run that has the node's run lock at this moment, and for whom the node is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from nodes.agent.left import Left
from nodes.clock import monotonic_s
from nodes.identity import ProcessId
from policies.harness.spec import RunSpec
from policies.views import RunView
from policies.work import WorkSelector

__all__ = ["ActiveRun", "Now", "Reservation"]


@dataclass(slots=True)
class Now:
    """Where a run is at this moment, for ``ab status``. ``until_s`` is monotonic, None where the end is not known."""

    block: int | None = None
    arm: str | None = None
    part: Literal["idle", "reference", "waiting", "washout", "window", "closing"] = "idle"
    until_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        left = None if self.until_s is None else max(0.0, self.until_s - monotonic_s())
        return {"block": self.block, "arm": self.arm, "part": self.part, "left_s": left}


@dataclass(slots=True)
class ActiveRun:
    """The run that has the lock. ``part`` is what the work under test may do; ``ending`` is set to stop what is going on.
    ``left``: the program as the last block left it, and the arm that a death since then speaks against; None: no arm any more.
    ``in_arms``: a block has begun its arms, and looks at the program itself.
    ``stays_held``, ``stays_lowered``: as in ``RunView``.
    ``feed_from``: the newest job of its feed when this ON began; ``feed_why``: why nothing feeds it now, for good in this ON
    where ``feed_failed``. ``asked_s``: when its process asked for something last, or was answered (monotonic).
    """

    run: str
    spec: RunSpec
    holder: ProcessId
    part: Literal["hold", "grant"] = "hold"
    ending: str | None = None
    resting: bool = False
    now: Now = field(default_factory=Now)
    measuring: int | None = None
    left: Left | None = None
    in_arms: bool = False
    stays_held: frozenset[str] = frozenset()
    stays_lowered: frozenset[str] = frozenset()
    feed_from: int = 0
    feed_why: str | None = None
    feed_failed: bool = False
    asked_s: float = field(default_factory=lambda: monotonic_s())

    def asks(self) -> None:
        self.asked_s = monotonic_s()

    def idle_s(self) -> float:
        """Since when nothing is being done for its process; 0 while something is."""
        return 0.0 if self.measuring is not None or self.now.part != "idle" else monotonic_s() - self.asked_s

    def view(self) -> RunView:
        return RunView(
            self.run,
            self.spec.rule,
            WorkSelector(self.spec.work),
            self.part,
            self.spec.off,
            self.spec.duty,
            self.spec.feed,
            tests_work=self.spec.kind == "ab",
            stays_held=self.stays_held,
            stays_lowered=self.stays_lowered,
        )


@dataclass(slots=True)
class Reservation:
    """A sweep has the node from its first level to its last: between two of them nobody else begins to measure.
    ``used_s``: when it last measured, or asked for the node (monotonic).
    """

    sweep: str
    holder: ProcessId
    used_s: float = field(default_factory=lambda: monotonic_s())

    def use(self) -> None:
        self.used_s = monotonic_s()

    def idle_s(self) -> float:
        return monotonic_s() - self.used_s
