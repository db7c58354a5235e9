"""Progress and phase sources: where a rule reads the program's speed and the phase it is in (protection.md, Sources).

A source's kind follows from its keys; there is no ``kind`` key. Tags of the unions stand in angle brackets so that the
parser can tell them from keys in an error's location.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from policies.section.values import AbsolutePath, Argv, Clean, DottedPath, Match, Pattern, Text, Tree

__all__ = [
    "KINDS",
    "NO_KIND",
    "ExecPhase",
    "ExecProgress",
    "JsonlEventPhase",
    "JsonlFieldPhase",
    "JsonlProgress",
    "LogProgress",
    "OnExec",
    "PhaseSource",
    "ProgressSource",
    "Scalar",
    "phase_model",
    "progress_model",
]


def _scalar(value: Any) -> Any:
    if isinstance(value, str | bool | int | float):
        return value
    raise PydanticCustomError("scalar", "is neither text nor a number nor true or false")


# What a phase's field may hold: a JSON scalar.
Scalar = Annotated[str | bool | int | float, BeforeValidator(_scalar)]


def _one_group(pattern: str) -> str:
    groups = re.compile(pattern).groups
    if groups > 1:
        raise PydanticCustomError(
            "groups",
            "has {groups} capture groups",
            {
                "groups": groups,
                "allowed": "no group (matches count) or one (a cumulative counter); (?:…) captures nothing",
            },
        )
    return pattern


class JsonlProgress(Clean):
    """Progress from a JSONL file: matching lines per second."""

    jsonl: AbsolutePath = Field(description="the file; a glob follows the newest match")
    event: Text = Field(description="lines whose event_key holds this are counted")
    event_key: DottedPath = Field(default="event", description="dotted path to the event's name")
    time_key: DottedPath | None = Field(
        default=None, description="dotted path to seconds or an ISO time; default: our arrival time"
    )

    @property
    def kind(self) -> Literal["jsonl"]:
        return "jsonl"

    @property
    def file(self) -> str:
        return self.jsonl


class LogProgress(Clean):
    """Progress from a log: matches per second, or the increase per second of the counter in the one capture group."""

    path: AbsolutePath = Field(description="the file; a glob follows the newest match")
    log_regex: Annotated[Pattern, AfterValidator(_one_group)] = Field(
        description="a regular expression with at most one capture group, a cumulative counter"
    )

    @property
    def kind(self) -> Literal["log"]:
        return "log"

    @property
    def file(self) -> str:
        return self.path

    @property
    def counter(self) -> bool:
        """Whether the capture group is a cumulative counter whose increase counts."""
        return re.compile(self.log_regex).groups == 1


class ExecProgress(Clean):
    """Progress from a probe: the rate that a program prints. Never used by harness runs."""

    exec: Argv = Field(description="program and arguments, no shell")

    @property
    def kind(self) -> Literal["exec"]:
        return "exec"


class JsonlEventPhase(Clean):
    """A phase from events: on after ``enter``, off after ``exit``, soon after ``enter_soon``."""

    jsonl: AbsolutePath = Field(description="the file; a glob follows the newest match")
    enter: Text = Field(description="the event that begins the phase")
    exit: Text = Field(description="the event that ends the phase")
    enter_soon: Text | None = Field(default=None, description="the event that announces the phase")
    event_key: DottedPath = Field(default="event", description="dotted path to the event's name")

    @property
    def kind(self) -> Literal["events"]:
        return "events"

    @property
    def file(self) -> str:
        return self.jsonl


class JsonlFieldPhase(Clean):
    """A phase from a field: on while the field of that event's newest line holds one of the values."""

    jsonl: AbsolutePath = Field(description="the file; a glob follows the newest match")
    event: Text = Field(description="the event whose lines carry the field")
    field: DottedPath = Field(description="dotted path to the field")
    on: Annotated[tuple[Scalar, ...], Field(min_length=1, strict=False)] = Field(
        description="a list of values that mean on"
    )
    soon: Annotated[tuple[Scalar, ...], Field(strict=False)] = Field(
        default=(), description="a list of values that mean soon"
    )
    event_key: DottedPath = Field(default="event", description="dotted path to the event's name")

    @property
    def kind(self) -> Literal["field"]:
        return "field"

    @property
    def file(self) -> str:
        return self.jsonl


class OnExec(Clean):
    """The program whose run is the phase."""

    match: Match = Field(description="which processes; all given keys must hold")
    tree: Tree = Field(default="self", description="whether their children count")


class ExecPhase(Clean):
    """A phase while a matching process of the owner's runs."""

    on_exec: OnExec = Field(description="{ match = {…}, tree = … }")

    @property
    def kind(self) -> Literal["on_exec"]:
        return "on_exec"


# Tag of a union's arm -> its model. The words are the ones of the documentation.
KINDS: dict[str, type[Clean]] = {
    "<progress from a JSONL file>": JsonlProgress,
    "<progress from a log>": LogProgress,
    "<progress from a probe>": ExecProgress,
    "<a phase from events>": JsonlEventPhase,
    "<a phase from a field>": JsonlFieldPhase,
    "<a phase while a program runs>": ExecPhase,
}


def progress_model(raw: Any) -> type[Clean] | None:
    """The kind of progress source that the keys of ``raw`` speak of, or None."""
    if isinstance(raw, Clean):
        return type(raw)
    if not isinstance(raw, Mapping):
        return None
    if "jsonl" in raw:
        return JsonlProgress
    if "path" in raw or "log_regex" in raw:
        return LogProgress
    if "exec" in raw:
        return ExecProgress
    return JsonlProgress if "event" in raw else None


def phase_model(raw: Any) -> type[Clean] | None:
    """The kind of phase source that the keys of ``raw`` speak of, or None."""
    if isinstance(raw, Clean):
        return type(raw)
    if not isinstance(raw, Mapping):
        return None
    if "on_exec" in raw:
        return ExecPhase
    if {"enter", "exit", "enter_soon"} & raw.keys():
        return JsonlEventPhase
    return JsonlFieldPhase if {"event", "field", "on", "soon"} & raw.keys() else None


def _tag(model: type[Clean] | None) -> str | None:
    return next((tag for tag, known in KINDS.items() if known is model), None)


# Error types of a table that is no source at all, with what is allowed there.
NO_KIND = {
    "no_progress_kind": "{ jsonl, event } (a JSONL file), { path, log_regex } (a log) or { exec = […] } (a probe)",
    "no_phase_kind": "{ jsonl, enter, exit } (events), { jsonl, event, field, on } (a field) or { on_exec = {…} }",
}

ProgressSource = Annotated[
    Annotated[JsonlProgress, Tag("<progress from a JSONL file>")]
    | Annotated[LogProgress, Tag("<progress from a log>")]
    | Annotated[ExecProgress, Tag("<progress from a probe>")],
    Discriminator(
        lambda raw: _tag(progress_model(raw)),
        custom_error_type="no_progress_kind",
        custom_error_message="is not a kind of progress source",
    ),
]

PhaseSource = Annotated[
    Annotated[JsonlEventPhase, Tag("<a phase from events>")]
    | Annotated[JsonlFieldPhase, Tag("<a phase from a field>")]
    | Annotated[ExecPhase, Tag("<a phase while a program runs>")],
    Discriminator(
        lambda raw: _tag(phase_model(raw)),
        custom_error_type="no_phase_kind",
        custom_error_message="is not a kind of phase source",
    ),
]
