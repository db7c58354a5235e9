"""The map and the table of imports in ``docs/architecture.md`` against the modules and the contracts that the linter keeps."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import pytest

from scripts.module_map import PAGE, ROOT, block, mapped, page_with

TEXT = PAGE.read_text(encoding="utf-8")
RENEW = "run: make map"


def test_every_module_is_in_the_map() -> None:
    here = {path.relative_to(ROOT).as_posix() for top in _tops() for path in (ROOT / top).rglob("*.py")}
    here = {name for name in here if not name.endswith("__init__.py") and "/." not in name}
    assert sorted(here - set(mapped(TEXT))) == [], RENEW


@pytest.mark.parametrize("top", ["policies", "nodes", "cotenant", "tasks", "flows", "modules"])
def test_every_line_of_the_map_names_what_is_there(top: str) -> None:
    named = [name for name in mapped(TEXT) if name.startswith(f"{top}/")]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == [], RENEW


def test_the_maps_words_are_those_of_the_docstrings() -> None:
    assert page_with(TEXT) == TEXT, RENEW


def test_a_map_that_misses_a_module_is_found() -> None:
    line = next(line for line in block().splitlines() if line.startswith("  admission.py"))
    assert "policies/admission.py" not in mapped(TEXT.replace(f"{line}\n", ""))
    assert page_with(TEXT.replace(f"{line}\n", "")) == TEXT


# -- who may import whom -----------------------------------------------------------------------------------------------


@dataclass
class Contracts:
    """What the contracts forbid between parts of the project; ``ignored`` are the imports that one of them lets pass."""

    forbidden: set[tuple[str, str]] = field(default_factory=set)
    ignored: dict[tuple[str, str], set[tuple[str, str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, raw: list[dict[str, Any]]) -> Contracts:
        made = cls()
        for contract in raw:
            pairs = (
                set(permutations(contract["modules"], 2))
                if contract["type"] == "independence"
                else {(a, b) for a in contract["source_modules"] for b in contract["forbidden_modules"]}
            )
            lets = {tuple(line.split(" -> ")) for line in contract.get("ignore_imports", ())}
            made.forbidden |= pairs
            for pair in pairs:
                made.ignored[pair] = {(a.removesuffix(".**"), b) for a, b in lets}
        return made

    def forbid(self, source: str, target: str) -> bool:
        for a, b in self.forbidden:
            if _within(source, a) and _within(target, b):
                lets = any(_within(source, x) and _within(target, y) for x, y in self.ignored[a, b])
                if not lets:
                    return True
        return False


def _within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def _tops() -> list[str]:
    return sorted({name.split("/")[0] for name in mapped(TEXT)})


def _drawn(text: str) -> dict[str, set[str]]:
    """part -> what of the project it may import, from the table."""
    table = text.partition("| part | imports of the project |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([\w.]+)`", "|".join(line.split("|")[1:3])) for line in table.splitlines()[2:]]
    return {row[0]: set(row[1:]) for row in rows}


CONTRACTS = Contracts.of(
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
)
DRAWN = _drawn(TEXT)


def _disagreements(part: str, drawn: dict[str, set[str]]) -> list[str]:
    """A part may import what its row names and nothing else of the project: each other part is forbidden to it."""
    found = []
    for other in {*drawn, "cotenant.demo"}:
        if _within(other, part) or (_within(part, other) and other not in drawn[part]):
            continue
        if CONTRACTS.forbid(part, other) == (other in drawn[part]):
            found.append(f"{part} -> {other}")
    found += [f"{part} -> {target}" for target in drawn[part] if CONTRACTS.forbid(part, target)]
    return sorted(set(found))


@pytest.mark.parametrize("part", DRAWN)
def test_what_the_table_draws_is_what_the_linter_keeps(part: str) -> None:
    assert _disagreements(part, DRAWN) == []


def test_the_table_has_every_part() -> None:
    packages = {f"cotenant.{path.parent.name}" for path in (ROOT / "cotenant").glob("*/__init__.py")}
    assert {"policies", "nodes", "tasks", "flows", *packages} <= set(DRAWN)


@pytest.mark.parametrize(
    ("row", "wrong", "arrow"),
    [
        ("| `cotenant.store` | `policies` |", "| `cotenant.store` | `policies`, `nodes` |", "cotenant.store -> nodes"),
        ("| `cotenant.store` | `policies` |", "| `cotenant.store` | nothing |", "cotenant.store -> policies"),
        ("| `tasks` | `policies`, ", "| `tasks` | `policies`, `nodes.jobs`, ", "tasks -> nodes.jobs"),
    ],
)
def test_a_wrong_arrow_is_found(row: str, wrong: str, arrow: str) -> None:
    assert row in TEXT
    part = row.split("`")[1]
    assert arrow in _disagreements(part, _drawn(TEXT.replace(row, wrong)))
