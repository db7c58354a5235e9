"""Keeping a flow's process asleep while it waits for a block.

Prefect 3.9 watches a deployed flow run for being suspended in a thread that wakes five times a second to see whether it
should stop: 0.14 % of a core on a slow one, all night, beside the program that is being measured. There is no setting
for it. The watch itself works by events and stays as it is; only its waking is made rarer.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

__all__ = ["WAKE_EVERY_S", "watch_rarely"]

WAKE_EVERY_S = 2.0


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(max(seconds, WAKE_EVERY_S))


def watch_rarely() -> bool:
    """Call before the flow starts. False, and nothing changed, where this Prefect is made otherwise."""
    try:
        from prefect import _flow_run_suspension as suspension
    except ImportError:
        return False
    if getattr(suspension, "asyncio", None) is not asyncio:
        return False
    suspension.asyncio = SimpleNamespace(run=asyncio.run, sleep=_sleep)  # type: ignore[assignment]
    return True
