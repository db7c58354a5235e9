"""A table that fits its terminal without cutting what its reader copies: an id, a code, a command stays in one piece.

Columns are narrowed only between words, and those that hold commands not at all. Where even that does not fit, each row is
its fields one after the other, and a line is broken only between two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

__all__ = ["Rows", "column_widths"]

GAP = 2


class Rows:
    """``keep`` names the columns whose cells are copied whole; a word is never broken in any column."""

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[str]], keep: Iterable[str] = ()) -> None:
        self.columns = list(columns)
        self.rows = [list(row) for row in rows]
        self.keep = set(keep)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        widths = self.widths(options.max_width)
        if widths is not None:
            yield self._table(widths)
            return
        for line in self.records(options.max_width):
            yield Text(line, no_wrap=True, overflow="ignore")

    def widths(self, room: int) -> list[int] | None:
        """A width for each column in a line of ``room`` cells, or None where they cannot all have what they need."""
        from rich.cells import cell_len

        whole, least = [], []
        for at, name in enumerate(self.columns):
            cells = [name, *(row[at] for row in self.rows)]
            whole.append(max(cell_len(line) for cell in cells for line in cell.split("\n")))
            word = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
            least.append(whole[-1] if name in self.keep else word)
        return column_widths(whole, least, room - GAP * (len(whole) - 1))

    def records(self, room: int) -> Iterator[str]:
        """Each row as ``name value  name value``, lines no longer than ``room`` where one field is not longer by itself."""
        for number, row in enumerate(self.rows):
            if number:
                yield ""
            line = ""
            for name, value in zip(self.columns, row, strict=True):
                if value == "":
                    continue
                first, *more = value.split("\n")
                field = f"{name} {first}".strip()
                if line.strip() and len(line) + GAP + len(field) > room:
                    yield line
                    line = "  "
                line = f"{line}{' ' * GAP if line.strip() else ''}{field}"
                for part in more:
                    yield line
                    line = f"    {part}"
            yield line

    def _table(self, widths: Sequence[int]) -> Table:
        from rich.table import Table
        from rich.text import Text

        made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for name, width in zip(self.columns, widths, strict=True):
            made.add_column(name, width=width, overflow="fold")
        for row in self.rows:
            made.add_row(*(Text(cell) for cell in row))
        return made


def column_widths(whole: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Widths between ``least`` and ``whole`` that fit into ``room`` together; None where ``least`` does not fit.

    What is left beyond the least goes to the columns in equal parts, none more than it has use for.
    """
    widths, left = list(least), room - sum(least)
    if left < 0:
        return None
    while left > 0 and (narrow := [at for at, width in enumerate(widths) if width < whole[at]]):
        part = max(left // len(narrow), 1)
        for at in narrow[: left if part == 1 else None]:
            more = min(part, whole[at] - widths[at], left)
            widths[at] += more
            left -= more
    return widths
