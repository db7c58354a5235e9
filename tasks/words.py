"""One line about a run: for a state's message and a progress bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.harness.likely_done import likely_done_words
from policies.harness.plan_text import left_words, planned_blocks
from policies.harness.rows import BlockRow
from policies.harness.spec import RunSpec
from policies.harness.validity import decide_blocks
from policies.harness.verdict import PASS
from policies.refusal import Refused

__all__ = ["ended_words", "percent", "progress_words", "refused_words", "sweep_percent", "sweep_progress_words"]


def ended_words(record: Mapping[str, Any], no_certificate: Refused | None = None) -> str:
    """ "no slowdown shown: R 0.994 (0.986–1.003), margin 0.02, 12 blocks; certificate kept"."""
    spec, verdict = record["spec"], record.get("verdict") or {}
    words = str(record["ending"])
    if verdict.get("R") is not None:
        words += (
            f": R {verdict['R']:.4f} ({verdict['lo']:.4f}–{verdict['hi']:.4f}), "
            f"margin {spec['margin']:g}, {verdict['n']} blocks"
        )
    if record.get("reason") and record["ending"] != PASS:
        words += f"; {record['reason']}"
    if record.get("certificate"):
        words += "; certificate kept"
    elif no_certificate is not None:
        words += f"; no certificate: {no_certificate.why}"
    return words


def refused_words(refusal: Refused) -> str:
    return f"{refusal.what}: {refusal.why}" + (f". Next: {refusal.remedy}" if refusal.remedy else "")


def percent(record: Mapping[str, Any]) -> float:
    """How far the run is towards its planned blocks, below 100 until it has ended."""
    if record["state"] == "ended":
        return 100.0
    spec = RunSpec.model_validate(record["spec"])
    counted = sum(1 for row in record["blocks"] if row["state"] == "counted")
    return min(100.0 * counted / planned_blocks(spec), 99.0)


def progress_words(record: Mapping[str, Any]) -> str:
    """ "5 blocks counted of 12 planned, 0 left out; likely done by block 12, in about 1.4 h (…); at most 35 more blocks, about 7.0 h".

    R only as a look gave it.
    """
    spec = RunSpec.model_validate(record["spec"])
    counted = sum(1 for row in record["blocks"] if row["state"] == "counted")
    words = f"{counted} blocks counted of {planned_blocks(spec)} planned, {len(record['blocks']) - counted} left out"
    looks = record.get("looks") or []
    if looks and looks[-1].get("R") is not None:
        last = looks[-1]
        words += f"; R so far {last['R']:.4f} ({last['lo']:.4f}–{last['hi']:.4f}) at {last['n']} blocks"
    likely = likely_done_words(spec, decide_blocks(BlockRow.model_validate(row) for row in record["blocks"]))
    if record["state"] == "ended":
        return words
    left = left_words(spec, counted, len(record["blocks"]) - counted)
    return "; ".join(part for part in (words, likely, left) if part)


def sweep_percent(record: Mapping[str, Any]) -> float:
    """How far the sweep is that ``record`` is a level of, as if every level took the same time; below 100."""
    about = record["sweep"]
    return min((100.0 * int(about["index"]) + percent(record)) / len(about["levels"]), 99.0)


def sweep_progress_words(record: Mapping[str, Any]) -> str:
    """ "level 2 of 7, duty 0.2: 5 blocks counted of 12 planned, 0 left out"."""
    about = record["sweep"]
    at = f"level {int(about['index']) + 1} of {len(about['levels'])}, duty {record['spec']['duty']:g}"
    return f"{at}: {progress_words(record)}"
