"""The module map of ``docs/architecture.md``, from the first sentence of each module's docstring: ``make map``."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PAGE", "ROOT", "mapped", "page_with", "words_of"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/architecture.md"
TOPS = ("policies", "nodes", "cotenant", "tasks", "flows", "modules")
# Folders that are no packages and so have no docstring of their own.
FOLDERS = {
    "modules": "Bundles, not packages: each has an environment of its own and imports the SDK alone.",
    "modules/llmserve": "The reference module: prompts answered by language models.",
    "cotenant/conform/skeleton": "What ``cotenant sdk new`` copies.",
}
WIDTH = 36
LONGEST = 130
BEGIN, END = "<!-- made by `make map` -->\n```\n", "```\n<!-- end of what `make map` made -->\n"


def words_of(path: Path) -> str:
    """The first sentence of a module's docstring. Raises ``ValueError``, by name, where there is none."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not said:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring: its first sentence is its line in the module map")
    words = re.split(r"(?<=[.?])\s", " ".join(said.split("\n\n")[0].split()))[0]
    return textwrap.shorten(words, LONGEST, placeholder=" …")


def _lines(folder: Path) -> Iterator[tuple[str, str]]:
    """(path, words) of a folder and of all modules below it, as they stand in the map."""
    name = folder.relative_to(ROOT).as_posix()
    package = folder / "__init__.py"
    yield f"{name}/", words_of(package) if package.exists() else FOLDERS[name]
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    folders = [path.parent for path in folder.glob("*/*.py")] + [path.parent.parent for path in folder.glob("*/*/*.py")]
    for path in sorted(modules):
        yield path.relative_to(ROOT).as_posix(), words_of(path)
    for path in sorted({path for path in folders if path != folder and not path.name.startswith((".", "__"))}):
        yield from _lines(path)


def block() -> str:
    """The map: a line a module, indented by its folder."""
    found = []
    for top in TOPS:
        for path, words in _lines(ROOT / top):
            depth = path.rstrip("/").count("/")
            shown = (
                path
                if depth == 0
                else "  " * depth + path.rstrip("/").rsplit("/", 1)[1] + path[len(path.rstrip("/")) :]
            )
            found.append(f"{shown:<{WIDTH}} {words.replace('``', '')}\n")
    return "".join(found)


def mapped(page: str) -> list[str]:
    """The paths of the map that stands in ``page``."""
    found: list[str] = []
    folders: list[str] = []
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        folders[depth:] = [name] if name.endswith("/") else []
        found.append("".join(folders[: depth + 1]) + ("" if name.endswith("/") else name))
    return found


def page_with(page: str) -> str:
    """``page`` with the map as it should be."""
    before, begin, rest = page.partition(BEGIN)
    if not begin or END not in rest:
        raise ValueError(f"{PAGE.name} has no place for the map: {BEGIN!r} … {END!r}")
    return before + BEGIN + block() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
