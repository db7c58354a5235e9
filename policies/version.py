"""The version of the product, and of the verbs that an agent answers."""

from __future__ import annotations

__all__ = ["AGENT_PROTOCOL", "VERSION"]

VERSION = "0.1.0"
# What agent and runner say to each other is counted in ``policies.manifest``.
AGENT_PROTOCOL = 1
