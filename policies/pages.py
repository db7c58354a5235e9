"""All of a list that a server gives in pages: the first page alone is not the list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from policies.refusal import Refused

__all__ = ["PAGE", "pages", "pages_async"]

T = TypeVar("T")
# The most that a Prefect server gives at once.
PAGE = 200
# Far beyond any fleet: a server that always has one more full page is broken.
MOST = 100_000


def pages(page: Callable[[int], list[T]]) -> list[T]:
    """All entries, from the function that asks for the page of ``PAGE`` at an offset. Raises ``Refused`` for what has no end."""
    found: list[T] = []
    while _goes_on(found, page(len(found))):
        pass
    return found


async def pages_async(page: Callable[[int], Awaitable[list[T]]]) -> list[T]:
    """The same of a server that is awaited."""
    found: list[T] = []
    while _goes_on(found, await page(len(found))):
        pass
    return found


def _goes_on(found: list[T], got: list[T]) -> bool:
    found += got
    if len(found) > MOST:
        why = f"its list has more than {MOST:,} entries, and no end in sight"
        raise Refused("SERVER_FAILED", "the Prefect server", why, "cotenant status; its log says more")
    return len(got) >= PAGE
