"""A child in a session of its own: waited for without being collected, then ended with all that is in its group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from nodes.clock import monotonic_s

__all__ = ["end_group", "ended_within"]

LOOK_S = 0.02
# SIGKILL takes no longer, unless the process waits in the kernel for something that does not answer.
GONE_WITHIN_S = 5.0


def ended_within(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether it ended. It is not collected: until ``end_group`` its number, and its group's, are nobody else's."""
    until_s = monotonic_s() + limit_s
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if monotonic_s() >= until_s:
            return False
        time.sleep(LOOK_S)
    return True


def end_group(process: subprocess.Popen[bytes], within_s: float = GONE_WITHIN_S) -> bool:
    """Kill its group and collect it (``returncode`` is known then); False where it survives that.

    For a child that began a session and was not collected yet. What left its group goes on.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True
