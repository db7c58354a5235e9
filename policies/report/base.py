"""What every sentence of a report may draw on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from policies.harness.rows import BlockRow
from policies.harness.spec import RunSpec
from policies.harness.verdict import Decision
from policies.report.document import Result

__all__ = ["Base"]


@dataclass(frozen=True, slots=True)
class Base:
    """A run's record with its typed parts. ``counted`` are the rows that the decision rests on."""

    spec: RunSpec
    record: Mapping[str, Any]
    result: Result
    decision: Decision
    ending: str | None
    rows: tuple[BlockRow, ...]
    counted: tuple[BlockRow, ...]

    @property
    def collapsed(self) -> BlockRow | None:
        return next((row for row in self.rows if row.collapse), None)

    @property
    def margin(self) -> str:
        return f"{self.spec.margin * 100:g} %"
