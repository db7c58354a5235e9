"""What of the schema this version acts on. The rest is refused: an owner who wrote it would believe in it.

One table. A later version that acts on a row adds the row's feature to ``IN_FORCE``, or takes the row away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from policies.section.locate import Path

__all__ = ["IN_FORCE", "PENDING", "Feature", "NotYet", "Pending", "not_acted_on"]

Feature = Literal["governor", "probes", "program_phases"]

# Features of this version, beyond what stands in no row below.
IN_FORCE: frozenset[Feature] = frozenset({"governor", "probes", "program_phases"})


@dataclass(frozen=True, slots=True)
class Pending:
    """A key, or some values of it, that wait for a feature. ``*`` in the path is any entry of an array of tables."""

    path: tuple[str, ...]
    feature: Feature
    why: str
    instead: str
    when: Callable[[Any], bool] = lambda value: True


@dataclass(frozen=True, slots=True)
class NotYet:
    """One refused key of a section."""

    path: Path
    message: str
    instead: str


def _equals(*values: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in values


def _rows() -> Iterator[Pending]:
    yield Pending(
        ("node", "gpu_jobs"),
        "governor",
        "the duty governor, which keeps certified work under its duty, is not in this version",
        "never, when_no_gpu_protected or always; runs earn certificates all the same",
        _equals("certified"),
    )
    yield Pending(
        ("rule", "*", "protect", "source", "exec"),
        "probes",
        "probes are not run",
        "{ jsonl, event } or { path, log_regex }",
    )
    yield Pending(
        ("rule", "*", "during", "*", "source", "on_exec"),
        "program_phases",
        "a phase is not taken from a running program",
        "{ jsonl, enter, exit } or { jsonl, event, field, on }; or a rule of its own for that program",
    )


PENDING: tuple[Pending, ...] = tuple(_rows())


def not_acted_on(raw: Mapping[str, Any], in_force: frozenset[Feature] = IN_FORCE) -> Iterator[NotYet]:
    """Every key of the raw section that nothing acts on, in the order of the table."""
    for row in PENDING:
        if row.feature in in_force:
            continue
        for path, value in _found(raw, row.path, ()):
            if row.when(value):
                shown = f"{path[-1]} = {value!r}" if isinstance(value, str) else str(path[-1])
                message = f"{shown} is in the schema, but this version does not act on it: {row.why}"
                yield NotYet(path, message, row.instead)


def _found(value: Any, pattern: tuple[str, ...], path: Path) -> Iterator[tuple[Path, Any]]:
    if not pattern:
        yield path, value
    elif pattern[0] == "*":
        for index, entry in enumerate(value if isinstance(value, list | tuple) else ()):
            yield from _found(entry, pattern[1:], (*path, index))
    elif isinstance(value, Mapping) and pattern[0] in value:
        yield from _found(value[pattern[0]], pattern[1:], (*path, pattern[0]))
