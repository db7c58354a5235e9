"""How many file descriptors the tests' process has: counted the same before and after whatever is judged by them."""

from __future__ import annotations

import gc
import os

__all__ = ["open_descriptors"]


def open_descriptors() -> int:
    """Once what earlier tests left to be collected is: it would close its own in between."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
