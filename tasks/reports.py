"""The report of a harness run in all its forms: text, page, markdown, table, picture, JSON, CSV.

``build(record)`` judges the counted blocks anew from the raw windows and puts the report together; the forms are made
when they are asked for (drawing imports matplotlib). All of them read one document, so their numbers are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from policies.harness.honesty import AaJudgement, check_run, judge_null, rare_harm_share
from policies.harness.plan_text import more_words, refusal_words
from policies.harness.schedule import run_looks
from policies.harness.validity import decide_blocks
from policies.report import Judgement, Report, as_dict, read_record, render, windows_csv
from policies.report.build import build as document_of
from policies.report.document import Check, NullTest
from policies.report.evidence import measured
from policies.statistics import decide
from tasks.markdown import block_rows, markdown

__all__ = ["Rendered", "build", "compare_html", "judge"]


def judge(record: Mapping[str, Any]) -> Judgement:
    """The decision over all counted blocks of a RunRecord, at the looks of its run, with checks and words.

    Raises:
        Refused: the record cannot be read.
    """
    spec, rows = read_record(record)
    blocks, looks = decide_blocks(rows), run_looks(spec)
    decision = decide(blocks, spec.margin, looks[-1], looks[0])
    source = f"honesty check over {len(blocks)} counted blocks"
    checks = tuple(
        Check(c.name, c.outcome, c.alarm, measured(c.value, source, otherwise=c.outcome), c.sees)
        for c in check_run(blocks, spec.margin)
    )
    return Judgement(
        decision=decision,
        checks=checks,
        more=more_words(decision),
        refusal=refusal_words(decision, spec) if decision.refusal is not None else None,
        rare_harm=rare_harm_share(len(blocks)) if blocks else None,
        # its interval holds for the planned number of blocks only: a run that was cut short has none
        null_test=_null_test(judge_null(blocks, spec.margin)) if spec.kind == "null" and decision.looks else None,
    )


def _null_test(found: AaJudgement) -> NullTest:
    source = f"plain t over {found.n} blocks, a number fixed before the run"
    R, lo, hi, half, sees = (
        measured(v, source, otherwise=found.words)
        for v in (found.R, found.lo99, found.hi99, found.half_width, found.sees_margin)
    )
    return NullTest(found.words, found.passed, found.holds_1, R, lo, hi, half, sees)


class Rendered:
    """One report; each form is made on first use and kept."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record
        self.report: Report = document_of(record, judge(record))

    @cached_property
    def text(self) -> str:
        """80 columns for a terminal, without colour."""
        return render(self.report)

    @cached_property
    def html(self) -> str:
        """One page that needs nothing from outside; the raw windows are inside it as a download."""
        from tasks.html import page

        return page(self.report, self.csv)

    @cached_property
    def markdown(self) -> str:
        """For a Prefect markdown artifact; under 100 kB."""
        return markdown(self.report)

    @cached_property
    def table(self) -> list[dict[str, str]]:
        """A row a block, for a Prefect table artifact."""
        return block_rows(self.report)

    @cached_property
    def png_data_uri(self) -> str:
        """Verdict, interval and blocks in one picture, for a Prefect image artifact."""
        from tasks.pictures import png_data_uri

        return png_data_uri(self.report)

    @cached_property
    def json(self) -> dict[str, Any]:
        """The document as plain JSON values; figures carry their evidence."""
        return json.loads(json.dumps(as_dict(self.report), allow_nan=False))  # type: ignore[no-any-return]

    @cached_property
    def csv(self) -> str:
        """The raw windows, left-out ones too."""
        return windows_csv.write(read_record(self.record)[1])


def build(record: Mapping[str, Any]) -> Rendered:
    """The report of a RunRecord (docs/architecture.md), of an open run too.

    Raises:
        Refused: the record cannot be read; names what is wrong with it.
    """
    return Rendered(record)


def compare_html(records: Sequence[Mapping[str, Any]], labels: Sequence[str] | None = None) -> str:
    """Several runs on one page, side by side and then each in full.

    Args:
        records: RunRecords, at least one.
        labels: a short name for each ("capped", "uncapped"); its duty and run where None.

    Raises:
        Refused: a record cannot be read.
        ValueError: no record, another number of labels, or runs with different margins.
    """
    from tasks.html import compare_page

    reports = [build(record) for record in records]
    if not reports:
        raise ValueError("nothing to compare: give at least one record")
    names = list(labels) if labels is not None else [_label(r.report) for r in reports]
    if len(names) != len(reports):
        raise ValueError(f"{len(reports)} records but {len(names)} labels")
    if len({r.report.result.margin for r in reports}) > 1:
        raise ValueError("the runs have different margins, so one picture cannot show them against it")
    return compare_page([r.report for r in reports], names, [r.csv for r in reports])


def _label(report: Report) -> str:
    duty = report.spec.get("duty")
    return f"{report.work}, " + (f"duty {duty:g}" if duty is not None else "no duty")
