"""The supervisor of a workload, as a process of its own under a control document."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotenant.sdk.supervisor import Supervisor

ROOT = Path(__file__).resolve().parents[2]
# counts in a file ten times a second, with a child that does the same
TICKER = """
import os, sys, time
name = sys.argv[1]
if os.fork() == 0:
    os.setsid()  # so that a signal to the group alone does not reach it
    name += ".child"
while True:
    with open(name, "a") as file:
        file.write(".")
    time.sleep(0.05)
"""
MAIN = """
import sys
sys.path.insert(0, {root!r})
from cotenant.sdk.supervisor import Supervisor

def duty(value):
    with open("duties", "a") as file:
        file.write(f"{{value}}\\n")
    if value == 0.66:
        raise RuntimeError("no such batch size")

sys.exit(Supervisor({argv!r}, gpu_duty=duty, stop_grace_s=20.0).run())
"""


def until(true: Callable[[], object], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


class Workload:
    """A supervisor process in ``folder`` and its control document."""

    def __init__(self, folder: Path, argv: list[str], **first: object) -> None:
        self.folder, self.seq = folder, 0
        self._replace({"seq": 0, **first})
        code = MAIN.format(root=str(ROOT), argv=argv)
        env = {**os.environ, "OARBANK_WORKDIR": str(folder), "OARBANK_MODULE": "server"}
        with open(folder / "errors", "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=folder,
                env=env,
                stderr=errors,
                preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
            )

    def _replace(self, document: dict[str, object]) -> None:
        (self.folder / "control.tmp").write_text(json.dumps(document))
        (self.folder / "control.tmp").replace(self.folder / "control.json")

    def tell(self, **document: object) -> None:
        self.seq += 1
        self._replace({"seq": self.seq, **document})
        self.process.send_signal(signal.SIGUSR1)

    def size(self, name: str) -> int:
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0

    def duties(self) -> list[str]:
        path = self.folder / "duties"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def workload(tmp_path: Path) -> Iterator[Callable[..., Workload]]:
    made: list[Workload] = []

    def make(argv: list[str] | None = None, **first: object) -> Workload:
        made.append(Workload(tmp_path, argv or [sys.executable, "-c", TICKER, "ticks"], **first))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(60)


def test_duty_pause_resume_and_stop_of_a_whole_tree(workload: Callable[..., Workload]) -> None:
    server = workload(gpu_duty=0.4)
    until(lambda: server.size("ticks") and server.size("ticks.child"))
    assert server.duties() == ["0.4"], "told before the first process started"
    server.tell(gpu_duty=0.2)
    until(lambda: server.duties() == ["0.4", "0.2"])
    server.tell(gpu_duty=0.2, pause=True)

    def still() -> bool:
        before = server.size("ticks"), server.size("ticks.child")
        time.sleep(0.5)
        return before == (server.size("ticks"), server.size("ticks.child"))

    until(still)
    assert server.duties() == ["0.4", "0.2"], "the same duty is told once"
    before = server.size("ticks"), server.size("ticks.child")
    server.tell()
    until(lambda: server.size("ticks") > before[0] and server.size("ticks.child") > before[1])
    until(lambda: server.duties() == ["0.4", "0.2", "None"])
    server.tell(pause=True)
    until(still)
    server.tell(stop=True, reason="the owner plays")
    assert server.process.wait(60) == 75
    failure = json.loads((server.folder / "failure.json").read_text())
    assert failure == {"reason": "server/stopped", "detail": "the owner plays", "fault": "transient"}
    assert still(), "nothing of it is left"


def test_paused_at_the_start_nothing_is_started(workload: Callable[..., Workload]) -> None:
    server = workload(pause=True, gpu_duty=0.3)
    until(server.duties)
    time.sleep(0.5)
    assert not server.size("ticks")
    children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    assert [told.read_text() for told in children if told.read_text()] == [], "not even to be stopped"
    server.tell(gpu_duty=0.3)
    until(lambda: server.size("ticks"))


def test_a_duty_that_cannot_be_applied_ends_the_workload(workload: Callable[..., Workload]) -> None:
    server = workload()
    until(lambda: server.size("ticks"))
    server.tell(gpu_duty=0.66)
    assert server.process.wait(60) == 1
    assert "no such batch size" in json.loads((server.folder / "failure.json").read_text())["detail"]


def test_a_document_out_of_bounds_or_older_changes_nothing(workload: Callable[..., Workload]) -> None:
    server = workload(gpu_duty=0.4)
    until(lambda: server.size("ticks"))
    server.tell(gpu_duty=7)
    server.tell(gpu_duty="much")
    server.seq = -5
    server.tell(gpu_duty=0.9)
    server.seq = 9
    server.tell(gpu_duty=0.1)
    until(lambda: "0.1" in server.duties())
    assert server.duties() == ["0.4", "0.1"]


@pytest.mark.parametrize(
    ("code", "expected"), [("pass", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_end_of_a_process_is_the_end_of_the_workload(
    workload: Callable[..., Workload], code: str, expected: int
) -> None:
    assert workload([sys.executable, "-c", code]).process.wait(60) == expected


def test_a_process_that_ignores_term_is_killed(tmp_path: Path) -> None:
    """In this process, with work of its own beside: ``with`` in place of ``run``."""
    (tmp_path / "control.json").write_text('{"seq": 0}')
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    ready = tmp_path / "ready"
    code = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w'); time.sleep(600)"
    try:
        with Supervisor([[sys.executable, "-c", code]], workdir=tmp_path, stop_grace_s=0.2) as supervisor:
            until(ready.exists)
            assert supervisor.alive
        assert supervisor.exit_code() == 0, "closed by its own program: no failure"
        assert supervisor.processes[0].returncode == -9
        assert not supervisor.alive
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_cannot_be_started_is_told(workload: Callable[..., Workload]) -> None:
    server = workload(["/nowhere/program"])
    assert server.process.wait(60) == 1
    assert "/nowhere/program" in (server.folder / "failure.json").read_text()


@pytest.mark.parametrize("argv", ["a string", [], [[]], ["a", ["b"]]])
def test_no_shell(argv: object) -> None:
    with pytest.raises(ValueError, match="no shell"):
        Supervisor(argv)  # type: ignore[arg-type]
