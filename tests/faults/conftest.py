from __future__ import annotations

from tests.node.conftest import measured, rig

__all__ = ["measured", "rig"]
