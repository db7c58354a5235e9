"""One target, many inputs: no crash, no hang, no growth."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from typing import Any

from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.targets import TARGETS

__all__ = ["fuzz"]

# CPU seconds of this thread that one input may take: the largest takes a thousandth of it.
ONE_INPUT_CPU_S = 5.0
REPLAYED = 200
MAX_GROWTH_BYTES = 512 * 1024


def fuzz(name: str, examples: int, start: int = 0, *, rounds: int = 8) -> None:
    """Try ``examples`` inputs of a target, then replay some of them and see that nothing is kept of them."""
    target, kept, rng = TARGETS[name], [], random.Random(1)

    with target.opened() as check:

        def timed(found: Any) -> None:
            began = time.thread_time()
            check(found)
            took = time.thread_time() - began
            assert took < ONE_INPUT_CPU_S, f"{took:.1f} s of CPU for {found!r:.300}"

        @seed(start)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )
        @given(target.inputs)
        def try_all(found: Any) -> None:
            timed(found)
            if len(kept) < REPLAYED:
                kept.append(found)
            elif rng.random() < REPLAYED / examples:
                kept[rng.randrange(REPLAYED)] = found

        try_all()
        for found in kept:  # what is cached once may stay
            timed(found)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(rounds):
            for found in kept:
                timed(found)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert grown < MAX_GROWTH_BYTES, f"{grown} bytes are kept after {rounds} rounds over {len(kept)} inputs"
