"""Being woken soon: the agent asks for short turns on the processor, so that its turns come early.

A task that asks the scheduler for a short slice is given no more time than before; it is given it in smaller pieces with nearer
deadlines, so that one that sleeps and wakes (as the agent does) runs before the others have used up theirs. Linux 6.12 and
later; elsewhere nothing changes. What the agent starts does not inherit it.

Measured with a process that is woken by inotify and then works for 4 ms, two cores shared with twenty others: wake to four
runners stopped 4.1 ms without and 3.1 ms with it (median of 240 each).

A thread whose work is a few tenths of a millisecond, now and then, asks to come first: real-time priority, where the system allows
it (root, ``CAP_SYS_NICE``, ``LimitRTPRIO``). With a short slice it is let in when it wakes, but has used the slice up about when it
sends its signals, and each of those wakes somebody who may then come before it.
"""

from __future__ import annotations

import ctypes
import os
import platform

__all__ = ["ask_for_short_turns", "ask_to_come_first"]

SLICE_NS = 100_000  # the shortest that the kernel grants
_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER = 0
_RESET_ON_FORK = 0x01
# The lowest there is: before all that have none, behind every other.
_PRIORITY = 1


class _SchedAttr(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def ask_for_short_turns(slice_ns: int = SLICE_NS) -> bool:
    """For the calling thread. Whether the kernel took it.

    A thread whose work fits into one slice does best with a slice that is just long enough: shorter than the others', it is let
    in when it wakes; once it has used it up, the others come first.
    """
    number = _SETATTR.get(platform.machine())
    if number is None or not hasattr(os, "sched_getscheduler") or os.sched_getscheduler(0) != _SCHED_OTHER:
        return False
    attr = _SchedAttr(
        size=ctypes.sizeof(_SchedAttr),
        policy=_SCHED_OTHER,
        flags=_RESET_ON_FORK,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime_ns=slice_ns,
    )
    try:
        return bool(ctypes.CDLL(None, use_errno=True).syscall(number, 0, ctypes.byref(attr), 0) == 0)
    except (OSError, AttributeError):
        return False


def ask_to_come_first() -> bool:
    """For the calling thread, whose work must be short: it runs before all that have no real-time priority. Whether it may."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(_PRIORITY))
    except (OSError, AttributeError):
        return False
    return True
