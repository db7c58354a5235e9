"""``make fuzz``: ``FUZZ_N`` inputs in all (100,000), shared by the targets; ``FUZZ_SEED`` for others. One line a target."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.targets import TARGETS

N = int(os.environ.get("FUZZ_N", "100000"))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_crashes_hangs_or_grows(name: str) -> None:
    print(f"\n{fuzz(name, -(-N // len(TARGETS)), int(os.environ.get('FUZZ_SEED', '0')))}", flush=True)
