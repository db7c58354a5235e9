"""Rows of a session helper's report, checked. Imported only by an agent that serves one: the models cost memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nodes.sources.helper_desk import Key
from policies.sources.meaning import PhaseState

__all__ = ["Row", "rows_of"]

MAX_POINTS = 5000


class Row(BaseModel):
    """One source in a report. No field can hold what a line says.

    Attributes:
        points: (monotonic seconds, events since the point before) that came since the last report; -1 events: what
            happened since the point before cannot be known.
        mtime_s: the file's modification time; line_s: the newest line's own stamp, where it told of the phase.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    rule: str = Field(max_length=200)
    role: Literal["progress", "phase"]
    index: int = Field(ge=0, le=10_000)
    readable: bool
    why: str = Field(default="", max_length=500)
    state: PhaseState = "on"
    counts: Literal["events", "counter"] = "events"
    points: list[tuple[float, float]] = Field(default_factory=list, max_length=MAX_POINTS)
    mtime_s: float | None = None
    line_s: float | None = None

    @property
    def key(self) -> Key:
        return self.rule, self.role, self.index


def rows_of(raw: Sequence[Any]) -> list[Row]:
    """Checked rows. Raises ``pydantic.ValidationError``."""
    return [Row.model_validate(each) for each in raw]
