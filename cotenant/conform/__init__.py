"""``cotenant sdk conform``: whether a module keeps the runner protocol and its duty, measured from outside."""

from cotenant.conform.check import Check, summary
from cotenant.conform.kit import conform

__all__ = ["Check", "conform", "summary"]
