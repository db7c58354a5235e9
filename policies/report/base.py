"""What every sentence of a report may draw on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from policies.harness.rows import BlockRow
from policies.harness.spec import RunSpec
from policies.harness.verdict import Decision
from policies.report.document import Check, NullTest, Result

__all__ = ["Base", "Judgement"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What statistics said of the counted blocks; ``tasks.reports.judge`` puts it together.

    ``more`` and ``refusal``: words of ``policies.harness.plan_text``; ``rare_harm``: the share of ON windows in which harm may
    be unseen; ``null_test``: of an A/A run.
    """

    decision: Decision
    checks: tuple[Check, ...] = ()
    more: str = ""
    refusal: str | None = None
    rare_harm: float | None = None
    null_test: NullTest | None = None


@dataclass(frozen=True, slots=True)
class Base:
    """A run's record with its typed parts. ``counted`` are the rows that the decision rests on."""

    spec: RunSpec
    record: Mapping[str, Any]
    result: Result
    judgement: Judgement
    ending: str | None
    rows: tuple[BlockRow, ...]
    counted: tuple[BlockRow, ...]

    @property
    def decision(self) -> Decision:
        return self.judgement.decision

    @property
    def collapsed(self) -> BlockRow | None:
        return next((row for row in self.rows if row.collapse), None)

    @property
    def margin(self) -> str:
        return f"{self.spec.margin * 100:g} %"
