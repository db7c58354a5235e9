"""Earlier runs of the same thing: they stand in every report, since repetition must not manufacture certificates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policies.harness.kept import asked_of
from policies.harness.spec import RunSpec

__all__ = ["attempts_before"]


def attempts_before(runs: Sequence[dict[str, Any]], spec: RunSpec) -> list[dict[str, Any]]:
    """Ended runs of the same rule and work, at whatever duty, oldest first: ``{run, ending, ended_at, duty, R, n}``.

    Of a damaged record what can be told of it; one of which rule, work or kind cannot is none of the same thing.
    """
    found = []
    for run in runs:
        asked, verdict = asked_of(run), run.get("verdict")
        same = (
            asked.get("rule") == spec.rule and asked.get("work") == spec.work and asked.get("kind") == spec.kind == "ab"
        )
        if not same or run.get("state") != "ended":
            continue
        said = verdict if isinstance(verdict, Mapping) else {}
        figures = {"duty": asked.get("duty"), "R": said.get("R"), "n": said.get("n")}
        found.append(
            {"run": run["run"], "ending": _text(run.get("ending")) or "damaged", "ended_at": _text(run.get("ended_at"))}
            | {name: value if isinstance(value, int | float) else None for name, value in figures.items()}
        )
    return sorted(found, key=lambda attempt: attempt["ended_at"] or "")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
