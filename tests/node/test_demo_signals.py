"""A demo that is told to end, at any moment and by whoever, ends what it started and says so."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.node.agent_rig import ROOT

PATIENCE_S = 240.0
# Each import of these takes long enough that a signal is likely to come in the middle of one.
MOMENTS = ("a demo of cotenant", "agent: starting", "server: starting")


def wait_for_line(log: Path, words: str, demo: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_S
    while words not in log.read_text():
        assert demo.poll() is None, log.read_text()
        assert time.monotonic() < until, f"never said {words!r}: {log.read_text()}"
        time.sleep(0.02)


def started_in(home: str) -> list[psutil.Process]:
    """Processes whose environment or command names the demo's home."""
    found = []
    for each in psutil.process_iter():
        try:
            if home in each.environ().get("COTENANT_HOME", "") or any(home in word for word in each.cmdline()):
                found.append(each)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.parametrize("moment", MOMENTS)
def test_it_ends_all_that_it_started(tmp_path: Path, moment: str) -> None:
    log = tmp_path / "said"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-m", "cotenant.cli.main", "demo", "--out", str(tmp_path / "out")],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        wait_for_line(log, moment, demo)
        time.sleep(random.uniform(0.0, 1.0))
        demo.send_signal(random.choice((signal.SIGTERM, signal.SIGHUP, signal.SIGINT)))
        assert demo.wait(PATIENCE_S) == 1
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
    said = log.read_text()
    assert "stopping what the demo started" in said
    assert said.index("all stopped") < said.index("it was interrupted before it had an answer")
    home = re.search(r"in a home of its own: (\S+)", said)
    assert home is not None
    assert started_in(home[1]) == []
    assert not Path(home[1]).exists()


def test_it_ends_them_too_where_nobody_reads_what_it_says(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "cotenant.cli.main", "demo", "--out", str(tmp_path / "out")],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert demo.stderr is not None
    try:
        said = b""
        while b"agent: running" not in said:
            line = demo.stderr.readline()
            assert line, said
            said += line
        home = re.search(rb"in a home of its own: (\S+)", said)
        assert home is not None
        assert started_in(home[1].decode())
        demo.stderr.close()  # the terminal is closed
        demo.send_signal(signal.SIGHUP)
        assert demo.wait(PATIENCE_S) != 0
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
    assert started_in(home[1].decode()) == []
    assert not Path(home[1].decode()).exists()
