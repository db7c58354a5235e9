"""How a supervisor starts and ends what it runs, in this process and as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.sdk.supervisor import Supervisor
from tests.node.supervisor_rig import ROOT, processes_in, until


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A folder for a supervisor in this process; the handlers are put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    (tmp_path / "control.json").write_text('{"seq": 0}')
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_start_that_fails_half_way_leaves_no_process(here: Path) -> None:
    supervisor = Supervisor([["sleep", "300"], ["no\0name"]], workdir=here, cwd=here)
    with pytest.raises(ValueError, match="null byte"):
        supervisor.start()
    assert processes_in(here) == []
    assert supervisor.close() == 0


def test_a_second_start_is_refused(here: Path) -> None:
    supervisor = Supervisor(["true"], workdir=here, cwd=here)
    assert supervisor.run() == 0
    with pytest.raises(RuntimeError, match="make a new one"):
        supervisor.run()
    assert len(supervisor.processes) == 1


@pytest.mark.parametrize("leaving", ["interrupted", "without close"])
def test_a_program_that_leaves_ends_its_workload(tmp_path: Path, leaving: str) -> None:
    (tmp_path / "control.json").write_text('{"seq": 0}')
    (tmp_path / "x").mkdir()
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom cotenant.sdk.supervisor import Supervisor\n"
    code += f"s = Supervisor(['sh', '-c', 'touch up; exec sleep 300'], workdir={str(tmp_path)!r}, cwd='x')\n"
    code += "s.run()" if leaving == "interrupted" else "s.start(); sys.stdin.read()"
    program = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # a shell's background jobs are started with it ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until((tmp_path / "x" / "up").exists)
    if leaving == "interrupted":
        program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    assert processes_in(tmp_path / "x") == []


def test_whose_parent_failed_is_ended_too(here: Path) -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '300'], start_new_session=True); sys.stdin.read(); sys.exit(3)"
    (here / "x").mkdir()
    read, write = os.pipe()
    saved = os.dup(0)
    os.dup2(read, 0)
    supervisor = Supervisor([sys.executable, "-c", code], workdir=here, cwd=here / "x")
    try:
        supervisor.start()
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(read)
    until(lambda: len(supervisor._met) == 2)
    os.close(write)
    assert supervisor.wait(60)
    assert supervisor.exit_code() == 3
    assert processes_in(here / "x") == []


def test_who_lost_the_parent_at_once_has_the_grace(here: Path) -> None:
    child = "trap 'echo term >got; sleep 0.3; echo done >>got; exit' TERM; touch up; while :; do sleep 0.05; done"
    argv = ["sh", "-c", f"({child}) & while [ ! -e up ]; do sleep 0.01; done"]
    assert Supervisor(argv, workdir=here, cwd=here, stop_grace_s=60.0).run() == 0
    assert (here / "got").read_text() == "term\ndone\n"


def test_who_makes_children_while_it_is_ended_leaves_none(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "x").mkdir()
    code = "import os, time\nfor _ in range(400):\n if os.fork() == 0:\n  os.setsid(); time.sleep(60); os._exit(0)\n time.sleep(0.01)"
    supervisor = Supervisor([sys.executable, "-c", code], workdir=here, cwd=here / "x", stop_grace_s=5.0)
    look = supervisor._tree

    def slowly() -> list[int]:
        found = look()
        time.sleep(0.1)  # time to make one more between the look and the signal
        return found

    with supervisor:
        until(lambda: len(processes_in(here / "x")) > 2)
        monkeypatch.setattr(supervisor, "_tree", slowly)
    assert processes_in(here / "x") == []


@pytest.mark.parametrize("asked", [False, True])
def test_a_program_that_goes_on_without_a_workload_can_be_ended_by_term(here: Path, asked: bool) -> None:
    before = signal.getsignal(signal.SIGTERM)
    supervisor = Supervisor(["sleep", "300"], workdir=here, cwd=here)
    supervisor.start()
    if asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert supervisor.wait(60)
    assert supervisor.close() == (75 if asked else 0)
    # asked to stop it is leaving, and another one must not take its exit code away
    assert (signal.getsignal(signal.SIGTERM) == before) is not asked
