"""Memory that start-up needed and the loop does not, given back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc

__all__ = ["give_back_memory"]


def give_back_memory() -> None:
    """Collect what start-up left, keep the rest out of later collections, and return free pages to the system.

    Called when start-up is over, and once more after the first judgements. Importing and building the models leaves about
    3 MiB of holes in the C library's heap, which it keeps for good unless asked (``malloc_trim`` is glibc's; elsewhere
    nothing is returned).
    """
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
