"""Members of a fleet as homes of their own on one machine: each with its real agent and worker, and commands typed in it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from nodes.client import AgentClient, AgentUnreachable, socket_path
from tests.node.agent_rig import ROOT, Rig, typed, wait_for
from tests.postgres.conftest import Cluster

# Starting Prefect takes minutes on a busy host; these limits only end a test that would hang.
START_S, TYPED_S = 900.0, 300.0
AUTH = "ops:secret"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Member:
    """One home with one node. ``runs`` is its ``cotenant node run``, once it was started."""

    def __init__(self, home: Path, node: str, **env: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.node = home, node
        self.rig = Rig(home)
        self.rig.client = AgentClient(socket_path(home, node))
        self.runs: subprocess.Popen[bytes] | None = None
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("COTENANT_", "PREFECT_"))}
        # That flows give way to all other work has tests of its own; here it would only make them late.
        own = {"COTENANT_HOME": str(home), "COTENANT_FLOW_PRIORITY": "normal", "NO_COLOR": "1", "COLUMNS": "160"}
        limits = {f"COTENANT_{piece}_START_S": str(START_S) for piece in ("SERVER", "WORKER", "AGENT")}
        self.env = kept | own | limits | env

    def types(self, *words: str, limit_s: float = TYPED_S) -> subprocess.CompletedProcess[str]:
        return typed(self.env, *words, limit_s=limit_s)

    def asks(self, *words: str) -> Any:
        done = self.types(*words, "--json")
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-1500:]} {done.stderr[-1500:]}"
        return json.loads(done.stdout)["data"]

    def is_refused(self, *words: str) -> dict[str, Any]:
        """The one error of a command that must not work."""
        done = self.types(*words, "--json")
        assert done.returncode != 0, f"{' '.join(words)} was taken: {done.stdout[-1500:]}"
        (error,) = json.loads(done.stdout)["errors"]
        return dict(error)

    def run(self) -> None:
        with open(self.home / "node-run.log", "ab") as log:
            self.runs = subprocess.Popen(
                [sys.executable, "-m", "cotenant.cli.main", "node", "run", self.node],
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def is_up(self) -> bool:
        assert self.runs is not None
        said = (self.home / "node-run.log").read_text()
        assert self.runs.poll() is None, said[-3000:]
        return "all is up" in said

    def answers(self) -> bool:
        try:
            return bool(self.rig.client.call("hello", _timeout_s=10.0))
        except AgentUnreachable:
            return False

    def stop(self) -> None:
        self.types("down")
        if self.runs is not None and self.runs.poll() is None:
            self.runs.terminate()
            try:
                self.runs.wait(180)
            except subprocess.TimeoutExpired:
                self.runs.kill()
        self.rig.stop()


class Hub(Member):
    """The server's machine: it has the Prefect server too, on PostgreSQL, and asks for a password."""

    def __init__(self, home: Path, node: str, postgres: Cluster) -> None:
        super().__init__(
            home,
            node,
            COTENANT_NODE=node,
            COTENANT_SERVER_PORT=str(free_port()),
            COTENANT_SERVER_DATABASE_URL=postgres.url("prefect", "postgresql+asyncpg"),
            COTENANT_STORE_URL=postgres.url("cotenant"),
            COTENANT_PREFECT_AUTH_STRING=AUTH,
        )

    def up(self) -> None:
        done = self.types("up", "--detach", limit_s=3 * START_S)
        assert done.returncode == 0, done.stderr

    @property
    def server(self) -> str:
        port = json.loads((self.home / "prefect" / "server.json").read_text())["port"]
        return f"http://127.0.0.1:{port}"

    def kill_server(self) -> None:
        """The server and what would start it again, as where its machine goes down. Agent and worker live on."""
        from cotenant.cli.uplog import note_of, read_all
        from nodes.identity import noted

        (log,) = read_all(self.home)
        server = noted(note_of(self.home, self.node, "server"))
        assert server is not None
        top = psutil.Process(server.pid)
        for pid in (log.supervisor.pid, *(child.pid for child in top.children(recursive=True)), top.pid):
            os.kill(pid, signal.SIGKILL)
        wait_for("the server is gone", lambda: not top.is_running() or top.status() == psutil.STATUS_ZOMBIE, 60.0)
