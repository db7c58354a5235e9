"""A process that has the libraries loaded and runs pytest in a child for each line it is sent.

A fresh Python needs longer for its imports than most mutants' tests run. Nothing of the project is imported before the fork:
each child reads the code as it lies there then. Lines are JSON: pytest's arguments in; exit code and output out.

A mutant of what ends processes leaves processes behind. They come to this one (it is their subreaper), which kills them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

LIBRARIES = ("hypothesis.strategies", "psutil", "pydantic", "pydantic_core", "scipy.special", "scipy.stats")


PR_SET_CHILD_SUBREAPER = 36
CLEAR_LIMIT_S = 30.0


def below(pid: int) -> list[int]:
    """All processes below ``pid``, children first."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for told in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in told.read_text().split():
                found += [int(child), *below(int(child))]
    return found


def clear_away() -> None:
    """Kill and collect what a child left, until nothing is left."""
    deadline_s = time.monotonic() + CLEAR_LIMIT_S
    while time.monotonic() < deadline_s:
        for pid in below(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in LIBRARIES:
        importlib.import_module(name)
    # The same inputs each time, and no search for the smallest one that fails: red is red.
    settings.register_profile(
        "mutants",
        derandomize=True,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            child = os.fork()
            if child == 0:
                for number in (1, 2):
                    os.dup2(said.fileno(), number)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                code = pytest.main(json.loads(line))
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            clear_away()
            said.seek(0)
            answers.write(json.dumps([code, said.read()]) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
