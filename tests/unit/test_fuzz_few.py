"""A few inputs of each kind on every run of the tests; ``make fuzz`` tries a hundred thousand."""

from __future__ import annotations

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_of_each_kind(name: str) -> None:
    fuzz(name, 25, rounds=2)
