from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.beside import Beside
from tests.node.conftest import measured, rig

__all__ = ["measured", "node", "rig"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Beside]:
    """A home, and the folder of a program whose source is watched; no agent runs yet."""
    home, place = tmp_path / "home", tmp_path / "program"
    for folder in (home, place):
        folder.mkdir()
    found = Beside(home, place)
    yield found
    found.stop()
