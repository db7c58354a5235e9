"""The verdict of a run in sentences, and what a reader must know before believing it.

Wording follows ``harness.md`` (The report) and ``harness-statistics.md`` sections 5 and 6: bounds are always the "90 %
interval, valid at every look", a slowdown is "slower than OFF; best estimate x %".
"""

from __future__ import annotations

from collections.abc import Mapping

from policies.harness.validity import harm_suspected
from policies.report.base import Base
from policies.report.evidence import above_words, interval, percent
from policies.report.words import ENDING_TITLES, clean, plural

__all__ = ["JUDGED", "more", "reason", "sentence", "title", "warnings"]


JUDGED = ("no slowdown shown", "slowdown", "inconclusive")


def title(base: Base) -> str:
    """A few words that can stand over the report alone."""
    if base.ending is None:
        return "Still running"
    null = base.judgement.null_test
    if null is not None and base.ending in JUDGED:
        if null.passed:
            return "A/A test passed"
        return "A/A test: off where nothing differs" if null.holds_1 is False else "A/A test: too noisy to tell"
    if base.ending == "slowdown" and (base.collapsed or base.decision.collapse):
        return "Slowdown: the program collapsed while the work ran"
    words = ENDING_TITLES.get(base.ending, base.ending)
    return f"{KINDS[base.spec.kind]}: {words[:1].lower()}{words[1:]}" if base.spec.kind != "ab" else words


KINDS = {"null": "A/A test", "self": "Self-cost"}


def sentence(base: Base) -> str:
    """The verdict in words."""
    null = base.judgement.null_test
    if null is not None and base.ending in JUDGED:
        return null.says
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
    said, estimate, above = teller(base), _estimate(base), _above(base)
    return f"{said} {above}" if above and estimate and estimate in said else said


def _estimate(base: Base) -> str | None:
    """ "99.4 % of its speed without fleet work (90 % interval 98.6–100.3 %, valid at every look)"."""
    r = base.result
    if r.R.value is None or r.lo.value is None or r.hi.value is None:
        return None
    than = {
        "ab": "its speed without fleet work",
        "null": "its speed in the other window",
        "self": "its speed with the agent at rest",
    }[base.spec.kind]
    bounds = interval(r.lo.value, r.hi.value, r.places)
    return f"{percent(r.R.value, r.places)} of {than} (90 % interval {bounds}, valid at every look)"


def _above(base: Base) -> str:
    """A sentence that keeps 102 % from being read as a gain; "" where there is nothing to misread."""
    r = base.result
    if r.R.value is None or r.lo.value is None or r.hi.value is None:
        return ""
    words = above_words(r.R.value, r.lo.value, r.hi.value, r.places)
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _passed(base: Base) -> str:
    estimate = _estimate(base)
    if estimate is None:
        return "The run was ended as a pass, but its windows give no estimate: see the note below."
    return f"No slowdown shown: the program ran at {estimate}, within the {base.margin} margin."


def _slower(base: Base) -> str:
    row, estimate = base.collapsed, _estimate(base)
    if row is not None:
        said = (
            f"In block {row.number} the program's rate collapsed: {clean(row.collapse)}. The run was stopped at once."
        )
        return said + (f" At the look before, it ran at {estimate}." if estimate else "")
    if base.decision.collapse:
        return "Slower than OFF: the program made no progress in a whole ON window, while it did in OFF."
    if estimate is None:
        return "The run was ended as a slowdown, but its windows give no estimate: see the note below."
    return f"Slower than OFF: best estimate {estimate}, beyond the {base.margin} margin."


def _inconclusive(base: Base) -> str:
    estimate, more = _estimate(base), base.judgement.more
    if estimate is None:
        return f"Inconclusive: {more or base.result.R.unknown_reason}."
    to_decide = f" To decide it: {more}." if more else ""
    return f"Inconclusive: best estimate {estimate}, which does not settle the {base.margin} margin.{to_decide}"


def _refused(base: Base) -> str:
    return base.judgement.refusal or "The run was refused, and its windows do not say why: see the note below."


def more(base: Base) -> str:
    """How many more blocks would decide; "" where the run was decided, or was no comparison of work."""
    words = base.judgement.more
    if not words or base.spec.kind == "null" or base.ending not in (None, "inconclusive", "aborted", "interrupted"):
        return ""
    return words[:1].upper() + words[1:] + "."


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
