"""The launcher's parent: it waits, and kills what the launcher leaves when it dies before its work is done.

Standard library only, loaded by its path (``launcher.py``). While launcher and guardian live, neither an orphan nor a process in a
session of its own can leave them: orphans come to the nearest subreaper, the launcher, and at its death to this process. So an agent
and a launcher that are killed together leave nothing running. Where the guardian dies, the launcher is told by SIGTERM.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodes.jobs import proctree
else:
    import proctree

__all__ = ["watch_over"]

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def watch_over(launch: Callable[[], int]) -> int:
    """Run ``launch`` in a child and wait for it; then kill what is left below this process. The child's exit status."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guardian = os.getpid()
    # None of them ends this process or comes in between: each is taken up in the loop below, or by nobody any more.
    watched = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    launcher = os.fork()
    if launcher == 0:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != guardian:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = 1
        try:
            code = launch()
        finally:
            sys.stderr.flush()
            os._exit(code)
    while True:
        number = signal.sigwait(watched)
        if number != signal.SIGCHLD:
            # what is meant for the attempt goes to its launcher, our own child that we have not collected
            os.kill(launcher, number)
        elif os.waitid(os.P_PID, launcher, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
    _, status = os.waitpid(launcher, 0)
    _clear_away()
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1


def _clear_away() -> None:
    system = proctree.ProcSystem()
    me = system.stat(os.getpid())
    assert me is not None
    pause_s = 0.002
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        below = proctree.walk(system, [(me.pid, me.start_ticks)])[1:]
        proctree.signal_tree(system, below, signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2.0, 0.25)
