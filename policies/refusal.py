"""A refusal: why something that was asked for is not done, and what to do instead.

One shape everywhere (CLI, agent, flows), so that every error names the thing, the reason and the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Refused"]


class Refused(Exception):
    """Something asked for is not done.

    Args:
        code: stable upper-case name, from ``policies.codes`` where the refusal is journaled.
        what: the thing that was refused ("rule 'trainr'").
        why: the reason, in words.
        remedy: the next step, as a command where there is one.
        data: further facts for ``--json``.
    """

    def __init__(self, code: str, what: str, why: str, remedy: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{what}: {why}")
        self.code = code
        self.what = what
        self.why = why
        self.remedy = remedy
        self.data: dict[str, Any] = dict(data or {})

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON shape: ``{code, what, why, remedy, data}``."""
        return {"code": self.code, "what": self.what, "why": self.why, "remedy": self.remedy, "data": self.data}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Refused:
        return cls(
            str(raw.get("code", "UNKNOWN")),
            str(raw.get("what", "request")),
            str(raw.get("why", "no reason was given")),
            str(raw.get("remedy", "")),
            raw.get("data") or {},
        )
