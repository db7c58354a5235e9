"""The report of a run as data: each figure once. Text, page, markdown, tables, pictures and JSON all read this.

``harness.md`` (The report) gives the order of the parts. Nothing here computes; ``policies.report.build`` does.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from policies.report.evidence import Figure

__all__ = [
    "SCHEMA",
    "Arm",
    "Attempt",
    "Block",
    "Certificate",
    "Check",
    "Dose",
    "Fact",
    "LeftOut",
    "Look",
    "NullTest",
    "Report",
    "Result",
    "Tone",
    "UnitLine",
    "as_dict",
]

SCHEMA = 1
# good: no slowdown shown. harm: the work is suspected or shown to do harm. open: nothing was decided.
Tone = Literal["good", "harm", "open"]


@dataclass(frozen=True, slots=True)
class Look:
    """What was known at one look. Only looks carry an estimate; between them nothing is computed (rule 4)."""

    n: int
    verdict: str
    R: Figure
    lo: Figure
    hi: Figure


@dataclass(frozen=True, slots=True)
class Result:
    """The estimate at the look that stands. ``places`` is the number of decimals at which all of it is printed."""

    verdict: str
    margin: float
    n: int
    counted: int
    n_max: int
    R: Figure
    lo: Figure
    hi: Figure
    interval_label: str
    places: int
    noise_sd: Figure
    standard_error: Figure
    order_effect: Figure
    looks: tuple[Look, ...]

    @property
    def bound(self) -> float:
        """The slowest R that is still within the margin."""
        return 1.0 - self.margin


@dataclass(frozen=True, slots=True)
class Arm:
    """One window of a block. ``position`` 1 ran first."""

    position: int
    started_at: str
    length_s: float
    rate: Figure
    events: Figure
    work_ran_s: Figure
    dose: Figure


@dataclass(frozen=True, slots=True)
class Block:
    """One block; ``on`` or ``off`` is None where the block ended before that window. ``why`` is None when counted."""

    number: int
    order: str
    state: str
    reason: str | None
    why: str | None
    on: Arm | None
    off: Arm | None
    ratio: Figure

    @property
    def counted(self) -> bool:
        return self.state == "counted"


@dataclass(frozen=True, slots=True)
class UnitLine:
    """One kind of unit that ran in counted ON windows. ``share`` is the mean over its readings, one a window."""

    name: str
    attempts: tuple[str, ...]
    asked: Figure
    share: Figure
    readings: int


@dataclass(frozen=True, slots=True)
class Dose:
    """What the work really held of the device in the counted ON windows."""

    applies: bool
    asked: float | None
    metered: Figure
    lowest: Figure
    ran_share: Figure
    off_metered: Figure
    units: tuple[UnitLine, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One block that does not count, and why; ``against`` marks a reason that speaks against the work."""

    number: int
    why: str
    arm: str | None
    detail: str | None
    against: bool
    at: str | None


@dataclass(frozen=True, slots=True)
class Check:
    """One honesty check: what it found, and what it can and cannot see. Never part of the verdict."""

    name: str
    outcome: str
    alarm: bool
    figure: Figure
    sees: str


@dataclass(frozen=True, slots=True)
class NullTest:
    """What an A/A run shows of the method itself. ``passed``: its interval holds 1 and is narrow enough to mean something."""

    says: str
    passed: bool
    holds_1: bool | None
    R: Figure
    lo99: Figure
    hi99: Figure
    half_width: Figure
    sees_margin: Figure


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of this run, or why there is none."""

    state: Literal["kept", "demonstration", "none"]
    says: str
    remedy: str | None
    identifier: str | None
    duty: Figure
    issued_at: str | None
    expires_at: str | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An earlier run of the same thing."""

    run: str
    ending: str
    ended_at: str | None
    duty: float | None
    R: Figure


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of where the run happened: a label and a value in words; None where it was not recorded."""

    label: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a report says. ``spec`` holds the run's parameters as they were asked for."""

    schema: int
    run: str
    kind: str
    node: str
    rule: str
    work: str
    state: str
    ending: str | None
    tone: Tone
    title: str
    sentence: str
    reason: str | None
    warnings: tuple[str, ...]
    started_at: str | None
    ended_at: str | None
    rate_unit: str
    spec: dict[str, Any]
    result: Result
    blocks: tuple[Block, ...]
    dose: Dose
    left_out: tuple[LeftOut, ...]
    left_out_share: Figure
    checks: tuple[Check, ...]
    null_test: NullTest | None
    more_blocks: str
    more_low: Figure
    more_high: Figure
    certificate: Certificate
    not_covered: tuple[str, ...]
    rare_harm: Figure
    worst_on: Figure
    hours_tested: Figure
    facts: tuple[Fact, ...]
    attempts: tuple[Attempt, ...]

    @property
    def lead(self) -> str:
        """The sentence as it reads under the title."""
        rest = self.sentence.removeprefix(self.title + ": ")
        return rest[:1].upper() + rest[1:]

    @property
    def arms(self) -> tuple[str, str]:
        """What the two arms are called, ON first: in a null run both were OFF, in a self run OFF is the agent at rest."""
        return {"null": ("OFF B", "OFF A"), "self": ("agent", "at rest")}.get(self.kind, ("ON", "OFF"))


def as_dict(part: Any) -> Any:
    """Plain JSON values; each ``Figure`` becomes its evidence object.

    Written out instead of ``dataclasses.asdict`` so that tuples become lists and properties stay out.
    """
    if isinstance(part, Figure):
        return part.as_dict()
    if is_dataclass(part) and not isinstance(part, type):
        return {f.name: as_dict(getattr(part, f.name)) for f in fields(part)}
    if isinstance(part, dict):
        return {str(k): as_dict(v) for k, v in part.items()}
    if isinstance(part, (list, tuple)):
        return [as_dict(v) for v in part]
    return part
