"""What the tests of the supervisor share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["ROOT", "processes_in", "until"]

ROOT = Path(__file__).resolve().parents[2]


def until(true: Callable[[], object], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes that work in ``folder``."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (one / "cwd").resolve() == folder.resolve():
                found.append((one / "cmdline").read_text().replace("\0", " ")[:80])
    return found
