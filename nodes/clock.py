"""The clocks of this machine. Durations come from monotonic and boottime, dates are aware UTC."""

from __future__ import annotations

import time
from datetime import UTC, datetime

__all__ = ["boottime_s", "monotonic_s", "utc_iso", "utc_now"]


def monotonic_s() -> float:
    """Seconds; stands still while the machine sleeps."""
    return time.monotonic()


def boottime_s() -> float:
    """Seconds since boot; runs on through suspend. The difference to monotonic tells a suspend."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


def utc_now() -> datetime:
    return datetime.now(UTC)


def utc_iso(when: datetime | None = None) -> str:
    """ISO 8601 with offset, e.g. ``2026-11-29T13:15:41.123456+00:00``."""
    return (when or utc_now()).isoformat()
