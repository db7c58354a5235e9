"""The verdict of a run in sentences, and what a reader must know before believing it.

Wording follows ``harness.md`` (The report) and ``harness-statistics.md`` sections 5 and 6: bounds are always the "90 %
interval, valid at every look", a slowdown is "slower than OFF; best estimate x %".
"""

from __future__ import annotations

from collections.abc import Mapping

from policies.harness.validity import harm_suspected
from policies.report.base import Base
from policies.report.evidence import hours, interval, percent
from policies.report.words import ENDING_TITLES, clean, plural

__all__ = ["reason", "sentence", "title", "warnings"]


def title(base: Base) -> str:
    """A few words that can stand over the report alone."""
    if base.ending is None:
        return "Still running"
    if base.ending == "slowdown" and (base.collapsed or base.decision.collapse):
        return "Slowdown: the program collapsed while the work ran"
    words = ENDING_TITLES.get(base.ending, base.ending)
    if base.spec.kind == "null":
        return f"A/A test: {_null_title(base)}" if base.ending in _JUDGED else f"A/A test: {words.lower()}"
    if base.spec.kind == "self":
        return f"Self-cost: {words.lower()}"
    return words


_JUDGED = ("no slowdown shown", "slowdown", "inconclusive")


def _null_title(base: Base) -> str:
    return {
        "no slowdown shown": "no difference shown where there is none",
        "slowdown": "a difference shown where there is none",
    }.get(base.ending or "", "too noisy to tell")


def sentence(base: Base) -> str:
    """The verdict in words."""
    teller = {
        "no slowdown shown": _passed,
        "slowdown": _slower,
        "inconclusive": _inconclusive,
        "refused": _refused,
        "no_dose": _no_dose,
        "harm_suspected": _harm,
        "aborted": _stopped,
        "interrupted": _stopped,
    }.get(base.ending or "", _running)
    return teller(base)


def _estimate(base: Base) -> str | None:
    """ "99.4 % of its speed without fleet work (90 % interval 98.6–100.3 %, valid at every look)"."""
    r = base.result
    if r.R.value is None or r.lo.value is None or r.hi.value is None:
        return None
    than = {
        "ab": "its speed without fleet work",
        "null": "its speed in the other windows",
        "self": "its speed with the agent stopped",
    }[base.spec.kind]
    bounds = interval(r.lo.value, r.hi.value, r.places)
    return f"{percent(r.R.value, r.places)} of {than} (90 % interval {bounds}, valid at every look)"


def _passed(base: Base) -> str:
    estimate = _estimate(base)
    if estimate is None:
        return "The run was ended as a pass, but its windows give no estimate: see the warnings."
    return f"No slowdown shown: the program ran at {estimate}, within the {base.margin} margin."


def _slower(base: Base) -> str:
    row, estimate = base.collapsed, _estimate(base)
    if row is not None:
        said = (
            f"In block {row.number} the program's rate collapsed: {clean(row.collapse)}. The run was stopped at once."
        )
        return said + (f" At the look before, it ran at {estimate}." if estimate else "")
    if base.decision.collapse:
        return "The program made no progress at all in an ON window, while it did in the OFF window beside it."
    if estimate is None:
        return "The run was ended as a slowdown, but its windows give no estimate: see the warnings."
    return f"Slower than OFF: best estimate {estimate}, beyond the {base.margin} margin."


def _inconclusive(base: Base) -> str:
    estimate = _estimate(base)
    if estimate is None:
        return f"Nothing was decided: {base.result.R.unknown_reason}."
    return (
        f"After {plural(base.result.n, 'block')} the program ran at {estimate}. "
        f"{_why_open(base)} Neither a pass nor a slowdown follows."
    )


def _why_open(base: Base) -> str:
    r = base.result
    if r.lo.value is None or r.hi.value is None or r.R.value is None:
        return ""
    if r.hi.value >= 1.0:
        return f"The interval reaches below the {base.margin} margin and up to full speed."
    if r.R.value >= r.bound:
        return f"The interval lies below full speed, but the estimate is within the {base.margin} margin."
    return f"The interval reaches below the {base.margin} margin."


def _refused(base: Base) -> str:
    refusal, spec = base.decision.refusal, base.spec
    if refusal is None:
        return f"The run was refused: {clean(base.record.get('reason')) or 'no reason was recorded'}."
    ways = [f"a margin of {refusal.margin_needed * 100:.1f} %"]
    if refusal.n_max_needed is not None:
        ways.append(f"{hours(refusal.n_max_needed * spec.block_s / 3600.0)} ({refusal.n_max_needed} blocks)")
    return (
        f"At the first look, after {plural(base.result.n, 'block')}, the blocks differed by {percent(refusal.s)} "
        "(standard deviation). "
        f"With that noise a run of at most {plural(spec.n_max, 'block')} cannot reach the {base.margin} margin "
        "even if the work costs nothing: "
        f"it would need a noise of {percent(refusal.s_limit)} or less. It would take {' or '.join(ways)}, or a quieter program."
    )


def _no_dose(base: Base) -> str:
    asked = f" of the duty of {base.spec.duty:g} asked" if base.spec.duty is not None else ""
    return (
        f"In three blocks in a row the work under test did not run for long enough, or held too little{asked}, by the meter. "
        "A run without a dose says nothing about harm, so it was ended."
    )


def _harm(base: Base) -> str:
    harm = harm_suspected(base.rows)
    seen = f": {harm.words}" if harm is not None else " (see the blocks left out)"
    return (
        f"What went wrong came with the work and not as often without it{seen}. "
        "That speaks against the work, whatever the rates say."
    )


def _stopped(base: Base) -> str:
    verb = "aborted" if base.ending == "aborted" else "interrupted"
    estimate = _estimate(base)
    if estimate is None:
        counted = plural(base.result.counted, "counted block")
        return f"The run was {verb} before its first look, after {counted}. Nothing can be said about R."
    return (
        f"The run was {verb} after {plural(base.result.counted, 'counted block')}, undecided. "
        f"At its last look, {plural(base.result.n, 'block')}, the program ran at {estimate}. That is not a verdict."
    )


def _running(base: Base) -> str:
    r, estimate = base.result, _estimate(base)
    if estimate is None:
        return f"{plural(r.counted, 'block')} counted; the first look comes at {base.spec.first_look}. Nothing is estimated before."
    return (
        f"{plural(r.counted, 'block')} counted. At the look at {r.n} the program ran at {estimate}. Undecided so far."
    )


def reason(base: Base) -> str | None:
    """Why the run ended, as the flow or the agent recorded it."""
    said = clean(base.record.get("reason"))
    return f"Recorded reason: {said}." if said else None


def warnings(base: Base) -> tuple[str, ...]:
    """What a reader must know before believing the rest."""
    out = []
    if base.ending in ("no slowdown shown", "slowdown", "inconclusive", "refused"):
        judged = base.decision.verdict
        if judged != base.ending and not (base.ending == "slowdown" and base.collapsed):
            out.append(
                f"The run was recorded as '{base.ending}', but its windows give '{judged}'. Do not rely on this run."
            )
    elif base.ending in ("aborted", "interrupted", "no_dose") and base.decision.verdict == "slowdown":
        out.append("The counted windows by themselves give 'slowdown', although the run ended otherwise.")
    if base.decision.zero_variance:
        out.append(
            "The blocks do not differ at all: quantised counts, not evidence of a quiet program. "
            "Use longer windows or a source with finer steps."
        )
    source = base.record.get("source")
    if isinstance(source, Mapping) and source.get("timed"):
        out.append(
            "The source gives no times of its own: events are timed as they are read, which can hide short stalls."
        )
    recorded = base.record.get("agent_version")
    if recorded is None and base.ending is not None:
        out.append("The record does not name the agent's version.")
    return tuple(out)
