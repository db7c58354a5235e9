"""The one place that prints: an ``OperationResult`` as text (rich on a terminal, plain when piped) or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from cotenant.cli.result import OperationError, OperationResult

__all__ = ["console", "emit", "error_text", "fields", "table", "when"]

# Piped output is for scripts and files: it is not folded to a guessed terminal width.
PIPED_WIDTH = 10_000


def console(stream: IO[str] | None = None) -> Console:
    """A console on this stream; without colour, markup of its own or folding where it is no terminal."""
    from rich.console import Console

    stream = stream or sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=stream, highlight=False, no_color=True, width=PIPED_WIDTH, soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """A table that reads the same on a terminal and in a file. A cell that is None shows as "–" (unknown, never 0)."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title, title_justify="left", header_style="bold")
    for name in columns:
        made.add_column(name, overflow="fold")
    for row in rows:
        made.add_row(*(Text(_cell(cell)) for cell in row))
    return made


def fields(pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and values under each other."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(Text(name), Text(_cell(value)))
    return made


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


def emit(result: OperationResult, command: str, *, as_json: bool) -> None:
    """Print a result: data on standard output, notes and errors on standard error."""
    if as_json:
        sys.stdout.write(json.dumps(result.envelope(command), indent=2, ensure_ascii=False, default=str) + "\n")
        sys.stdout.flush()
        return
    if result.data is not None and result.view is not None:
        out = console()
        for part in result.view(result.data):
            _print(out, part)
    sys.stdout.flush()
    for message in result.messages:
        print(message, file=sys.stderr)
    for error in result.errors:
        print(error_text(error), file=sys.stderr)


def _print(out: Console, part: RenderableType) -> None:
    # Strings are text of programs and owners: never read as markup.
    if out.is_terminal:
        out.print(part, markup=False) if isinstance(part, str) else out.print(part)
        return
    with out.capture() as caught:
        out.print(part, markup=False) if isinstance(part, str) else out.print(part)
    # Cells are padded to their column; in a file that is noise.
    out.file.write("\n".join(line.rstrip() for line in caught.get().splitlines()) + "\n")
