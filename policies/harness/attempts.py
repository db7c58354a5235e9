"""Earlier runs of the same thing: they stand in every report, since repetition must not manufacture certificates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from policies.harness.spec import RunSpec

__all__ = ["attempts_before"]


def attempts_before(runs: Sequence[dict[str, Any]], spec: RunSpec) -> list[dict[str, Any]]:
    """Ended runs of the same rule and work, at whatever duty, oldest first: ``{run, ending, ended_at, duty, R, n}``."""
    found = []
    for run in runs:
        asked = run["spec"]
        same = asked["kind"] == spec.kind == "ab" and asked["rule"] == spec.rule and asked["work"] == spec.work
        if same and run["state"] == "ended":
            verdict = run.get("verdict") or {}
            found.append(
                {
                    "run": run["run"],
                    "ending": run["ending"],
                    "ended_at": run["ended_at"],
                    "duty": asked["duty"],
                    "R": verdict.get("R"),
                    "n": verdict.get("n"),
                }
            )
    return sorted(found, key=lambda attempt: attempt["ended_at"] or "")
