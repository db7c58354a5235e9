"""What a harness run is asked to do, and the numbers that follow from it.

Source: ``harness.md`` (a run) and ``harness-statistics.md`` section 1 (looks, N_max).
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from policies.refusal import Refused

__all__ = ["FIRST_LOOK", "LOOK_STEP", "N_MAX_LIMIT", "Kind", "Off", "RunSpec"]

FIRST_LOOK = 8
LOOK_STEP = 4
N_MAX_LIMIT = 200
MIN_WINDOW_S = 5.0
# Beyond these nobody measures; products of what is below them are numbers.
MAX_STRETCH_S = 7 * 86400.0
MAX_HOURS = 366 * 24.0
REFERENCE_S = 60.0

Off = Literal["paused", "evicted"]
Kind = Literal["ab", "null", "self"]


class RunSpec(BaseModel):
    """Parameters of one run. Windows and washouts in seconds, duty and margin as fractions, hours as hours."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: str
    rule: str
    work: str = "gpu"
    duty: float | None = None
    blocks: int = 12
    window_s: float = 300.0
    washout_s: float = 60.0
    margin: float = 0.02
    off: Off = "paused"
    max_hours: float = 8.0
    first_look: int = FIRST_LOOK
    feed: str | None = None
    kind: Kind = "ab"
    accept_timed_source: bool = False
    seed: int = Field(default=0, ge=0)

    @property
    def block_s(self) -> float:
        """Nominal length of a block: two washouts and two windows."""
        return 2.0 * (self.window_s + self.washout_s)

    @property
    def n_max(self) -> int:
        """Whole blocks in max_hours, rounded down to a multiple of four, at most 200 (statistics, rule 4)."""
        whole = math.floor(self.max_hours * 3600.0 / self.block_s + 1e-9)
        return min(whole // LOOK_STEP * LOOK_STEP, N_MAX_LIMIT)

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of counted blocks at which a verdict may be computed, and no others."""
        return tuple(range(self.first_look, self.n_max + 1, LOOK_STEP))

    @property
    def reference_s(self) -> float:
        """Length of the reference stretch before the blocks; shorter only where the windows are very short."""
        return min(REFERENCE_S, max(10.0, 1.25 * self.window_s))

    @property
    def demonstration(self) -> bool:
        """Windows under a minute, or an accepted timed source: at most a demonstration certificate."""
        return self.window_s < 60.0 or self.accept_timed_source

    def checked(self) -> RunSpec:
        """This spec, or ``Refused`` naming the parameter, what is wrong with it and what would work."""

        def no(option: str, value: object, why: str, remedy: str) -> Refused:
            return Refused("RUN_BAD_PARAMETER", f"{option} {value}", why, remedy)

        numbers = {
            "--window": self.window_s,
            "--washout": self.washout_s,
            "--margin": self.margin,
            "--max-hours": self.max_hours,
            "--duty": self.duty if self.duty is not None else 0.5,
        }
        for option, value in numbers.items():
            if not math.isfinite(value):
                raise no(option, value, "is not a number", f"give {option} a finite number")
        if self.window_s < MIN_WINDOW_S:
            raise no("--window", self.window_s, f"a window is at least {MIN_WINDOW_S:g} s", "try --window 300")
        if self.washout_s < 0:
            raise no("--washout", self.washout_s, "a washout cannot be negative", "try --washout 60")
        for option, value in (("--window", self.window_s), ("--washout", self.washout_s)):
            if value > MAX_STRETCH_S:
                raise no(option, value, "it is longer than a week", f"give seconds, at most {MAX_STRETCH_S:g}")
        if self.max_hours > MAX_HOURS:
            raise no("--max-hours", self.max_hours, "the run is longer than a year", f"give at most {MAX_HOURS:g}")
        if not 0.0 < self.margin < 1.0:
            raise no("--margin", self.margin, "the margin is a fraction between 0 and 1", "try --margin 0.02 for 2 %")
        if self.duty is not None and not 0.0 < self.duty <= 1.0:
            raise no("--duty", self.duty, "a duty is above 0 and at most 1", "try --duty 0.3")
        if not 1 <= self.blocks <= N_MAX_LIMIT:
            raise no("--blocks", self.blocks, f"a run needs blocks, {N_MAX_LIMIT} at most", "try --blocks 12")
        if not FIRST_LOOK <= self.first_look <= N_MAX_LIMIT or self.first_look % LOOK_STEP:
            raise no(
                "--first-look",
                self.first_look,
                f"looks come at {FIRST_LOOK}, 12, 16, … blocks",
                f"give a multiple of 4, {FIRST_LOOK} to {N_MAX_LIMIT}",
            )
        if self.max_hours <= 0:
            raise no("--max-hours", self.max_hours, "the run needs time", "try --max-hours 8")
        if self.n_max < self.first_look:
            need_h = self.first_look * self.block_s / 3600.0
            raise no(
                "--max-hours",
                self.max_hours,
                f"{self.n_max if self.n_max > 0 else 'no'} whole blocks of {self.block_s:g} s fit (looks come in fours), "
                f"and the first look needs {self.first_look}",
                f"give --max-hours {math.ceil(need_h * 1000) / 1000:g} or more, or shorter windows (--window, --washout)",
            )
        return self
