"""The flow's process waits quietly; held to its budget by ``benchmarks.quiet_windows``."""

from __future__ import annotations

import asyncio
import time

from prefect import _flow_run_suspension as suspension

import flows.ab_run  # noqa: F401 - importing the flow makes the watch wake rarely
from tasks import quiet


def test_this_prefect_still_has_the_watch_and_its_waking_is_made_rare() -> None:
    assert suspension.asyncio is not asyncio
    assert quiet.watch_rarely() is False, "a second call leaves it"
    start = time.monotonic()
    asyncio.run(suspension.asyncio.sleep(0.2))
    assert time.monotonic() - start >= quiet.WAKE_EVERY_S
