"""Value types of the section that its models share: texts, paths, patterns, and the ``match`` table."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from policies.section import conditions
from policies.section.conditions import Fault, Table

__all__ = ["AbsolutePath", "Argv", "Clean", "DottedPath", "Match", "Pattern", "Tags", "Text", "Tree"]


class Clean(BaseModel):
    """Base of every table: unknown keys are errors, nothing is coerced (``pause = "yes"`` is no bool), nothing changes.

    A table whose keys contradict each other cannot be built. The parser asks ``faults`` itself, on the table as it was
    written, so that contradictions are reported beside every other error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        """Contradictions between the keys of ``table``, which may hold any nonsense besides."""
        return []

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for fault in self.faults(self.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)):
            raise PydanticCustomError("condition", "{reason}", {"reason": fault.message, "allowed": fault.allowed})
        return self


def _pattern_fault(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except re.error as error:
        where = "" if error.pos is None else f" at position {error.pos}"
        return f"{error.msg}{where}"
    except (OverflowError, RecursionError):
        return "too deep or too large"
    return None


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "holds a NUL character, which no path or argument can")
    return text


def _pattern(text: str) -> str:
    fault = _pattern_fault(text)
    if fault is not None:
        raise PydanticCustomError(
            "bad_regex",
            "is no regular expression: {fault}",
            {"fault": fault, "allowed": "Python's re syntax; in TOML, '...' needs no doubled backslashes"},
        )
    return text


def _absolute(text: str) -> str:
    rooted = PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute() or text.startswith("~/")
    if not rooted:
        raise PydanticCustomError(
            "relative_path",
            "is not an absolute path",
            {"allowed": "a path from / or from ~/ (the home of the section's owner)"},
        )
    return text


Text = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_no_nul)]
AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
Pattern = Annotated[Text, AfterValidator(_pattern)]
DottedPath = Annotated[str, Field(pattern=r"^[^.]+(\.[^.]+)*$", max_length=512)]
Argv = Annotated[tuple[Text, ...], Field(min_length=1, strict=False)]
Tags = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=64)], ...],
    Field(strict=False, description="words of the owner's, shown with the rule"),
]
Tree = Literal["self", "descendants"]


class Match(Clean):
    """Which processes are the program. Every given key must hold, and at least one must be given."""

    path_prefix: AbsolutePath | None = Field(default=None, description="the executable's path begins with this text")
    path_contains: Text | None = Field(
        default=None, description="the executable's path or the arguments hold this text"
    )
    argv_regex: Pattern | None = Field(
        default=None, description="a regular expression, searched in the arguments joined by spaces"
    )
    name: Text | None = Field(default=None, description="the process name")

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        return conditions.at_least_one(table, conditions.MATCH, "an empty match matches nothing")
