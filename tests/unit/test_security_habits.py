"""Habits that keep strangers' bytes from becoming code, in all of the product's own modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("policies", "nodes", "tasks", "flows", "cotenant", "modules")
# Reading one of these is running it.
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]}
    return set()


@pytest.fixture(scope="module")
def parsed() -> list[tuple[str, ast.Module]]:
    found = list(trees())
    assert len(found) > 100, "the packages are there"
    return found


def test_nothing_is_unpickled(parsed: list[tuple[str, ast.Module]]) -> None:
    bad = [name for name, tree in parsed for node in ast.walk(tree) if imported(node) & FORBIDDEN_MODULES]
    assert bad == []


def test_no_text_is_run_and_no_shell_started(parsed: list[tuple[str, ast.Module]]) -> None:
    bad = []
    for name, tree in parsed:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                bad.append(f"{name}:{node.lineno} {node.func.id}")
            shell = any(
                word.arg == "shell" and not (isinstance(word.value, ast.Constant) and word.value.value is False)
                for word in node.keywords
            )
            if shell or ast.unparse(node.func) in ("os.system", "os.popen"):
                bad.append(f"{name}:{node.lineno} a shell")
    assert bad == []
