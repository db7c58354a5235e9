"""The one place that prints: an ``OperationResult`` as text (rich on a terminal, plain when piped) or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from cotenant.cli.result import Form, OperationError, OperationResult
    from cotenant.cli.rows import Rows

__all__ = ["console", "emit", "error_text", "fields", "show", "table", "when"]

# Piped output is for scripts and files: it is not folded to a guessed terminal width.
PIPED_WIDTH = 10_000


def console(stream: IO[str] | None = None) -> Console:
    """A console on this stream; without colour, markup of its own or folding where it is no terminal."""
    from rich.console import Console

    stream = stream or sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False, emoji=False)
    return Console(file=stream, highlight=False, emoji=False, no_color=True, width=PIPED_WIDTH, soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, keep: Iterable[str] = ()) -> Rows:
    """A table that reads the same on a terminal and in a file. A cell that is None shows as "–" (unknown, never 0).

    ``keep``: columns of commands, which no line break may go through.
    """
    from cotenant.cli.rows import Rows

    return Rows(columns, ([_cell(cell) for cell in row] for row in rows), keep)


def fields(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values under each other; a long value is one line, so that it is copied whole."""
    shown = [(name, _cell(value)) for name, value in pairs]
    room = max((len(name) for name, _ in shown), default=0) + 2
    lines = (f"{name:<{room}}{value.replace(chr(10), chr(10) + ' ' * room)}".rstrip() for name, value in shown)
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def when(iso: str | None) -> str | None:
    """A UTC date as every command shows it: ``2026-11-29T18:43:53Z``. None stays None (unknown)."""
    return f"{iso[:19]}Z" if iso else None


def error_text(error: OperationError) -> str:
    """``what: why`` and the next step on its own line."""
    head = f"{error.what}: {error.why}" if error.what else error.why
    return f"error: {head}" + (f"\n  next: {error.remedy}" if error.remedy else "")


def emit(result: OperationResult, command: str, form: Form) -> None:
    """Print a result: data on standard output, notes and errors on standard error."""
    if form != "text":
        indent = 2 if form == "json" else None
        sys.stdout.write(json.dumps(result.envelope(command), indent=indent, ensure_ascii=False, default=str) + "\n")
        sys.stdout.flush()
        return
    if result.data is not None and result.view is not None:
        out = console()
        for part in result.view(result.data):
            show(out, part)
    sys.stdout.flush()
    for message in result.messages:
        print(message, file=sys.stderr)
    for error in result.errors:
        print(error_text(error), file=sys.stderr)


def show(out: Console, part: RenderableType) -> None:
    """Print one part of an answer. Strings are text of programs and owners: never read as markup, and never broken by us,
    since a command that is broken into two lines cannot be copied."""
    if out.is_terminal:
        out.print(part, markup=False, soft_wrap=True) if isinstance(part, str) else out.print(part, crop=False)
        return
    if isinstance(part, str):
        out.file.write(part + "\n")
        return
    with out.capture() as caught:
        out.print(part)
    # Cells are padded to their column; in a file that is noise.
    out.file.write("\n".join(line.rstrip() for line in caught.get().splitlines()) + "\n")
