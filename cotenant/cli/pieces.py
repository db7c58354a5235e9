"""The pieces of a node as `up` sees them: the agent, the Prefect server, the worker."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.cli.agents import Agent
from cotenant.cli.failures import Unreachable
from cotenant.cli.signals import end
from nodes.identity import ProcessId, identify
from policies.refusal import Refused

if TYPE_CHECKING:
    from cotenant.cli.supervisor import Piece
    from cotenant.fleet import WorkerProcess
    from cotenant.fleet.process import Background
    from cotenant.settings import Settings

__all__ = ["AgentPiece", "log_tail", "node_pieces"]

LOG_TAIL_LINES = 6
# Flows are deployed from, and run in, the folder that this package lies in.
ROOT = Path(__file__).resolve().parents[2]


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log, to say why something did not start."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])
    except OSError:
        return ""


class AgentPiece:
    """`python -m nodes.agent` as a child in its own session, so that Ctrl-C reaches `up` alone, which stops in order."""

    name = "agent"

    def __init__(self, settings: Settings, node: str) -> None:
        self._settings = settings
        self._agent = Agent(settings, node)
        self._log = settings.logs / f"agent-{node}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: ProcessId | None = None

    @property
    def identity(self) -> ProcessId | None:
        return self._identity

    @property
    def detail(self) -> str:
        return f"pid {self._identity.pid}" if self._identity else f"node {self._agent.node}"

    def is_running(self) -> bool:
        return self._agent.is_running()

    def start(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        home, node = str(self._settings.home), self._agent.node
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nodes.agent", "--home", home, "--node", node],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # A shell's `&` leaves SIGINT ignored in what it starts, and children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self._identity = identify(self._process.pid)
        until = time.monotonic() + self._settings.agent_start_s
        while not self._agent.is_running():
            if (code := self._process.poll()) is not None:
                raise self._refused(f"its process ended with {_ending(code)}")
            if time.monotonic() >= until:
                self.stop()
                raise self._refused(f"it did not answer within {self._settings.agent_start_s:g} s")
            time.sleep(0.1)

    def use(self) -> None:
        pass

    def died(self) -> str | None:
        if self._process is None:
            return None
        code = self._process.poll()
        return None if code is None else _ending(code)

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        if self._identity is not None:
            end(self._identity, self._settings.stop_s)
        self._process.wait(timeout=5.0)

    def _refused(self, why: str) -> Refused:
        said = log_tail(self._log)
        return Refused(
            "AGENT_NOT_STARTED",
            f"agent of node {self._agent.node}",
            why + (f"; it said:\n{said}" if said else ""),
            f"see {self._log}",
        )


class ServerPiece:
    """The embedded Prefect server, with pool and deployments: a server without them takes no run."""

    name = "server"

    def __init__(self, settings: Settings, node: str, say: Callable[[str], None]) -> None:
        from cotenant.fleet import PrefectServer

        self._settings, self._node, self._say = settings, node, say
        # The port that it took before stays its own, so that links into the UI stay good.
        port = settings.server_port if PrefectServer(settings.home).url is None else None
        self._server = PrefectServer(settings.home, port)

    @property
    def identity(self) -> ProcessId | None:
        return self._server.process.identity()

    @property
    def detail(self) -> str:
        return self._settings.api_url or ""

    def is_running(self) -> bool:
        return self._server.is_running()

    def start(self) -> None:
        self._server.start(self._settings.server_start_s)
        self.use()

    def use(self) -> None:
        from cotenant import fleet

        url = str(self._server.url)
        fleet.ensure_pool(url)
        if fleet.deploy(url, ROOT, self._settings.home):
            self._say("server: flows deployed")

    def died(self) -> str | None:
        return _gone(self._server.process)

    def stop(self) -> None:
        self._server.process.stop(self._settings.stop_s)


class WorkerPiece:
    """The node's Prefect worker."""

    name = "worker"

    def __init__(self, settings: Settings, node: str) -> None:
        self._settings, self._node = settings, node
        self._worker: WorkerProcess | None = None

    def _process(self) -> WorkerProcess:
        # Made late: a server that starts now chooses its address only then.
        if self._worker is None:
            from cotenant.fleet import WorkerProcess

            url = self._settings.api_url
            if url is None:
                raise Unreachable(
                    "SERVER_UNREACHABLE",
                    "the Prefect server",
                    "there is none in this home and COTENANT_PREFECT_API_URL names no other",
                    "cotenant up",
                )
            self._worker = WorkerProcess(self._settings.home, self._node, url, ROOT)
        return self._worker

    @property
    def identity(self) -> ProcessId | None:
        return self._worker.process.identity() if self._worker is not None else None

    @property
    def detail(self) -> str:
        who = self.identity
        return f"node {self._node}, pid {who.pid}" if who is not None else f"node {self._node}"

    def is_running(self) -> bool:
        return self._process().is_running()

    def start(self) -> None:
        self._process().start(self._settings.worker_start_s)

    def use(self) -> None:
        pass

    def died(self) -> str | None:
        return _gone(self._process().process)

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.process.stop(self._settings.stop_s)


def node_pieces(settings: Settings, node: str, *, with_server: bool, say: Callable[[str], None]) -> list[Piece]:
    """The pieces of a node in the order in which they start: protection first, it needs nothing else.

    ``with_server``: `up` starts the embedded server unless the settings name another one; `node run` never does.
    """
    pieces: list[Piece] = [AgentPiece(settings, node)]
    if with_server and settings.prefect_api_url is None:
        pieces.append(ServerPiece(settings, node, say))
    pieces.append(WorkerPiece(settings, node))
    return pieces


def _gone(process: Background) -> str | None:
    if process.is_alive():
        return None
    code = process.popen.poll() if process.popen is not None else None
    return _ending(code) if code is not None else "it is gone"


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
