"""Instants: times that are compared with each other, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["aware_utc"]


def aware_utc(when: datetime) -> datetime:
    """In UTC. Arithmetic between two times of one zone ignores its clock changes, so nothing is compared elsewhere.

    Raises:
        ValueError: it has no offset, or lies outside of what can be told in UTC.
    """
    if when.tzinfo is None or when.utcoffset() is None:
        raise ValueError(f"a date without an offset is no instant: {when.isoformat()}")
    try:
        return when.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"a date at the end of all dates is no instant: {when.isoformat()}") from error
