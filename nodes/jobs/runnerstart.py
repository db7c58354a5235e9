"""From a fork of the launcher to the runner's first instruction. Standard library only, loaded by its path (``launcher.py``)."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from typing import Any

__all__ = ["become_runner"]

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
OOM_SCORE_ADJ = "1000"  # the highest


def become_runner(told: dict[str, Any], outputs: list[int], parent: int, go: int) -> None:
    """In the child, after the fork: everything of the launcher is put off, then the runner's program takes over.

    Args:
        told: ``launch.json``.
        outputs: write ends for standard output and error.
        parent: the launcher's pid; the runner dies with it.
        go: read end of a pipe: a byte comes once this process is in its group and stands in ``runner.json``.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)  # the launcher died between fork and prctl: the signal will never come
    if os.read(go, 1) != b"g":
        os._exit(127)
    # a program that changed its account (sudo, newuidmap) could not be stopped by an agent that is not root
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError, RuntimeError):
                pass
    # an early nudge must be lost, not fatal: the runner installs its handler and then reads
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()  # and so a scheduling group of its own: what lowers the runner must not slow the launcher down
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(outputs[0], 1)
    os.dup2(outputs[1], 2)
    os.closerange(3, max(256, min(os.sysconf("SC_OPEN_MAX"), 1 << 20)))
    try:
        # the kernel's own choice under memory pressure must fall on fleet work
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(OOM_SCORE_ADJ)
    except OSError:
        pass
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # the agent may be allowed it for its own thread; fleet work that took it would run before the owner's program
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    os.umask(0o077)
    os.chdir(told["cwd"])
    if told.get("start_stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
    os.execve(told["argv"][0], told["argv"], told["env"])
