"""Errors of a section: what an owner is told, and how a model's complaint becomes that."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.section import shape
from policies.section.locate import Path
from policies.section.sources import NO_KIND
from policies.section.values import Clean

__all__ = ["SectionError", "SectionErrors", "close", "in_words"]


@dataclass(frozen=True, slots=True)
class SectionError:
    """One error. ``key`` is dotted as in TOML, ``rule`` the id of its rule (``#3`` where it has none) or None,
    ``allowed`` what may stand there instead ("" where nothing helps)."""

    key: str
    rule: str | None
    line: int
    message: str
    allowed: str = ""

    def __str__(self) -> str:
        rule = "" if self.rule is None else f", rule {self.rule}"
        key = f", {self.key}" if self.key else ""
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        return f"line {self.line}{rule}{key}: {self.message}{allowed}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "rule": self.rule,
            "line": self.line,
            "message": self.message,
            "allowed": self.allowed,
        }


class SectionErrors(Exception):
    """A section that is refused whole; ``errors`` holds every error, by line."""

    def __init__(self, errors: Iterable[SectionError]) -> None:
        self.errors: tuple[SectionError, ...] = tuple(sorted(errors, key=lambda error: error.line))
        super().__init__("\n".join(map(str, self.errors)))


def close(word: str, known: Sequence[str]) -> str:
    """``; did you mean X?`` where something known looks like ``word``, else nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


# Type of error -> what is said, and what is allowed where the key's own description does not say it.
_PLAIN = {
    "missing": ("is missing", ""),
    "bool_type": ("must be true or false", "true or false"),
    "string_type": ("must be text, in quotes", "text in quotes"),
    "int_type": ("must be a whole number", "a whole number"),
    "int_from_float": ("must be a whole number", "a whole number"),
    "float_type": ("must be a number", "a number"),
    "finite_number": ("must be a finite number", "a finite number"),
    "tuple_type": ("must be a list, in [ ]", ""),
    "model_type": ("must be a table, in { }", ""),
    "model_attributes_type": ("must be a table, in { }", ""),
    "dict_type": ("must be a table, in { }", ""),
    "string_too_short": ("is empty", ""),
    "too_short": ("is empty", ""),
}
_BOUNDS = {
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "string_too_long": "at most {max_length} characters",
}


def in_words(error: Mapping[str, Any], path: Path, tables: Mapping[Path, type[Clean]]) -> tuple[str, str]:
    """(message, allowed) for one of pydantic's errors at ``path``."""
    kind: str = error["type"]
    context: Mapping[str, Any] = error.get("ctx") or {}
    value = error.get("input")
    key = str(path[-1]) if path else ""
    owner = tables.get(path[:-1]) if path else None
    described = shape.description(owner, key)
    if kind == "extra_forbidden":
        return _unknown_key(key, owner, path[:-1])
    if kind == "literal_error":
        choices = [text.strip("'") for text in str(context["expected"]).replace(" or ", ", ").split(", ")]
        hint = close(value, choices) if isinstance(value, str) else ""
        return f"{_shown(value)} is not known{hint}", ", ".join(choices)
    if kind in NO_KIND:
        return f"{_shown(value)} {error['msg']}", NO_KIND[kind]
    if kind in _BOUNDS:
        bound = _BOUNDS[kind].format(**context)
        return f"{_shown(value)} is out of range", bound + (f" ({described})" if described else "")
    if kind == "string_pattern_mismatch":
        return f"{_shown(value)} does not fit", described
    if kind in _PLAIN:
        said, allowed = _PLAIN[kind]
        got = "" if kind in ("missing", "string_too_short", "too_short") else f", not {_shown(value)}"
        return said + got, ": ".join(filter(None, (allowed, described)))
    if kind == "condition":
        return str(error["msg"]), str(context.get("allowed", ""))
    return f"{_shown(value)} {error['msg']}", str(context.get("allowed", described))


def _unknown_key(key: str, owner: type[Clean] | None, path: Path) -> tuple[str, str]:
    if owner is None:
        return f"unknown key {key!r}", ""
    known = list(shape.keys(owner))
    hint = close(key, known)
    if not hint:
        elsewhere = shape.belongs_in(key)
        hint = f"; it is a key of {' and '.join(elsewhere)}" if elsewhere else ""
    return f"unknown key {key!r} in {shape.title(owner, path)}{hint}", ", ".join(known)


def _shown(value: Any) -> str:
    """A value as its owner wrote it, cut to what fits a line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except ValueError:  # a number of more digits than Python prints
        return "a huge number"
    return text if len(text) <= 60 else text[:57] + "…"
