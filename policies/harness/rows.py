"""What the agent measured: windows and blocks. The agent journals them, the store mirrors them, the report reads them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Arm", "BlockRow", "BlockState", "LeftOut", "Order", "UnitDose", "WindowRow"]

Arm = Literal["on", "off"]
Order = Literal["on_first", "off_first"]
BlockState = Literal["counted", "left_out", "cut"]
# Why a block is left out. The first group speaks against the work when it comes while the work runs
# (``policies.harness.validity``); "cut" is a block whose flow or agent went away in the middle.
LeftOut = Literal[
    "program_died",
    "memory_guard",
    "source_unreadable",
    "phase",
    "program_restarted",
    "suspend",
    "power_source",
    "owner_pause",
    "no_dose",
    "no_off_progress",
    "source_gap",
    "not_held",
    "cut",
]


class UnitDose(BaseModel):
    """One unit of the work under test in an ON window. ``share`` is None when the meter could not read it."""

    model_config = ConfigDict(frozen=True)

    attempt: str
    module: str
    stage: str
    digest: str | None = Field(default=None, description="bundle that the unit was started from")
    model: str | None = Field(default=None, description="model that its payload names; None: it names none")
    model_file: str | None = Field(default=None, description="what identifies that model's file; None: not known")
    share: float | None
    cores: float = Field(
        default=1.0, gt=0.0, description="of which it is a share: the cores its stage declares; 1 for a GPU"
    )
    asked: float | None = None
    unknown_reason: str | None = None
    by_device: dict[str, float] = Field(
        default_factory=dict, description='metered share by device; "cpu" where that is the duty device; none: off it'
    )


class WindowRow(BaseModel):
    """One counted stretch. Times are monotonic seconds of the node's boot unless they end in ``_at`` (aware UTC, ISO)."""

    model_config = ConfigDict(frozen=True)

    run: str
    block: int
    arm: Arm
    position: Literal[1, 2]
    started_at: str
    started_mono_s: float
    length_s: float
    events: float | None = Field(description="fractional events in the window; None: the source could not be read")
    rate: float | None = Field(description="events per second")
    longest_step_s: float | None = None
    steps: int | None = Field(default=None, description="how many steps ended in it; None: from before this was kept")
    work_ran_s: float = Field(default=0.0, description="seconds of the window in which the work under test ran")
    dose: float | None = Field(
        default=None, description="metered share over the window, summed over units; None: unknown"
    )
    dose_unknown_reason: str | None = None
    units: tuple[UnitDose, ...] = ()
    program_on: tuple[str, ...] = Field(
        default=(), description='devices that the program was seen to use in the window ("cpu": the CPU as duty device)'
    )


class BlockRow(BaseModel):
    """One block: an ON and an OFF window in the order of its coin.

    ``number`` counts every block that was started, left-out ones too, and is unique in a run.
    ``reason_arm`` says in which arm the reason came; the washout after a switch belongs to the arm switched to.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    number: int
    order: Order
    state: BlockState
    reason: LeftOut | None = None
    reason_arm: Arm | None = None
    reason_detail: str | None = None
    collapse: str | None = Field(default=None, description="why this block shows a collapse of the program, if it does")
    on: WindowRow | None = None
    off: WindowRow | None = None
    extra: dict[str, Any] = Field(default_factory=dict)
