"""JSON that may be anything: one kind of error for all that is none."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_json"]


def parse_json(text: str | bytes) -> Any:
    """As ``json.loads``. Raises ``ValueError`` also for what is nested deeper than can be read, and for bytes that are no text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested deeper than can be read") from None
