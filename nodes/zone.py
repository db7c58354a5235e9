"""The node's time zone: its rules, not the offset of today, since an owner's hours lie across clock changes."""

from __future__ import annotations

from datetime import tzinfo

from tzlocal import get_localzone

__all__ = ["local_zone"]


def local_zone() -> tzinfo:
    """By ``TZ`` or the system's setting; UTC where neither says anything."""
    return get_localzone()
