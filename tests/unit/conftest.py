from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit import llmserve_rig
from tests.unit.governor_ticks import CLEAN, Node


@pytest.fixture(scope="module")
def bundle() -> Iterator[None]:
    """The llmserve runner's modules can be imported, by ``llmserve_rig.load``."""
    with llmserve_rig.importable():
        yield


@pytest.fixture
def running() -> Node:
    """A node whose budget has just started at the ceiling, 0.35."""
    node = Node()
    node.run(CLEAN, 62.0)
    assert (node.state.name, node.out.budget) == ("running", 0.35)
    return node
