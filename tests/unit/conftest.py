from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit import llmserve_rig


@pytest.fixture(scope="module")
def bundle() -> Iterator[None]:
    """The llmserve runner's modules can be imported, by ``llmserve_rig.load``."""
    with llmserve_rig.importable():
        yield
