"""The report of a duty sweep, from the records of its levels: what passed, what is certified, and how it stands.

The sweep keeps no state of its own: everything here follows from the runs, so that the report is the same whoever makes
it, and a sweep that was cancelled or crashed says what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from policies.harness.sweep import PastLevel, certified_level

__all__ = ["UNFINISHED", "LevelRow", "SweepReport", "sweep_markdown", "sweep_of", "sweep_report", "sweep_text"]

Record = Mapping[str, Any]
UNFINISHED = "unfinished"
# What stays true of any sweep; stands under each report.
LIMITS = (
    "The highest level that passed is certified, and no level beyond it was tried. The chance that a harmful level is "
    "certified is at most that of one run, since no level is run twice or skipped within a sweep."
)


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One level. Figures are None where they are unknown, with ``why`` saying so; ``ending`` None: it goes on."""

    level: float
    run: str | None
    state: str
    ending: str | None
    R: float | None
    lo: float | None
    hi: float | None
    n: int | None
    certified_duty: float | None
    why: str
    started_at: str | None
    ended_at: str | None
    max_hours: float | None

    @property
    def passed(self) -> bool:
        return self.state == "passed"


@dataclass(frozen=True, slots=True)
class SweepReport:
    """``state``: complete, stopped, or unfinished. ``certified``: the highest level whose certificate was kept."""

    sweep: str
    node: str
    rule: str
    work: str
    margin: float
    state: str
    certified: float | None
    sentence: str
    notes: tuple[str, ...]
    repeat_of: tuple[str, ...]
    rows: tuple[LevelRow, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sweep_of(record: Record) -> str | None:
    """The name of the sweep that a run is a level of."""
    sweep = record.get("sweep")
    return str(sweep["sweep"]) if isinstance(sweep, Mapping) else None


def sweep_report(records: Sequence[Record], notes: Sequence[str] = ()) -> SweepReport:
    """From the RunRecords of one sweep's levels, in any order; ``notes`` are what the flow has to say of this night.

    Raises:
        ValueError: there is none, or they are of several sweeps.
    """
    names = {sweep_of(record) for record in records}
    if len(names) != 1 or None in names:
        raise ValueError(f"a report is of the levels of one sweep, not of {sorted(map(str, names))}")
    pairs = sorted(
        ((PastLevel.of(record), record) for record in records), key=lambda pair: pair[0].index if pair[0] else -1
    )
    levels = [level for level, _ in pairs if level is not None]
    first = records[0]
    about, spec = first["sweep"], first["spec"]
    rows = [_row(level, record) for level, record in pairs if level is not None]
    shown = {level.index for level in levels}
    rows += [_not_run(float(level)) for index, level in enumerate(about["levels"]) if index not in shown]
    rows.sort(key=lambda row: row.level)
    state, certified = _state(levels, len(about["levels"])), certified_level(levels)
    repeat_of = tuple(dict.fromkeys(each for _, record in pairs for each in record["sweep"].get("repeat_of") or ()))
    return SweepReport(
        sweep=str(about["sweep"]),
        node=str(spec["node"]),
        rule=str(spec["rule"]),
        work=str(spec["work"]),
        margin=float(spec["margin"]),
        state=state,
        certified=certified,
        sentence=_sentence(state, certified, rows, str(spec["rule"])),
        notes=tuple(notes),
        repeat_of=repeat_of,
        rows=tuple(rows),
    )


def sweep_text(report: SweepReport) -> list[str]:
    """Lines for a terminal or a file."""
    lines = [f"sweep {report.sweep}: rule {report.rule}, work {report.work}, node {report.node}", report.sentence]
    lines += [*_repeat(report), *report.notes]
    lines += [f"  duty {row.level:g}: {_row_words(row)}" for row in report.rows]
    return [*lines, LIMITS]


def sweep_markdown(report: SweepReport) -> str:
    """The same for a Prefect artifact."""
    lines = [f"# Duty sweep of {_plain(report.work)} beside {_plain(report.rule)} on {_plain(report.node)}", ""]
    lines += [f"**{_plain(report.sentence)}**", ""]
    lines += [f"> {_plain(note)}\n" for note in (*_repeat(report), *report.notes)]
    lines += ["| duty | result | R | 90 % interval | blocks | certified | run |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in report.rows:
        cells = (
            f"{row.level:g}",
            row.ending or row.state,
            _share(row.R),
            "–" if row.lo is None or row.hi is None else f"{100 * row.lo:.1f}–{100 * row.hi:.1f} %",
            "–" if row.n is None else str(row.n),
            "–" if row.certified_duty is None else f"{row.certified_duty:g}",
            row.run or "–",
        )
        lines.append("| " + " | ".join(_plain(cell) for cell in cells) + " |")
    lines += [""] + [f"- duty {row.level:g}: {_plain(row.why)}" for row in report.rows if row.why]
    lines += ["", "R is the program's speed beside fleet work, of its speed without; its interval is valid at every look, and "
              f"the margin is {100 * report.margin:g} %. {LIMITS}"]  # fmt: skip
    lines += ["", f"Sweep `{report.sweep}`. Each level has a report of its own: `cotenant protection ab show RUN`."]
    return "\n".join(lines) + "\n"


def _row(level: PastLevel, record: Record) -> LevelRow:
    verdict: Mapping[str, Any] = record.get("verdict") or {}
    certificate = record.get("certificate") or {}
    why = ""
    if level.state != "ended":
        state, why = "open", "it was begun and has not ended"
    elif level.passed:
        state = "passed"
        why = "" if level.certificate else f"no certificate: {record.get('certificate_refused') or 'not offered yet'}"
    else:
        state = "not passed"
        why = str(record.get("reason") or record.get("certificate_refused") or "")
    return LevelRow(
        level=level.level,
        run=level.run,
        state=state,
        ending=level.ending,
        R=verdict.get("R"),
        lo=verdict.get("lo"),
        hi=verdict.get("hi"),
        n=verdict.get("n"),
        certified_duty=certificate.get("certified_duty"),
        why=why,
        started_at=record.get("started_at"),
        ended_at=record.get("ended_at"),
        max_hours=record["spec"].get("max_hours"),
    )


def _not_run(level: float) -> LevelRow:
    return LevelRow(level, None, "not run", None, None, None, None, None, None, "", None, None, None)


def _state(levels: Sequence[PastLevel], wanted: int) -> str:
    if any(each.state == "ended" and not each.passed and not each.unsettled for each in levels):
        return "stopped"
    if len(levels) == wanted and all(each.passed for each in levels):
        return "complete"
    return UNFINISHED


def _sentence(state: str, certified: float | None, rows: Sequence[LevelRow], rule: str) -> str:
    head = (
        f"Certified duty {certified:g} beside {rule}"
        if certified is not None
        else f"No duty is certified beside {rule}"
    )
    failed = next((row for row in rows if row.state == "not passed"), None)
    if state == "complete":
        return f"{head}: every level of the sweep passed."
    if state == "stopped" and failed is not None:
        return f"{head}: the sweep stopped at duty {failed.level:g}, which ended: {failed.ending}."
    left = [f"{row.level:g}" for row in rows if row.state in ("not run", "open")]
    return f"{head}, so far: not tried to the end yet: {', '.join(left)}."


def _repeat(report: SweepReport) -> list[str]:
    if not report.repeat_of:
        return []
    count = len(report.repeat_of)
    earlier = "an earlier sweep" if count == 1 else f"{count} earlier sweeps"
    return [f"This is a repeat: {earlier} of the same work beside the same rule ({', '.join(report.repeat_of)})."]


def _row_words(row: LevelRow) -> str:
    if row.run is None:
        return "not run"
    words = row.ending or row.state
    if row.R is not None and row.lo is not None and row.hi is not None:
        words += f", R {_share(row.R)} ({_share(row.lo)} to {_share(row.hi)}), {row.n} blocks"
    if row.certified_duty is not None:
        words += f", certified {row.certified_duty:g}"
    return f"{words}  [{row.run}]" + (f"; {row.why}" if row.why else "")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _plain(text: str) -> str:
    """What others named must neither end a table's cell nor become markup."""
    for sign in "\\`*_{}[]<>#|!":
        text = text.replace(sign, "\\" + sign)
    return text.replace("\n", " ")
