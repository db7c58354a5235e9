"""Looking after pieces: started in order, restarted with growing waits, stopped in order, and only what was started here."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cotenant.cli.foreground import stay_up
from cotenant.cli.supervisor import Supervisor, restart_wait_s
from cotenant.cli.uplog import STOP_ORDER, NodeLock, UpLog, note_of, read_all
from cotenant.fleet.process import Background
from cotenant.settings import Settings
from cotenant.signals import end, send
from nodes.identity import ProcessId, identify, noted, own_id


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakePiece:
    def __init__(self, name: str, log: list[str], *, runs: bool = False, fails: int = 0) -> None:
        self.name, self._log, self._runs, self.fails = name, log, runs, fails
        self.why: str | None = None
        self.identity: ProcessId | None = None
        self.detail = "fake"

    def is_running(self) -> bool:
        return self._runs

    def start(self) -> None:
        self._log.append(f"start {self.name}")
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no port is free")
        self.why = None

    def use(self) -> None:
        self._log.append(f"use {self.name}")

    def stop(self) -> None:
        self._log.append(f"stop {self.name}")

    def died(self) -> str | None:
        return self.why


def supervised(pieces: list[FakePiece], clock: Clock | None = None) -> tuple[Supervisor, list[str]]:
    said: list[str] = []
    made = Supervisor(
        pieces, stop_order=STOP_ORDER, say=said.append, restart_base_s=1.0, restart_max_s=8.0, steady_s=100.0,
        clock=clock or Clock(),
    )  # fmt: skip
    return made, said


def test_started_in_order_and_stopped_worker_first_server_last() -> None:
    log: list[str] = []
    made, _ = supervised([FakePiece(name, log) for name in ("agent", "server", "worker")])
    made.start()
    made.stop()
    assert log == ["start agent", "start server", "start worker", "stop worker", "stop agent", "stop server"]


def test_what_ran_before_is_used_and_left_alone() -> None:
    log: list[str] = []
    server = FakePiece("server", log, runs=True)
    made, said = supervised([FakePiece("agent", log), server, FakePiece("worker", log)])
    made.start()
    server.why = "exit status 1"
    made.look()
    made.stop()
    assert log == ["start agent", "use server", "start worker", "stop worker", "stop agent"]
    assert any("runs already" in line for line in said)


def test_what_a_killed_supervisor_started_is_looked_after_and_stopped_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    pieces = [
        FakePiece("agent", log, runs=True),
        FakePiece("server", log, runs=True),
        FakePiece("worker", log, fails=1),
    ]
    monkeypatch.setattr("cotenant.cli.pieces.node_pieces", lambda *_, **__: pieces)
    settings = Settings.from_env({"COTENANT_HOME": str(tmp_path)})
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        who = identify(child.pid)
        assert who is not None
        for name in ("agent", "server"):  # both live; the first `up` started one of them, and is gone
            note = note_of(tmp_path, "local", name)
            note.parent.mkdir(parents=True)
            note.write_text(json.dumps(who.as_dict()))
        left = UpLog.at(tmp_path, "local", "up", ProcessId(who.pid, who.start_ticks + 1, who.boot_id))
        left.pieces = ["agent", "worker"]
        left.write()
        with pytest.raises(RuntimeError):
            stay_up(settings, "local", kind="up")
        child.kill()
    assert log == ["use agent", "use server", "start worker", "stop worker", "stop agent"]


def test_a_piece_that_does_not_start_leaves_what_was_started_to_be_stopped() -> None:
    log: list[str] = []
    made, _ = supervised([FakePiece("agent", log), FakePiece("server", log, fails=1), FakePiece("worker", log)])
    with pytest.raises(RuntimeError):
        made.start()
    made.stop()
    assert log == ["start agent", "start server", "stop agent", "stop server"]


def test_waits_double_up_to_the_longest() -> None:
    assert [restart_wait_s(n, 1.0, 8.0) for n in range(1, 7)] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_a_death_is_said_with_its_reason_and_the_start_waits() -> None:
    log: list[str] = []
    clock = Clock()
    agent = FakePiece("agent", log)
    made, said = supervised([agent], clock)
    made.start()
    agent.why = "signal SIGKILL"
    made.look()
    assert "agent: died (signal SIGKILL); it starts again in 1 s" in said
    clock.now_s = 0.9
    made.look()
    assert log == ["start agent"]
    clock.now_s = 1.0
    made.look()
    assert log == ["start agent", "start agent"]


def test_deaths_in_a_row_wait_longer_and_a_steady_life_forgives_them() -> None:
    log: list[str] = []
    clock = Clock()
    agent = FakePiece("agent", log)
    made, said = supervised([agent], clock)
    made.start()
    for _ in range(3):
        agent.why = "exit status 1"
        made.look()
        clock.now_s += 8.0
        made.look()
    assert [line.rsplit("in ", 1)[1] for line in said if "starts again" in line] == ["1 s", "2 s", "4 s"]
    clock.now_s += 100.0
    agent.why = "exit status 1"
    made.look()
    assert said[-1].endswith("in 1 s")


def test_a_restart_that_fails_is_tried_again() -> None:
    log: list[str] = []
    clock = Clock()
    worker = FakePiece("worker", log)
    made, said = supervised([FakePiece("agent", log), worker], clock)
    made.start()
    worker.why, worker.fails = "exit status 1", 1
    made.look()
    clock.now_s = 1.0
    made.look()
    assert "no port is free" in said[-1]
    clock.now_s = 3.0
    made.look()
    assert log.count("start worker") == 3
    assert made.states[1].state == "running"


def test_one_that_does_not_stop_keeps_no_other_from_being_stopped() -> None:
    log: list[str] = []
    worker = FakePiece("worker", log)

    def stuck() -> None:
        raise RuntimeError("it survives SIGKILL")

    made, said = supervised([FakePiece("agent", log), worker])
    made.start()
    worker.stop = stuck  # type: ignore[method-assign]
    made.stop()
    assert log[-1] == "stop agent"
    assert any("could not be stopped" in line for line in said)


# -- what `down` reads -------------------------------------------------------------------------------------------------


def test_the_log_of_an_up_is_read_as_written(tmp_path: Path) -> None:
    log = UpLog.at(tmp_path, "mac-01", "up", own_id())
    log.pieces = ["server", "agent", "worker"]
    log.write()
    for piece, who in {
        "server": own_id(),
        "agent": own_id(),
        "worker": ProcessId(own_id().pid, 1, own_id().boot_id),
    }.items():
        note = note_of(tmp_path, "mac-01", piece)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(who.as_dict()))
    (found,) = read_all(tmp_path)
    assert (found.node, found.kind, found.ready, found.alive) == ("mac-01", "up", False, True)
    assert list(found.living) == ["agent", "server"], "the worker's pid belongs to somebody else now"
    found.remove()
    assert read_all(tmp_path) == []


def test_what_survives_of_one_node_keeps_no_other_nodes_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cotenant.cli import machine
    from cotenant.settings import Settings

    for node in ("a", "b"):
        UpLog.at(tmp_path, node, "up", own_id()).write()
    monkeypatch.setattr(machine, "_stop", lambda log, _: [("agent", "stuck" if log.node == "a" else "ended")])
    said = machine._down(Settings(home=tmp_path), None)
    assert said.exit_code == 1
    assert [log.node for log in read_all(tmp_path)] == ["a"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"node": "a", "kind": "up", "supervisor": {"pid": "x"}}', "\x00"])
def test_a_log_that_cannot_be_read_names_nobody(text: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "up-local.json").write_text(text)
    assert read_all(tmp_path) == []
    assert noted(tmp_path / "run" / "up-local.json") is None


def test_a_node_has_one_keeper(tmp_path: Path) -> None:
    first, second = NodeLock(tmp_path, "local"), NodeLock(tmp_path, "local")
    assert first.take()
    assert not second.take()
    assert NodeLock(tmp_path, "other").take()
    first.release()
    assert second.take()


def sleeper(
    script: str = "import time; print('ready', flush=True); time.sleep(600)",
) -> tuple[subprocess.Popen[str], ProcessId]:
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    who = identify(process.pid)
    assert who is not None
    return process, who


def test_a_process_is_ended_by_its_identity_and_no_other() -> None:
    process, who = sleeper()
    try:
        stranger = ProcessId(who.pid, who.start_ticks - 1, who.boot_id)
        other_boot = ProcessId(who.pid, who.start_ticks, "another boot")
        assert not send(stranger, signal.SIGTERM)
        assert end(other_boot, 5.0) == "gone"
        assert process.poll() is None
        assert end(who, 30.0) == "ended"
        assert process.wait(10) == -signal.SIGTERM
        assert end(who, 5.0) == "gone"
    finally:
        process.kill()
        process.wait()


def test_one_that_ignores_sigterm_is_killed_at_the_deadline() -> None:
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    process, who = sleeper(ignores)
    try:
        assert end(who, 0.5) == "killed"
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_a_process_is_signalled_also_where_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    process, who = sleeper()
    try:
        monkeypatch.setattr(os, "pidfd_open", none_left)
        assert not send(ProcessId(who.pid, who.start_ticks - 1, who.boot_id), signal.SIGKILL)
        assert send(who, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_a_background_process_tells_the_end_of_its_log_and_is_ended_as_itself_alone(tmp_path: Path) -> None:
    background = Background(tmp_path / "note.json", tmp_path / "its.log")
    assert background.last_words() == ""
    words = (
        "import time\nfor line in 'abcdefgh': print(line, flush=True)\nprint('\\nready', flush=True)\ntime.sleep(600)"
    )
    process = background.start([sys.executable, "-c", words], {})
    try:
        until = time.monotonic() + 30.0
        while "ready" not in background.last_words(1):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert background.last_words(3).split() == ["g", "h", "ready"]
        who = background.identity()
        assert who is not None
        stranger = ProcessId(who.pid, who.start_ticks - 1, who.boot_id)
        background.note.write_text(json.dumps(stranger.as_dict()))
        assert background.stop() is False, "its pid belongs to somebody else now"
        assert process.poll() is None
        background.note.write_text(json.dumps(who.as_dict()))
        assert background.stop() is True
        assert process.wait(10) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


# -- the server's address ----------------------------------------------------------------------------------------------


def test_a_worker_is_started_again_where_the_server_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cotenant.cli.pieces import WorkerPiece
    from cotenant.fleet.worker_process import WorkerProcess
    from cotenant.settings import Settings

    started: list[str] = []

    def start(worker: WorkerProcess, _within_s: float) -> None:
        started.append(worker.url)
        sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
        worker.process.start(sleeps, {"PREFECT_API_URL": worker.url})

    monkeypatch.setattr(WorkerProcess, "start", start)
    noted_port = tmp_path / "prefect" / "server.json"
    noted_port.parent.mkdir()
    noted_port.write_text('{"port": 5001}')
    piece = WorkerPiece(Settings(home=tmp_path), "local")
    try:
        piece.start()
        assert piece.is_running()
        assert piece.died() is None
        first = piece.identity
        noted_port.write_text('{"starting": 5002}')
        assert piece.died() is None, "a server that is on its way has no address yet"
        noted_port.write_text('{"port": 5002}')
        assert piece.died() == "the Prefect server moved to http://127.0.0.1:5002/api"
        assert not WorkerPiece(Settings(home=tmp_path), "local").is_running(), "one left over is no use either"
        piece.start()
        assert started == ["http://127.0.0.1:5001/api", "http://127.0.0.1:5002/api"]
        assert piece.died() is None
        assert first is not None
        assert identify(first.pid) != first, "the one with the old address is gone"
    finally:
        piece.stop()


def test_nothing_is_written_to_a_server_that_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cotenant import fleet
    from cotenant.cli.pieces import ServerPiece
    from cotenant.settings import Settings
    from policies.refusal import Refused

    written: list[str] = []
    monkeypatch.setattr(fleet, "ensure_pool", written.append, raising=False)
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect" / "server.json").write_text('{"port": 5001}')
    with pytest.raises(Refused) as refusal:
        ServerPiece(Settings(home=tmp_path), print).use()
    assert refusal.value.code == "SERVER_NOT_OURS"
    assert written == []
