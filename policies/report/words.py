"""The words of a report: reasons, endings, and how text that others chose is made harmless to show."""

from __future__ import annotations

import unicodedata
from typing import Any

from policies.harness.rows import BlockRow

__all__ = ["ENDING_TITLES", "LEFT_OUT_WORDS", "arm_words", "clean", "day", "plural", "reason_of", "reason_words"]

LONGEST = 240

LEFT_OUT_WORDS = {
    "program_died": "the protected program died",
    "memory_guard": "the memory guard acted",
    "source_unreadable": "the progress source stopped reading",
    "phase": "a phase of the rule came on",
    "program_restarted": "the protected program was restarted",
    "suspend": "the machine slept",
    "power_source": "the power source changed",
    "owner_pause": "the owner paused fleet work",
    "no_dose": "no dose: the work did not run enough",
    "source_gap": "the progress source was rotated or its counter restarted, so a window has no whole count",
    "no_off_progress": "the program made no progress in OFF",
    "not_held": "the work under test did not stay held in OFF",
    "cut": "cut short: the run's process or the agent went away",
    # not a reason of the agent's: a block that shows a collapse has none, and ends the run
    "collapse": "the program's rate collapsed, which ended the run",
}
# Short forms for pictures.
LEFT_OUT_LABELS = {
    "program_died": "died",
    "memory_guard": "memory",
    "source_unreadable": "source",
    "phase": "phase",
    "program_restarted": "restart",
    "suspend": "sleep",
    "power_source": "power",
    "owner_pause": "pause",
    "no_dose": "no dose",
    "source_gap": "gap",
    "no_off_progress": "OFF stalled",
    "not_held": "not held",
    "cut": "cut",
    "collapse": "collapse",
}

ENDING_TITLES = {
    "no slowdown shown": "No slowdown shown",
    "slowdown": "Slowdown",
    "inconclusive": "Inconclusive",
    "refused": "Refused: this run cannot reach the margin",
    "no_dose": "No dose: the work under test hardly ran",
    "harm_suspected": "Harm suspected",
    "aborted": "Aborted",
    "interrupted": "Interrupted",
}


def reason_words(reason: str | None) -> str:
    """Why a block does not count, in words; an unknown code stays itself."""
    return LEFT_OUT_WORDS.get(reason or "", clean(reason) or "no reason was recorded")


def reason_of(row: BlockRow) -> str:
    """The code of why a block does not count."""
    return "collapse" if row.collapse else row.reason or "no_off_progress"


def arm_words(arm: str | None) -> str | None:
    return {"on": "ON", "off": "OFF"}.get(arm or "")


def plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def clean(text: Any, longest: int = LONGEST) -> str:
    """One line of text that cannot steer a terminal or reorder what stands around it.

    Paths, rule ids and arguments are chosen by others. Control, format (bidi) and surrogate characters become visible
    escapes; the rest stays. Longer text is cut with an ellipsis.
    """
    if text is None:
        return ""
    out = []
    for char in str(text)[: longest + 1]:
        category = unicodedata.category(char)
        if category in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            out.append({"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char) or f"\\u{ord(char):04x}")
        else:
            out.append(char)
    return "".join(out) if len(out) <= longest else "".join(out[:longest]) + "…"


def day(iso: str | None) -> str:
    """An ISO time in UTC as "2026-11-20 22:05 UTC"; other text stays as it is."""
    if not iso:
        return "not recorded"
    if iso[10:11] == "T" and iso.endswith(("+00:00", "Z")):
        return f"{iso[:10]} {iso[11:16]} UTC"
    return iso
