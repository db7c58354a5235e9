"""Searching owners' regular expressions. A pattern such as ``(a+)+$`` may take longer than the machine will live.

How long a search may take is the caller's to say, since only it has a clock: a process that must not stand still puts its own
``Search`` in with ``search_with``, once, at its start (the agent: ``nodes.patience``). Without one, searches are not bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["MAX_SEARCHED_CHARS", "Search", "TooLong", "search", "search_with"]

# A text is searched up to here: nothing a program says of its steps, or a command line by which it is known, is longer.
MAX_SEARCHED_CHARS = 16 * 1024


class TooLong(Exception):
    """A search was given up: whether the pattern matches is not known."""


Search = Callable[[re.Pattern[str], str], re.Match[str] | None]


def _unbounded(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return pattern.search(text)


_search: Search = _unbounded


def search_with(found: Search | None) -> None:
    """Every search of this process is done so from now on; None: unbounded."""
    global _search
    _search = _unbounded if found is None else found


def search(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The first match in the first ``MAX_SEARCHED_CHARS`` of a text.

    Raises:
        TooLong: it was given up.
    """
    return _search(pattern, text[:MAX_SEARCHED_CHARS])
