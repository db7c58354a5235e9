"""The dose of a run as its report shows it: asked, metered, per unit, for how long."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from policies.harness.rows import BlockRow, UnitDose, WindowRow
from policies.harness.spec import RunSpec
from policies.report.document import Dose, UnitLine
from policies.report.evidence import Figure, measured, unknown
from policies.report.words import clean, plural

__all__ = ["dose_of"]

METER = "the agent's meter"


def dose_of(spec: RunSpec, counted: Sequence[BlockRow]) -> Dose:
    """The dose over the counted ON windows. One window that could not be metered makes a mean unknown, not smaller."""
    on = [row.on for row in counted if row.on is not None]
    off = [row.off for row in counted if row.off is not None]
    return Dose(
        applies=spec.kind == "ab",
        asked=spec.duty,
        metered=_over(on, lambda w: w.dose, _mean),
        lowest=_over(on, lambda w: w.dose, min),
        ran_share=_ran(on),
        off_metered=_over(off, lambda w: w.dose, _mean),
        units=_units(on),
        notes=_notes(spec, on, off),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _over(
    windows: Sequence[WindowRow], read: Callable[[WindowRow], float | None], fold: Callable[[Sequence[float]], float]
) -> Figure:
    if not windows:
        return unknown("no window was counted", METER)
    values = [read(w) for w in windows]
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        why = next((clean(w.dose_unknown_reason) for w in windows if w.dose is None and w.dose_unknown_reason), "")
        missing = f"{len(values) - len(known)} of {plural(len(values), 'window')} could not be metered"
        return unknown(f"{missing}: {why}" if why else missing, METER)
    return measured(fold(known), f"{METER}, {plural(len(known), 'counted window')}")


def _ran(on: Sequence[WindowRow]) -> Figure:
    length = math.fsum(w.length_s for w in on)
    if length <= 0:
        return unknown("no ON window was counted", "the agent's journal")
    return measured(math.fsum(w.work_ran_s for w in on) / length, "the agent's journal")


def _units(on: Sequence[WindowRow]) -> tuple[UnitLine, ...]:
    kinds: dict[tuple[str, str], list[UnitDose]] = {}
    for window in on:
        for unit in window.units:
            kinds.setdefault((unit.module, unit.stage), []).append(unit)
    return tuple(_unit_line(name, units) for name, units in sorted(kinds.items()))


def _unit_line(name: tuple[str, str], units: Sequence[UnitDose]) -> UnitLine:
    known = [u.share for u in units if u.share is not None]
    asked = {u.asked for u in units}
    if len(known) == len(units):
        share = measured(_mean(known), f"{METER}, {plural(len(known), 'reading')}")
    else:
        why = next(
            (clean(u.unknown_reason) for u in units if u.share is None and u.unknown_reason), "no reason was recorded"
        )
        share = unknown(f"{len(units) - len(known)} of {plural(len(units), 'reading')} failed: {why}", METER)
    one = next(iter(asked)) if len(asked) == 1 else None
    reason = "no duty was asked" if asked == {None} else "it changed within the run"
    attempts = tuple(dict.fromkeys(clean(u.attempt) for u in units))
    return UnitLine(
        name=f"{clean(name[0])}/{clean(name[1])}",
        attempts=attempts,
        asked=measured(one, "the agent's grants", otherwise=reason),
        share=share,
        readings=len(units),
    )


def _notes(spec: RunSpec, on: Sequence[WindowRow], off: Sequence[WindowRow]) -> tuple[str, ...]:
    notes = []
    if spec.feed is not None:
        notes.append(
            f"ON windows were kept loaded with {clean(spec.feed)}; its results were thrown away, and it ran in no OFF window."
        )
    unread = sum(w.dose is None for w in on)
    if unread:
        notes.append(
            f"{plural(unread, 'counted ON window')} could not be metered. Unknown is not zero: no dose follows from it."
        )
    ran_off = [w for w in off if w.work_ran_s > 0]
    if ran_off:
        notes.append(
            f"The work under test ran in {plural(len(ran_off), 'OFF window')}, {max(w.work_ran_s for w in ran_off):.1f} s at most."
        )
    return tuple(notes)
