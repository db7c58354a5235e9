"""What the documentation says to type, write and follow exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cotenant.cli.main import app
from cotenant.settings import ENV_PREFIX, Settings
from policies.harness.honesty import rare_harm_share
from policies.manifest import parse_manifest
from policies.section import models, parse_section
from policies.section.values import Clean

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Added with the first release's screenshots; every other link must lead somewhere.
MAY_BE_MISSING = "docs/pictures/report.png"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What may stand before a command: variables for it, and who runs it.
_BEFORE = re.compile(r"^(?:[A-Z_]+=\S+ |sudo )+")
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _blocks(path: Path, language: str | None = None) -> list[str]:
    found = _FENCE.findall(path.read_text(encoding="utf-8"))
    return [text for kind, text in found if language is None or kind == language]


def _commands(path: Path) -> Iterator[tuple[str, bool]]:
    """Each command line and whether it is written out whole (in a block), not only named in a sentence."""
    for block in _blocks(path, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if (found := _BEFORE.sub("", line.strip())) and found.startswith("cotenant "):
                yield found, True
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    for span in _INLINE.findall(prose):
        found = _BEFORE.sub("", span)
        if found.startswith("cotenant "):
            yield found, False


COMMANDS = [(_page(path), line, whole) for path in PAGES for line, whole in _commands(path)]


def _complaint(line: str, *, whole: bool) -> str | None:
    """Why the command line would not be understood; None: it would. Nothing is run."""
    command: Any = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    path = "cotenant"
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return f"{path} has no command {name!r}"
        command, path = command.commands[name], f"{path} {name}"
    if (not words and not whole) or words == ["--help"]:
        return None
    if hasattr(command, "commands"):
        return f"{path} is a group, which {' '.join(words) or 'alone'} does nothing"
    try:
        command.make_context(path, list(words))
    except Exception as error:  # the parser's own, whichever package it comes from
        said = getattr(error, "format_message", None)
        if said is None:
            raise
        return f"{path}: {said()}"
    return None


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) > 30
    assert {page for page, _, _ in COMMANDS} >= {
        "README.md",
        "docs/protection.md",
        "docs/harness.md",
        "docs/modules.md",
    }


@pytest.mark.parametrize(("page", "line", "whole"), COMMANDS)
def test_a_command_that_is_written_down_would_be_understood(page: str, line: str, whole: bool) -> None:
    complaint = _complaint(line, whole=whole)
    assert complaint is None, f"{page}: {line}: {complaint}"


@pytest.mark.parametrize(
    "line",
    [
        "cotenant protect set local x.toml",
        "cotenant protection ab strat local",
        "cotenant protection ab start local --rule x --dutty 0.3",
        "cotenant protection ab start local",
        "cotenant protection set local a b c",
        "cotenant protection ab start local --rule x --blocks many",
        "cotenant protection",
    ],
)
def test_the_check_finds_what_is_wrong(line: str) -> None:
    assert _complaint(line, whole=True) is not None


def test_what_the_daily_tasks_leave_to_be_filled_in_is_explained_above_them() -> None:
    """Between the heading and the table of tasks every word that stands for something has its line."""
    tasks = (ROOT / "README.md").read_text(encoding="utf-8").split("## Daily tasks")[1].split("\n## ")[0]
    words, table = tasks.split("| to | do |")
    commands = " ".join(
        span for span in _INLINE.findall(table.split("A section for")[0]) if span.startswith("cotenant ")
    )
    stands_for = set(re.findall(r"(?<![-\w])[A-Z]{3,}(?!\w)", commands)) | {"local", "llmserve/selftest", "duty"}
    assert {"RUN", "FILE", "MODULE"} <= stands_for
    explained = {span.strip("`*") for span in re.findall(r"^\| ([^|]+) \| [^|]{20,} \|$", words, re.MULTILINE)}
    assert stands_for <= explained
    assert "trainer" in words


@pytest.mark.parametrize("path", PAGES, ids=_page)
def test_every_section_and_manifest_that_is_shown_is_accepted(path: Path) -> None:
    for block in _blocks(path, "toml"):
        if "[[rule]]" in block:
            assert parse_section(block).rules
        else:
            assert parse_manifest(block).stages


def test_both_kinds_of_example_are_there() -> None:
    shown = [block for block in _blocks(ROOT / "docs/protection.md", "toml") if "[[rule]]" in block]
    assert len(shown) >= 2
    assert _blocks(ROOT / "docs/modules.md", "toml")


def _models(model: type[Clean]) -> Iterator[type[Clean]]:
    yield model
    for sub in model.__subclasses__():
        yield from _models(sub)


@pytest.mark.parametrize("key", sorted({f.alias or name for m in _models(Clean) for name, f in m.model_fields.items()}))
def test_every_key_of_the_schema_stands_in_the_reference(key: str) -> None:
    text = (ROOT / "docs/protection.md").read_text(encoding="utf-8")
    assert re.search(rf"(?<![\w]){re.escape(key)}(?![\w])", text), key


@pytest.mark.parametrize("model", [models.Node, models.Memory, models.Defaults])
def test_defaults_in_the_reference_are_those_of_the_schema(model: type[Clean]) -> None:
    text = (ROOT / "docs/protection.md").read_text(encoding="utf-8")
    for name, field in model.model_fields.items():
        if isinstance(field.default, Clean):
            continue
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        told = row.split(" | ")[2].strip("` ")
        value = str(field.default).lower() if isinstance(field.default, bool) else field.default
        assert told == (f"{value:g}" if isinstance(value, float) else value), name


def test_the_cooldown_in_the_reference_is_that_of_the_schema() -> None:
    text = (ROOT / "docs/protection.md").read_text(encoding="utf-8")
    cooldown = models.Cooldown()
    told = f"| {cooldown.base_s:g}, {cooldown.max_s:g}, {cooldown.backoff:g}, {cooldown.window_s:g} |"
    assert told in text


def test_the_bound_on_rare_harm_is_the_one_that_reports_print() -> None:
    text = " ".join((ROOT / "docs/harness.md").read_text(encoding="utf-8").split())
    told = [f"{100 * rare_harm_share(n):.0f} %" for n in (8, 12)]
    assert f"fewer than {told[0]} of ON windows after 8 blocks, fewer than {told[1]} after 12" in text


def _anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md"], ids=_page)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() and target == ROOT / MAY_BE_MISSING:
            continue
        assert target.exists(), f"{_page(path)}: {link}"
        assert not anchor or anchor in _anchors(target), f"{_page(path)}: {link}"


def test_every_variable_of_ours_that_is_named_is_read() -> None:
    ours = {ENV_PREFIX + name.upper() for name in Settings.model_fields} | {"COTENANT_BENCH_STORE"}
    for path in PAGES:
        named = set(re.findall(r"\bCOTENANT_[A-Z_]+", path.read_text(encoding="utf-8")))
        assert named <= ours, f"{_page(path)}: {sorted(named - ours)}"


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    for path in PAGES:
        named = set(re.findall(r"\bmake ([a-z][a-z-]*)", " ".join([*_blocks(path, "sh"), *_inline_make(path)])))
        assert named <= known, f"{_page(path)}: {sorted(named - known)}"


def _inline_make(path: Path) -> list[str]:
    return [span for span in _INLINE.findall(path.read_text(encoding="utf-8")) if span.startswith("make ")]
