"""Ending a process that we know by identity, never by a pid alone."""

from __future__ import annotations

import os
import signal
import time

from nodes.identity import ProcessId, liveness

__all__ = ["end", "send"]

LOOK_EVERY_S = 0.1


def send(who: ProcessId, what: signal.Signals) -> bool:
    """Signal this very process; False when it is gone.

    The process is pinned by a descriptor before its identity is checked, so the signal cannot hit a later one that was
    given the same pid in between. Where none is to be had (another system, no descriptor left) the identity is checked
    just before.
    """
    try:
        pinned = os.pidfd_open(who.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        if liveness(who) == "gone":
            return False
        os.kill(who.pid, what)
        return True
    try:
        if liveness(who) == "gone":
            return False
        signal.pidfd_send_signal(pinned, what)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pinned)


def end(who: ProcessId, deadline_s: float) -> str:
    """SIGTERM, and SIGKILL at the deadline. Returns "gone" (it was), "ended", "killed" or "stuck"."""
    if not send(who, signal.SIGTERM):
        return "gone"
    if _gone_within(who, deadline_s):
        return "ended"
    send(who, signal.SIGKILL)
    return "killed" if _gone_within(who, 10.0) else "stuck"


def _gone_within(who: ProcessId, deadline_s: float) -> bool:
    until = time.monotonic() + deadline_s
    while liveness(who) != "gone":
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_EVERY_S)
    return True
