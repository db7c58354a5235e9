"""All of a list that a server gives in pages: the first page alone is not the list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["PAGE", "pages", "pages_async"]

T = TypeVar("T")
# The most that a Prefect server gives at once.
PAGE = 200


def pages(page: Callable[[int], list[T]]) -> list[T]:
    """All entries, from the function that asks for the page of ``PAGE`` at an offset."""
    found: list[T] = []
    while True:
        got = page(len(found))
        found += got
        if len(got) < PAGE:
            return found


async def pages_async(page: Callable[[int], Awaitable[list[T]]]) -> list[T]:
    """The same of a server that is awaited."""
    found: list[T] = []
    while True:
        got = await page(len(found))
        found += got
        if len(got) < PAGE:
            return found
