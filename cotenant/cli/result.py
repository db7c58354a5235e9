"""What a command answers. Commands never print their answer: they return one of these, and ``render`` prints it.

The JSON form (``--json``) is an envelope whose keys are a public contract, counted by ``ENVELOPE_SCHEMA``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from policies.refusal import Refused

__all__ = ["ENVELOPE_SCHEMA", "Exit", "Form", "OperationError", "OperationResult", "View"]

ENVELOPE_SCHEMA = 1

# What a person reads: made from the data only when text is printed, so that --json pays nothing for it.
View = Callable[[Any], "Iterable[RenderableType]"]
# How it is printed: for a person, as JSON over many lines, or as JSON in one line after others.
Form = Literal["text", "json", "line"]


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0  # done; for a run: no slowdown shown
    OTHER_ANSWER = 1  # a finished answer that is not the good one: another ending, a failed check
    REFUSED_INPUT = 2  # wrong usage, or input that was refused
    UNREACHABLE = 3  # agent, server or store does not answer
    REFUSED_BY_REVIEW = 4  # nobody agreed to a reviewed change


@dataclass(frozen=True, slots=True)
class OperationError:
    """``code`` is stable; ``what`` names the thing, ``why`` the reason, ``remedy`` the next command."""

    code: str
    what: str
    why: str
    remedy: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, refused: Refused) -> OperationError:
        return cls(refused.code, refused.what, refused.why, refused.remedy, refused.data)

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "what": self.what, "why": self.why, "remedy": self.remedy, "data": self.data}


@dataclass(slots=True)
class OperationResult:
    """``data`` is plain JSON. ``messages`` are notes beside it (said on stderr in the text form)."""

    data: Any = None
    exit_code: Exit = Exit.DONE
    messages: list[str] = field(default_factory=list)
    errors: list[OperationError] = field(default_factory=list)
    view: View | None = None

    @classmethod
    def failed(cls, exit_code: Exit, error: OperationError, data: Any = None) -> OperationResult:
        return cls(data=data, exit_code=exit_code, errors=[error])

    @property
    def status(self) -> Literal["success", "partial", "error"]:
        """Derived, never set: an error without data is an error, with data it is partial."""
        if not self.errors:
            return "success"
        return "error" if self.data is None else "partial"

    def envelope(self, command: str) -> dict[str, Any]:
        from policies.version import VERSION

        return {
            "schema": ENVELOPE_SCHEMA,
            "cotenant": VERSION,
            "command": command,
            "status": self.status,
            "exit_code": int(self.exit_code),
            "data": self.data,
            "messages": list(self.messages),
            "errors": [error.as_dict() for error in self.errors],
        }
