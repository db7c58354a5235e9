"""Whether the machine runs on mains or on battery (a change in a block leaves it out)."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["power_source"]


def power_source(sys: Path = Path("/sys")) -> str | None:
    """ "mains", "battery", or None where the system does not say (most servers)."""
    online = None
    try:
        supplies = sys / "class/power_supply"
        for name in os.listdir(supplies):
            supply = supplies / name
            kind = (supply / "type").read_text().strip()
            if kind in ("Mains", "USB"):
                online = bool(online) or (supply / "online").read_text().strip() == "1"
    except OSError:
        return None
    return None if online is None else "mains" if online else "battery"
