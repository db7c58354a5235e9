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
from tests.node.supervisor_rig import ROOT, processes_in, until

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
import time
sys.path.insert(0, {root!r})
from cotenant.sdk.supervisor import Supervisor

def duty(value):
    with open("duties", "a") as file:
        file.write(f"{{value}}\\n")
    if value == 0.66:
        raise RuntimeError("no such batch size")

sys.exit(Supervisor({argv!r}, gpu_duty=duty, stop_grace_s=20.0).run())
"""


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

    def phase(self) -> str:
        path = self.folder / "phase"
        return path.read_text().strip() if path.exists() else ""

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
    assert processes_in(tmp_path) == [], "however it ended"


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
    until(lambda: server.phase() == "paused")
    assert server.duties() == ["0.4", "0.2"], "the same duty is told once"
    before = server.size("ticks"), server.size("ticks.child")
    server.tell()
    until(lambda: server.size("ticks") > before[0] and server.size("ticks.child") > before[1])
    until(lambda: server.duties() == ["0.4", "0.2", "None"])
    until(lambda: server.phase() == "work")
    server.tell(pause=True)
    until(still)
    until(lambda: server.phase() == "paused")
    server.tell(stop=True, reason="the owner plays")
    assert server.process.wait(60) == 75
    failure = json.loads((server.folder / "failure.json").read_text())
    assert failure == {"reason": "server/stopped", "detail": "the owner plays", "fault": "transient"}
    assert still(), "nothing of it is left"


@pytest.mark.usefixtures("handlers")
def test_a_callback_finds_the_processes_running_also_on_a_duty_that_came_during_a_pause(tmp_path: Path) -> None:
    write(tmp_path, seq=0, gpu_duty=0.9)
    told: list[tuple[float | None, str]] = []

    def state() -> str:
        return (Path("/proc") / str(supervisor.processes[0].pid) / "stat").read_text().rpartition(")")[2].split()[0]

    def duty(value: float | None) -> None:
        told.append((value, state() if supervisor.processes else "not yet there"))

    supervisor = Supervisor(["sleep", "300"], gpu_duty=duty, workdir=tmp_path, cwd=tmp_path)
    with supervisor:
        tell(tmp_path, seq=1, pause=True, gpu_duty=0.5)
        until(lambda: state() == "T")
        tell(tmp_path, seq=2, pause=True, gpu_duty=0.4)
        until(lambda: supervisor._seq == 2)
        tell(tmp_path, seq=3, gpu_duty=0.3)
        until(lambda: len(told) > 1)
        tell(tmp_path, seq=4, gpu_duty=0.2)
        until(lambda: len(told) > 2)
    assert told[0] == (0.9, "not yet there")
    assert [value for value, _ in told[1:]] == [0.3, 0.2], "while it is paused there is nothing to limit"
    assert all(seen != "T" for _, seen in told)
    assert processes_in(tmp_path) == []


def test_paused_at_the_start_nothing_is_started(workload: Callable[..., Workload]) -> None:
    server = workload(pause=True, gpu_duty=0.3)
    until(server.duties)
    time.sleep(0.5)
    assert not server.size("ticks")
    children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    assert [told.read_text() for told in children if told.read_text()] == [], "not even to be stopped"
    server.tell(gpu_duty=0.3)
    until(lambda: server.size("ticks"))


def test_while_the_document_cannot_be_read_it_is_paused(workload: Callable[..., Workload]) -> None:
    server = workload(gpu_duty=0.3)
    until(lambda: server.size("ticks") and server.size("ticks.child"))
    (server.folder / "control.json").write_text("{")
    server.process.send_signal(signal.SIGUSR1)
    until(lambda: server.phase() == "paused")
    before = server.size("ticks"), server.size("ticks.child")
    time.sleep(0.5)
    assert (server.size("ticks"), server.size("ticks.child")) == before
    (server.folder / "control.json").unlink()
    time.sleep(0.5)
    assert (server.size("ticks"), server.size("ticks.child")) == before, "it was there, so somebody took it away"
    server.tell(gpu_duty=0.3)
    until(lambda: server.size("ticks") > before[0] and server.size("ticks.child") > before[1])
    assert server.duties() == ["0.3"]


def test_where_the_first_document_cannot_be_read_nothing_is_started(tmp_path: Path, handlers: None) -> None:
    (tmp_path / "control.json").write_text("{")
    with Supervisor([sys.executable, "-c", "open('begun', 'w')"], workdir=tmp_path, cwd=tmp_path) as supervisor:
        time.sleep(0.5)
        assert not supervisor.processes
        write(tmp_path, seq=0)
        until((tmp_path / "begun").exists)


def test_a_duty_that_cannot_be_applied_ends_the_workload(workload: Callable[..., Workload]) -> None:
    server = workload()
    until(lambda: server.size("ticks") and server.size("ticks.child"))
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


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ticks(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def write(folder: Path, **document: object) -> None:
    (folder / "control.tmp").write_text(json.dumps(document))
    (folder / "control.tmp").replace(folder / "control.json")


def tell(folder: Path, **document: object) -> None:
    """To a supervisor of this process: there must be one, or the signal ends it."""
    write(folder, **document)
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.usefixtures("handlers")
def test_a_child_that_ignores_term_is_killed_also_when_its_parent_has_ended(tmp_path: Path) -> None:
    write(tmp_path, seq=0)
    deaf = TICKER.replace("os.setsid()", "os.setsid(); import signal; signal.signal(15, signal.SIG_IGN)")
    with Supervisor([sys.executable, "-c", deaf, "ticks"], workdir=tmp_path, cwd=tmp_path, stop_grace_s=1.0):
        until(lambda: ticks(tmp_path / "ticks") and ticks(tmp_path / "ticks.child"))
    assert processes_in(tmp_path) == []


@pytest.mark.usefixtures("handlers")
def test_a_server_that_pauses_itself_is_told_and_not_stopped_by_signal(tmp_path: Path) -> None:
    write(tmp_path, seq=0, pause=True, threads=3)
    told: list[object] = []
    argv = [sys.executable, "-c", TICKER.replace("if os.fork() == 0:", "if False:"), str(tmp_path / "ticks")]
    with Supervisor(argv, workdir=tmp_path, on_pause=told.append, threads=told.append) as supervisor:
        until(lambda: told == [3, True])
        until(lambda: supervisor.paused)
        assert not supervisor.processes, "begins paused: not started before it may run"
        tell(tmp_path, seq=1, threads=2)
        until(lambda: ticks(tmp_path / "ticks"))
        assert told == [3, True, 2, False]
        tell(tmp_path, seq=2, pause=True, threads=2)
        until(lambda: supervisor.paused)
        until(lambda: (tmp_path / "phase").read_text() == "paused\n")
        before = ticks(tmp_path / "ticks")
        until(lambda: ticks(tmp_path / "ticks") > before)  # it is the server's own pause, not ours
        tell(tmp_path, seq=3, threads=2)
        until(lambda: not supervisor.paused)
        assert told == [3, True, 2, False, True, False]
    assert supervisor.exit_code() == 0


@pytest.mark.usefixtures("handlers")
def test_a_pause_that_a_server_does_not_take_ends_it(tmp_path: Path) -> None:
    def refuse(pause: bool) -> None:
        raise RuntimeError("not now")

    write(tmp_path, seq=0)
    argv = [sys.executable, "-c", TICKER, str(tmp_path / "ticks")]
    with Supervisor(argv, workdir=tmp_path, on_pause=refuse, stop_grace_s=10.0) as supervisor:
        until(lambda: ticks(tmp_path / "ticks"))
        tell(tmp_path, seq=1, pause=True)
        assert supervisor.wait(60.0)
    assert supervisor.exit_code() == 1
    assert "pause could not be applied" in json.loads((tmp_path / "failure.json").read_text())["detail"]
    assert supervisor.processes[0].returncode is not None


@pytest.mark.usefixtures("handlers")
def test_of_several_processes_the_first_that_fails_ends_all(tmp_path: Path) -> None:
    write(tmp_path, seq=0)
    go = tmp_path / "go"
    fails = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\nraise SystemExit(7)"
    argvs = [
        [sys.executable, "-c", TICKER, str(tmp_path / "one")],
        [sys.executable, "-c", fails],
        [sys.executable, "-c", "pass"],
    ]
    supervisor = Supervisor(argvs, workdir=tmp_path, stop_grace_s=10.0)
    supervisor.start()
    until(lambda: ticks(tmp_path / "one"))
    until(lambda: supervisor.processes[2].pid and not Path(f"/proc/{supervisor.processes[2].pid}/exe").exists())
    assert supervisor.alive, "one that is done ends no other"
    go.touch()
    assert supervisor.wait(60.0)
    assert supervisor.exit_code() == 7
    before = ticks(tmp_path / "one"), ticks(tmp_path / "one.child")
    time.sleep(0.3)
    assert before == (ticks(tmp_path / "one"), ticks(tmp_path / "one.child")), "and nothing of them is left"


def test_what_cannot_be_started_is_told(workload: Callable[..., Workload]) -> None:
    server = workload(["/nowhere/program"])
    assert server.process.wait(60) == 1
    assert "/nowhere/program" in (server.folder / "failure.json").read_text()


@pytest.mark.parametrize("argv", ["a string", [], [[]], ["a", ["b"]]])
def test_no_shell(argv: object) -> None:
    with pytest.raises(ValueError, match="no shell"):
        Supervisor(argv)  # type: ignore[arg-type]
