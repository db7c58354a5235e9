"""One target, many inputs: no crash, no hang, no growth."""

from __future__ import annotations

import gc
import random
import resource
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

__all__ = ["Figures", "fuzz"]

# CPU seconds of this thread that one input may take: the largest takes a thousandth of it.
ONE_INPUT_CPU_S = 5.0
REPLAYED = 200
MAX_GROWTH_BYTES = 512 * 1024


# Hypothesis remembers what it tried, some 5 KB an input: many inputs are tried in parts, each from a seed of its own.
A_PART = 20_000


@dataclass(frozen=True, slots=True)
class Figures:
    """``grown_bytes``: what the replays left in Python's own memory, ``peak_bytes`` the process's largest size so far."""

    target: str
    inputs: int
    wall_s: float
    cpu_s: float
    longest_input_s: float
    grown_bytes: int
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.target:<17} {self.inputs:>8} inputs  {self.wall_s:7.1f} s ({self.cpu_s:7.1f} s of CPU), longest "
            f"{1000 * self.longest_input_s:6.1f} ms, {self.grown_bytes / 1024:+6.0f} KiB kept, {self.peak_bytes >> 20} MiB at most"
        )


def fuzz(name: str, examples: int, start: int = 0, *, rounds: int = 8) -> Figures:
    """Try ``examples`` inputs of a target, then replay some of them and see that nothing is kept of them."""
    target, kept, rng = TARGETS[name], [], random.Random(1)
    inputs, longest_s = 0, 0.0
    wall_s, cpu_s = time.monotonic(), time.process_time()

    with target.opened() as check:

        def timed(found: Any) -> None:
            nonlocal inputs, longest_s
            began = time.thread_time()
            check(found)
            took = time.thread_time() - began
            inputs, longest_s = inputs + 1, max(longest_s, took)
            assert took < ONE_INPUT_CPU_S, f"{took:.1f} s of CPU for {found!r:.300}"

        def one(found: Any) -> None:
            timed(found)
            if len(kept) < REPLAYED:
                kept.append(found)
            elif rng.random() < REPLAYED / examples:
                kept[rng.randrange(REPLAYED)] = found

        for part in range(-(-examples // A_PART)):
            _try(target.inputs, one, min(A_PART, examples - part * A_PART), start * 1_000_003 + part)
        tried = inputs
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
    return Figures(
        name,
        tried,
        time.monotonic() - wall_s,
        time.process_time() - cpu_s,
        longest_s,
        grown,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _try(inputs: st.SearchStrategy[Any], check: Callable[[Any], None], examples: int, start: int) -> None:
    @seed(start)
    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    @given(inputs)
    def try_all(found: Any) -> None:
        check(found)

    try_all()
