"""`up` and `down` with the real pieces: server, agent, worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.cli.uplog import STOP_ORDER, note_of, read_all
from cotenant.signals import end, send
from nodes.client import AgentClient, AgentUnreachable, socket_path
from nodes.identity import ProcessId, identify, liveness, noted
from tests.node.agent_rig import typed

# The first start of a Prefect server makes its database; beside two busy cores that takes minutes.
LONG_S = 900.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


class Home:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("COTENANT_", "PREFECT_"))}
        self.env |= {
            "COTENANT_HOME": str(home),
            "COTENANT_SERVER_START_S": str(LONG_S),
            "COTENANT_WORKER_START_S": str(LONG_S),
            "COTENANT_AGENT_START_S": str(LONG_S),
        }

    def cotenant(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return typed(self.env, *arguments, limit_s=3 * LONG_S)

    def who(self, piece: str) -> ProcessId | None:
        return noted(note_of(self.home, "local", piece))

    def living(self) -> dict[str, ProcessId]:
        found = {piece: self.who(piece) for piece in STOP_ORDER}
        return {piece: who for piece, who in found.items() if who is not None and liveness(who) != "gone"}

    def agent(self) -> dict[str, Any] | None:
        try:
            return dict(AgentClient(socket_path(self.home, "local")).call("hello", _timeout_s=5.0))
        except AgentUnreachable:
            return None


def await_that(what: Callable[[], Any], why: str) -> Any:
    until = time.monotonic() + LONG_S
    while not (found := what()):
        assert time.monotonic() < until, why
        time.sleep(0.2)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "h")
    try:
        yield made
    finally:
        for log in read_all(made.home):
            end(log.supervisor, 60.0)
        for who in made.living().values():
            end(who, 60.0)


def test_up_brings_everything_up_and_down_ends_it_even_without_its_supervisor(home: Home) -> None:
    up = home.cotenant("up", "--detach")
    assert up.returncode == 0, up.stderr
    assert list(home.living()) == list(STOP_ORDER)

    status = home.cotenant("status", "--json")
    assert status.returncode == 0, status.stdout
    (node,) = json.loads(status.stdout)["data"]["nodes"]
    assert (node["agent"], node["worker"], node["looked_after_by"]["how"]) == ("running", "running", "up")

    again = home.cotenant("up")
    assert again.returncode == 0
    assert "looked after already" in again.stderr

    before = home.who("agent")
    assert before is not None
    assert send(before, signal.SIGKILL)
    after = await_that(
        lambda: (said := home.agent()) and said["pid"] != before.pid and said, "the agent was not started again"
    )
    assert home.who("agent") == ProcessId(after["pid"], after["start_ticks"], after["boot_id"])
    assert "agent: died (signal SIGKILL)" in (home.home / "logs" / "up-local.log").read_text()

    (log,) = read_all(home.home)
    assert send(log.supervisor, signal.SIGKILL)
    await_that(lambda: liveness(log.supervisor) == "gone", "the supervisor survives SIGKILL")
    left = home.living()
    assert list(left) == list(STOP_ORDER)
    down = home.cotenant("down")
    assert down.returncode == 0, down.stderr
    assert all(liveness(who) == "gone" for who in left.values())
    assert read_all(home.home) == []


def test_down_leaves_alone_what_up_did_not_start(home: Home) -> None:
    command = [sys.executable, "-m", "nodes.agent", "--home", str(home.home), "--node", "local"]
    process = subprocess.Popen(command, env=home.env, cwd=Path(__file__).parents[2])
    try:
        await_that(home.agent, "the agent does not answer")
        assert home.cotenant("up", "--detach").returncode == 0
        down = home.cotenant("down", "--json")
        assert down.returncode == 0
        assert {row["piece"] for row in json.loads(down.stdout)["data"]["stopped"]} == {"up", "worker", "server"}
        assert home.living() == {}
        assert home.agent() is not None
        assert identify(process.pid) is not None
    finally:
        process.terminate()
        process.wait(60.0)


def test_interrupted_while_it_starts_it_ends_what_it_had_started(home: Home) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cotenant.cli.main", "up"], env=home.env, stderr=subprocess.PIPE, text=True
    )
    try:
        server = await_that(lambda: home.living().get("server"), "the server was never started")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LONG_S)
        assert process.returncode == 0, said
        assert liveness(server) == "gone"
        assert home.living() == {}
        assert read_all(home.home) == []
    finally:
        process.kill()
        process.wait()
