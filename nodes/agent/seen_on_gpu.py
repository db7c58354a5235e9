"""Work that was seen on a GPU though its manifest says that it uses none: it counts as work on the GPU from then on.

Kept in the journal by the bundle that ran, so that a restarted agent need not see it there again first.
"""

from __future__ import annotations

import logging
import sqlite3

from nodes.journal import Journal

__all__ = ["SeenOnGpu"]

log = logging.getLogger(__name__)

FACT = "seen_on_gpu"

Seen = tuple[str, str, str | None]


class SeenOnGpu:
    """(module, stage, digest of its bundle). Where either digest is not known it counts as the same bundle."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal
        self._seen: set[Seen] = set()
        try:
            rows = None if journal is None else journal.fact(FACT)
            self._seen = {(str(row[0]), str(row[1]), None if row[2] is None else str(row[2])) for row in rows or ()}
        except (IndexError, TypeError, ValueError, sqlite3.Error) as error:
            log.warning(
                "which work was seen on a GPU undeclared cannot be read (%s): it counts once it is seen again", error
            )

    def add(self, module: str, stage: str, digest: str | None) -> None:
        self._seen.add((module, stage, digest))
        if self._journal is None:
            return
        try:
            self._journal.set_fact(FACT, sorted(map(list, self._seen), key=str))
        except sqlite3.Error as error:
            log.warning("that %s/%s was seen on a GPU undeclared cannot be kept: %s", module, stage, error)

    def was(self, module: str, stage: str, digest: str | None) -> bool:
        return any(
            (module, stage) == (seen[0], seen[1]) and (digest is None or seen[2] is None or digest == seen[2])
            for seen in self._seen
        )
