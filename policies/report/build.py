"""From the record of a run and its decision to the report. Pure: rows in, document out; no verdict is computed here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from policies.harness import validity
from policies.harness.rows import BlockRow, WindowRow
from policies.harness.spec import RunSpec
from policies.harness.verdict import PASS, Decision
from policies.refusal import Refused
from policies.report import limits, provenance, verdict_words
from policies.report.base import Base, Judgement
from policies.report.certified import certificate
from policies.report.document import (
    SCHEMA,
    Arm,
    Block,
    LeftOut,
    Look,
    NullTest,
    Report,
    Result,
    Tone,
)
from policies.report.dose import dose_of
from policies.report.evidence import Figure, measured, places_for, unknown
from policies.report.words import arm_words, clean, reason_of, reason_words

__all__ = ["INTERVAL_LABEL", "build", "read_record"]

INTERVAL_LABEL = "90 % interval, valid at every look"
NULL_LABEL = "99 % interval, the number of blocks fixed before"
JOURNAL = "agent's journal"


def read_record(record: Mapping[str, Any]) -> tuple[RunSpec, tuple[BlockRow, ...]]:
    """The typed parts of a RunRecord.

    Raises:
        Refused: the record has no readable spec or blocks; names what is wrong.
    """
    try:
        spec = RunSpec.model_validate(record["spec"])
        rows = tuple(BlockRow.model_validate(row) for row in record.get("blocks") or ())
    except KeyError as error:
        raise _unreadable(record, f"it has no {error.args[0]!r}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _unreadable(record, f"{error.title} {where}: {first['msg']}") from None
    numbers = [row.number for row in rows]
    if len(set(numbers)) != len(numbers):
        raise _unreadable(record, "a block number comes twice")
    return spec, tuple(sorted(rows, key=lambda row: row.number))


def _unreadable(record: Mapping[str, Any], why: str) -> Refused:
    return Refused(
        "RUN_BAD_RECORD",
        f"run {clean(record.get('run')) or '?'}",
        f"its record cannot be read: {why}",
        "see the agent's own record: cotenant protection ab show RUN --json",
    )


def build(record: Mapping[str, Any], judgement: Judgement) -> Report:
    """The report of one run.

    Args:
        record: a RunRecord (docs/architecture.md); parts that are missing are reported as not recorded.
        judgement: of all its counted blocks, by ``tasks.reports.judge``.

    Raises:
        Refused: the record cannot be read.
    """
    spec, rows = read_record(record)
    decision = judgement.decision
    counted = validity.counted(rows)
    numbers = {row.number for row in counted}
    ended = _text(record.get("ended_at"))
    result = _result(spec, decision, len(counted), _end_of(counted[: decision.n]))
    if judgement.null_test is not None:
        result = _of_null(result, judgement.null_test)
    left_out = tuple(_left_out(row) for row in validity.left_out(rows))
    share = measured(validity.left_out_share(rows), JOURNAL) if rows else unknown("no block was measured", JOURNAL)
    dose = dose_of(spec, counted)
    ending = _text(record.get("ending"))
    worst = _worst_on(counted)
    tested = _hours_tested(counted)
    base = Base(spec, record, result, judgement, ending, rows, tuple(counted))
    certified = certificate(base)
    low, high = limits.more_figures(decision)
    return Report(
        schema=SCHEMA,
        run=clean(record.get("run")) or "?",
        kind=spec.kind,
        node=clean(record.get("node") or spec.node),
        rule=clean(spec.rule),
        work=clean(spec.work),
        state=clean(record.get("state")) or "open",
        ending=ending,
        tone=_tone(base),
        title=verdict_words.title(base),
        sentence=verdict_words.sentence(base),
        reason=verdict_words.reason(base),
        warnings=verdict_words.warnings(base),
        started_at=_text(record.get("started_at")),
        ended_at=ended,
        rate_unit=provenance.rate_unit(record),
        spec=spec.model_dump(mode="json"),
        result=result,
        blocks=tuple(_block(row, row.number in numbers) for row in rows),
        dose=dose,
        left_out=left_out,
        left_out_share=share,
        checks=judgement.checks,
        null_test=judgement.null_test,
        more_blocks=verdict_words.more(base),
        more_low=low,
        more_high=high,
        certificate=certified,
        not_covered=limits.not_covered(base, worst, tested, certified),
        rare_harm=limits.rare_harm(base),
        worst_on=worst,
        hours_tested=tested,
        facts=provenance.facts(record, spec),
        attempts=provenance.attempts(record),
    )


# --- parts --------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str | None:
    return clean(value) if value is not None else None


def _tone(base: Base) -> Tone:
    if base.judgement.null_test is not None and base.ending in verdict_words.JUDGED:
        null = base.judgement.null_test
        return "good" if null.passed else "harm" if null.holds_1 is False else "open"
    if base.ending in ("slowdown", "harm_suspected"):
        return "harm"
    return "good" if base.ending == PASS else "open"


def _result(spec: RunSpec, decision: Decision, counted: int, at: str | None) -> Result:
    source = f"least squares with the order effect taken out, over {decision.n} counted blocks"
    if decision.collapse:
        why = "the program made no progress in an ON window, so there is no ratio to estimate"
    elif decision.looks:
        why = "all blocks so far ran in one order, which no fit can judge"
    else:
        why = f"the first look comes at {spec.first_look} counted blocks, and {counted} were counted"

    def figure(value: float | None, at: str | None = at, source: str = source) -> Figure:
        return measured(value, source, at, otherwise=why)

    looks = tuple(
        Look(look.n, look.verdict, *(figure(v, None, f"look at {look.n} blocks") for v in (look.R, look.lo, look.hi)))
        for look in decision.looks
    )
    bound = 1.0 - spec.margin
    compared = [(decision.lo, bound), (decision.R, bound), (decision.hi, 1.0)]
    for look in decision.looks:
        compared += [(look.lo, bound), (look.R, bound), (look.hi, 1.0)]
    return Result(
        verdict=decision.verdict,
        margin=spec.margin,
        n=decision.n,
        counted=counted,
        n_max=spec.n_max,
        R=figure(decision.R),
        lo=figure(decision.lo),
        hi=figure(decision.hi),
        interval_label=INTERVAL_LABEL,
        places=places_for([(v, limit) for v, limit in compared if v is None or math.isfinite(v)]),
        noise_sd=figure(decision.s),
        standard_error=figure(decision.se),
        order_effect=figure(decision.b),
        looks=looks,
    )


def _of_null(result: Result, null: NullTest) -> Result:
    """An A/A run is judged once, by the plain interval: that, and no other, is what its report shows."""
    compared = [(null.lo99.value, 1.0), (null.hi99.value, 1.0)]
    return replace(
        result, R=null.R, lo=null.lo99, hi=null.hi99, interval_label=NULL_LABEL, places=places_for(compared), looks=()
    )


def _block(row: BlockRow, counts: bool) -> Block:
    source = f"{JOURNAL}, block {row.number}"
    reason = reason_of(row)
    on, off = _arm(row.on), _arm(row.off)
    if on is None or off is None or not on.rate.known or not off.rate.known:
        ratio = unknown("the block has no two rates", source)
    elif not off.rate.value:
        ratio = unknown("no progress in OFF", source)
    else:
        ratio = measured((on.rate.value or 0.0) / off.rate.value, source, _end_of([row]))
    return Block(
        number=row.number,
        order=row.order,
        state=row.state if counts or row.state != "counted" else "left_out",
        reason=None if counts else reason,
        why=None if counts else reason_words(reason),
        on=on,
        off=off,
        ratio=ratio,
    )


def _arm(window: WindowRow | None) -> Arm | None:
    if window is None:
        return None
    at = _end_of_window(window)
    source = f"{JOURNAL}, block {window.block} {window.arm.upper()}"
    unread = "the source could not be read"
    return Arm(
        position=window.position,
        started_at=clean(window.started_at),
        length_s=window.length_s,
        rate=measured(window.rate, source, at, otherwise=unread),
        events=measured(window.events, source, at, otherwise=unread),
        work_ran_s=measured(window.work_ran_s, source, at),
        dose=measured(
            window.dose,
            "the agent's meter",
            at,
            otherwise=clean(window.dose_unknown_reason) or "no meter reading was recorded",
        ),
    )


def _left_out(row: BlockRow) -> LeftOut:
    first = min((w for w in (row.on, row.off) if w is not None), key=lambda w: w.position, default=None)
    detail = row.collapse or row.reason_detail
    return LeftOut(
        number=row.number,
        why=reason_words(reason_of(row)),
        arm=arm_words("on" if row.collapse else row.reason_arm),
        detail=clean(detail) or None,
        against=limits.speaks_against(row),
        at=clean(first.started_at) if first else None,
    )


def _worst_on(counted: Sequence[BlockRow]) -> Figure:
    pairs = [(on / off, row) for row in counted for _, on, off in validity.decide_blocks([row])]
    if not pairs:
        return unknown("no counted block has two rates", JOURNAL)
    ratio, row = min(pairs, key=lambda pair: pair[0])
    return measured(ratio, f"{JOURNAL}, block {row.number}", _end_of([row]))


def _hours_tested(counted: Sequence[BlockRow]) -> Figure:
    lengths = [row.on.length_s for row in counted if row.on is not None]
    if not lengths:
        return unknown("no ON window was counted", JOURNAL)
    return measured(math.fsum(lengths) / 3600.0, f"{JOURNAL}, lengths of the counted ON windows", _end_of(counted))


def _end_of(rows: Sequence[BlockRow]) -> str | None:
    """When the last window of these blocks ended, aware UTC in ISO form."""
    windows = [w for row in rows for w in (row.on, row.off) if w is not None]
    return _end_of_window(max(windows, key=lambda w: w.started_mono_s)) if windows else None


def _end_of_window(window: WindowRow) -> str | None:
    try:
        return (datetime.fromisoformat(window.started_at) + timedelta(seconds=window.length_s)).isoformat()
    except (ValueError, OverflowError):
        return None
