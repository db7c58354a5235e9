"""The version of the product and of the contracts it speaks."""

from __future__ import annotations

__all__ = ["PROTOCOL", "VERSION"]

VERSION = "0.1.0"
PROTOCOL = 1
