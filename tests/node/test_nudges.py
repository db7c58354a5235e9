"""A nudge tells a runner to read its control document; it never ends one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nodes.jobs.proctree import ProcSystem

# catches, takes its handler back (as an interpreter does that leaves), and says what it caught when it is told to go on
RUNNER = """
import signal, sys
caught = []
signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
for line in sys.stdin:
    if line == "default\\n":
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    if line == "ignore\\n":
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    print(len(caught), flush=True)
"""


@pytest.fixture
def runner() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield child
    child.kill()
    child.communicate(timeout=60)


def said(runner: subprocess.Popen[str], line: str) -> str:
    assert runner.stdin is not None
    assert runner.stdout is not None
    runner.stdin.write(line + "\n")
    runner.stdin.flush()
    return runner.stdout.readline().strip()


@pytest.mark.parametrize("leaving", ["default", "ignore"])
def test_a_nudge_reaches_who_listens_and_ends_nobody(runner: subprocess.Popen[str], leaving: str) -> None:
    assert said(runner, "") == "0", "it listens"
    system = ProcSystem()
    me = system.stat(runner.pid)
    assert me is not None
    assert system.kill(runner.pid, me.start_ticks, signal.SIGUSR1)
    assert said(runner, "") == "1"
    said(runner, leaving)
    assert system.kill(runner.pid, me.start_ticks, signal.SIGUSR1), "it is still there"
    assert said(runner, "") == "1", "not ended, and not told"


def test_every_other_signal_is_sent_whatever_it_does(runner: subprocess.Popen[str]) -> None:
    assert said(runner, "") == "0"
    system = ProcSystem()
    me = system.stat(runner.pid)
    assert me is not None
    assert system.kill(runner.pid, me.start_ticks, signal.SIGTERM)
    assert runner.wait(60) == -signal.SIGTERM
