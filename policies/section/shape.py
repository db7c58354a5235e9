"""Which model each table of a raw section is meant to be, so that errors can name what is allowed there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from policies.section.conditions import Fault
from policies.section.locate import Path
from policies.section.models import During, Protect, Section
from policies.section.sources import KINDS, phase_model, progress_model
from policies.section.values import Clean

__all__ = ["belongs_in", "description", "faults", "keys", "tables", "title"]

_BY_KEYS: dict[tuple[type[Clean], str], Callable[[Any], type[Clean] | None]] = {
    (Protect, "source"): progress_model,
    (During, "source"): phase_model,
}


def keys(model: type[Clean]) -> dict[str, str]:
    """A table's keys as written in TOML, with their descriptions, in the order of the documentation."""
    return {field.alias or name: field.description or "" for name, field in model.model_fields.items()}


def description(model: type[Clean] | None, key: str) -> str:
    return "" if model is None else keys(model).get(key, "")


def title(model: type[Clean], path: Path) -> str:
    """What a table is called in an error: ``[node.memory]``, ``[[rule]]``, or a source's kind."""
    kind = next((tag for tag, known in KINDS.items() if known is model), None)
    if kind is not None:
        return kind.strip("<>")
    names = [str(part) for part in path if isinstance(part, str)]
    if not names:
        return "the section"
    dotted = ".".join(names)
    return f"[[{dotted}]]" if isinstance(path[-1], int) else f"[{dotted}]"


def belongs_in(key: str) -> list[str]:
    """Names of the tables of the schema that have ``key``."""
    return [name for name, model in _named_models() if key in keys(model)]


def tables(raw: Mapping[str, Any]) -> dict[Path, type[Clean]]:
    """Path -> model of every table in ``raw`` that the schema knows."""
    return {path: model for path, model, _ in _walk(Section, raw, ())}


def faults(raw: Mapping[str, Any]) -> Iterator[tuple[Path, Fault]]:
    """Every contradiction between keys, with the path of its table."""
    for path, model, table in _walk(Section, raw, ()):
        for fault in model.faults(table):
            yield path, fault


def _walk(model: type[Clean], raw: Any, path: Path) -> Iterator[tuple[Path, type[Clean], Mapping[str, Any]]]:
    if not isinstance(raw, Mapping):
        return
    yield path, model, raw
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key not in raw:
            continue
        by_keys = _BY_KEYS.get((model, key))
        if by_keys is not None:
            inner = by_keys(raw[key])
        else:
            inner = next(iter(_models_in(field.annotation)), None)
        if inner is None:
            continue
        entries = raw[key] if isinstance(raw[key], list | tuple) else None
        if entries is None:
            yield from _walk(inner, raw[key], (*path, key))
        else:
            for index, entry in enumerate(entries):
                yield from _walk(inner, entry, (*path, key, index))


def _models_in(annotation: Any) -> Iterator[type[Clean]]:
    if isinstance(annotation, type) and issubclass(annotation, Clean):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _named_models() -> Iterator[tuple[str, type[Clean]]]:
    """Every table of the schema once, by the name an owner would look for."""
    seen: set[type[Clean]] = set()
    waiting: list[tuple[str, type[Clean]]] = [("the section", Section)]
    while waiting:
        name, model = waiting.pop(0)
        if model in seen:
            continue
        seen.add(model)
        yield name, model
        for field_name, field in model.model_fields.items():
            key = field.alias or field_name
            waiting.extend((key, inner) for inner in _models_in(field.annotation))
