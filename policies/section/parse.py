"""From TOML text to a section, or to every error in it at once (protection.md)."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from policies.section import shape
from policies.section.errors import SectionError, SectionErrors, in_words
from policies.section.locate import Path, TooDeep, line_of, locate
from policies.section.models import Section

__all__ = ["MAX_BYTES", "SectionError", "SectionErrors", "digest", "parse_section"]

MAX_BYTES = 256 * 1024


def digest(text: str) -> str:
    """sha256 of the section's text, as hex: the same text, the same section."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parse_section(text: str) -> Section:
    """The section that ``text`` holds.

    Raises ``SectionErrors`` with every error: each with its key, rule, line and what is allowed.
    """
    raw, lines = _read(text)
    problems = list(_problems(raw))
    if problems:
        raise SectionErrors(_error(raw, lines, *problem) for problem in problems)
    return Section.model_validate(raw)


def _read(text: str) -> tuple[dict[str, Any], dict[Path, int]]:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        message = f"the section has {size} bytes, more than a section may have"
        raise SectionErrors([SectionError("", None, 1, message, f"at most {MAX_BYTES} bytes")])
    text = text.removeprefix("\ufeff")  # some editors begin a file so
    try:
        raw = tomllib.loads(text)
        return raw, locate(text)
    except (TooDeep, RecursionError):
        message = "arrays or tables are nested deeper than any section is"
        raise SectionErrors([SectionError("", None, 1, message)]) from None
    except ValueError as error:  # TOMLDecodeError, and what Python says of a number with thousands of digits
        raise SectionErrors([_syntax_error(text, str(error))]) from None


def _syntax_error(text: str, said: str) -> SectionError:
    where = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)\Z", said)
    if where is None:
        return SectionError("", None, 1, f"is no TOML: {said}")
    reason = said[: where.start()]
    if where[1] is None:
        last_line = text.rstrip().count("\n") + 1
        return SectionError("", None, last_line, f"is no TOML: {reason} at the end of the text")
    return SectionError("", None, int(where[1]), f"is no TOML: {reason}, column {where[2]}")


def _problems(raw: dict[str, Any]) -> Iterator[tuple[Path, str, str, Path]]:
    """(path, message, allowed, another path concerned) of every error."""
    tables = shape.tables(raw)
    contradicts = False
    for path, fault in shape.faults(raw):
        contradicts = True
        yield (*path, *fault.path), fault.message, fault.allowed, fault.also
    for each in _complaints(raw):
        # a contradiction between keys was found above, on the text as written, and others besides
        if each["type"] == "condition" and contradicts:
            continue
        message, allowed = in_words(each, each["loc"], tables)
        yield each["loc"], message, allowed, ()


def _complaints(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """pydantic's errors, their locations free of the unions' tags."""
    found: list[dict[str, Any]] = []
    try:
        Section.model_validate(raw)
    except ValidationError as error:
        found += [dict(each) for each in error.errors(include_url=False)]
    for each in found:
        each["loc"] = tuple(part for part in each["loc"] if not (isinstance(part, str) and part.startswith("<")))
    # a list is also called too short when its entries are wrong
    inside = {each["loc"][:-1] for each in found}
    return [each for each in found if each["type"] != "too_short" or each["loc"] not in inside]


def _error(
    raw: Mapping[str, Any], lines: Mapping[Path, int], path: Path, message: str, allowed: str, also: Path
) -> SectionError:
    if also:
        message = f"{message} (lines {line_of(lines, also)} and {line_of(lines, path)})"
    return SectionError(_dotted(path), _rule_of(raw, path), line_of(lines, path), message, allowed)


def _dotted(path: Path) -> str:
    """``rule.during.source.on[1]``: indices of arrays of tables are left to the line."""
    text = ""
    for before, part in zip((None, *path), path, strict=False):
        if isinstance(part, int):
            text += "" if before in ("rule", "during") else f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _rule_of(raw: Mapping[str, Any], path: Path) -> str | None:
    if len(path) < 2 or path[0] != "rule" or not isinstance(path[1], int):
        return None
    entry = raw["rule"][path[1]]
    name = entry.get("id") if isinstance(entry, Mapping) else None
    return name if isinstance(name, str) else f"#{path[1] + 1}"
