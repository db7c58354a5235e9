"""One line a check, and the last line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Check", "Verdict", "summary"]

Verdict = Literal["ok", "FAIL", "skip"]


@dataclass(frozen=True, slots=True)
class Check:
    """``name`` is stable; ``said`` is the figure and why."""

    name: str
    verdict: Verdict
    said: str

    def line(self) -> str:
        return f"{self.verdict:<4}  {self.name}: {self.said}"

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "verdict": self.verdict, "said": self.said}


def summary(checks: Sequence[Check]) -> str:
    """``N passed, M failed, K skipped``."""
    count = {kind: sum(check.verdict == kind for check in checks) for kind in ("ok", "FAIL", "skip")}
    return f"{count['ok']} passed, {count['FAIL']} failed, {count['skip']} skipped"
