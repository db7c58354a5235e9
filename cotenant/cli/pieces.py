"""The pieces of a node as `up` sees them: the agent, the Prefect server, the worker."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.cli.agents import Agent
from cotenant.cli.failures import Unreachable
from cotenant.cli.uplog import note_of
from cotenant.signals import end
from nodes.identity import ProcessId, identify
from policies.refusal import Refused

if TYPE_CHECKING:
    from cotenant.cli.supervisor import Piece
    from cotenant.fleet import WorkerProcess
    from cotenant.fleet.process import Background
    from cotenant.settings import Settings

__all__ = ["AgentPiece", "node_pieces"]

# Flows are deployed from, and run in, the folder that this package lies in.
ROOT = Path(__file__).resolve().parents[2]


class BackgroundPiece:
    """What the three have in common: a background process with a note of its identity."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def _process(self) -> Background:
        raise NotImplementedError

    @property
    def identity(self) -> ProcessId | None:
        return self._process().identity()

    @property
    def detail(self) -> str:
        who = self.identity
        return f"pid {who.pid}" if who is not None else ""

    def use(self) -> None:
        """Nothing to prepare."""

    def died(self) -> str | None:
        process = self._process()
        if process.is_alive():
            return None
        code = process.popen.poll() if process.popen is not None else None
        return "it is gone" if code is None else _ending(code)

    def stop(self) -> None:
        process = self._process()
        child = process.popen
        # Interrupted between its start and its note: nobody else knows of it.
        if child is not None and child.poll() is None and process.identity() is None and (who := identify(child.pid)):
            end(who, self._settings.stop_s)
        process.stop(self._settings.stop_s)


class AgentPiece(BackgroundPiece):
    """`python -m nodes.agent`."""

    name = "agent"

    def __init__(self, settings: Settings, node: str) -> None:
        from cotenant.fleet.process import Background

        super().__init__(settings)
        self._agent = Agent(settings, node)
        self._background = Background(note_of(settings.home, node, "agent"), settings.logs / f"agent-{node}.log")

    def _process(self) -> Background:
        return self._background

    def is_running(self) -> bool:
        return self._agent.is_running()

    def start(self) -> None:
        home, node = str(self._settings.home), self._agent.node
        command = [sys.executable, "-m", "nodes.agent", "--home", home, "--node", node]
        self._background.start(command, os.environ | {"COTENANT_HOME": home}, cwd=ROOT)
        until = time.monotonic() + self._settings.agent_start_s
        while not self._agent.is_running():
            if (why := self.died()) is not None:
                raise self._refused(f"its process ended with {why}")
            if time.monotonic() >= until:
                raise self._refused(f"it did not answer within {self._settings.agent_start_s:g} s")
            time.sleep(0.1)

    def _refused(self, why: str) -> Refused:
        said = self._background.last_words()
        return Refused(
            "AGENT_NOT_STARTED",
            f"agent of node {self._agent.node}",
            why + (f"; it said:\n{said}" if said else ""),
            f"see {self._background.log}",
        )


class ServerPiece(BackgroundPiece):
    """The embedded Prefect server, with pool and deployments: a server without them takes no run."""

    name = "server"

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        from cotenant.fleet import PrefectServer

        super().__init__(settings)
        self._say = say
        # The port that it took before stays its own, so that links into the UI stay good.
        port = settings.server_port if PrefectServer(settings.home).url is None else None
        self._server = PrefectServer(settings.home, port)

    def _process(self) -> Background:
        return self._server.process

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

        url = self._our_url()
        fleet.ensure_pool(url)
        url = self._our_url()
        if fleet.deploy(url, ROOT):
            self._say("server: flows deployed")
        try:
            fleet.keep_house(url, self._settings.home)
        except Exception as error:  # runs do not depend on it
            self._say(f"server: its automations could not be made: {error}")

    def _our_url(self) -> str:
        """The address, just before something is written there: another's server must stay as it is."""
        url: str | None = self._server.url
        if url is None or not self._server.is_ours():
            why = "it is gone, or another process holds its port; nothing was written there"
            raise Refused("SERVER_NOT_OURS", f"Prefect server {url or ''}".strip(), why, "cotenant up")
        return url


class WorkerPiece(BackgroundPiece):
    """The node's Prefect worker. It knows one server's address for life: where the server moves, it is started again."""

    name = "worker"

    def __init__(self, settings: Settings, node: str) -> None:
        super().__init__(settings)
        self._node = node
        self._made: WorkerProcess | None = None

    def _worker(self) -> WorkerProcess:
        # Made late: a server that starts now chooses its address only then.
        if self._made is None:
            from cotenant.fleet import WorkerProcess

            url = self._settings.api_url
            if url is None:
                raise Unreachable(
                    "SERVER_UNREACHABLE",
                    "the Prefect server",
                    "there is none in this home and COTENANT_PREFECT_API_URL names no other",
                    "cotenant up",
                )
            self._made = WorkerProcess(self._settings.home, self._node, url, ROOT)
        return self._made

    def _process(self) -> Background:
        return self._worker().process

    @property
    def detail(self) -> str:
        return super().detail if self._made is not None else ""

    def is_running(self) -> bool:
        return self._worker().is_running() and not self._is_elsewhere()

    def died(self) -> str | None:
        why = super().died()
        if why is None and self._is_elsewhere():
            return f"the Prefect server moved to {self._settings.api_url}"
        return why

    def start(self) -> None:
        if self._is_elsewhere():
            self.stop()
        if self._made is not None and self._settings.api_url not in (None, self._made.url):
            self._made = None
        worker = self._worker()
        worker.start(self._settings.worker_start_s)
        self._look_daily(worker.url)

    def _look_daily(self, url: str) -> None:
        """The node's daily look at its certificates, made once."""
        from cotenant import fleet

        # Nothing that runs now depends on it, and the next start tries again.
        with contextlib.suppress(Exception):
            fleet.ensure_daily_check(url, self._node, self._settings.home)

    def _is_elsewhere(self) -> bool:
        """Does it talk to another address than the server's of now? Its own environment says; unknown is no."""
        import psutil

        who, url = self.identity, self._settings.api_url
        if who is None or url is None or not self._process().is_alive():
            return False
        try:
            at = psutil.Process(who.pid).environ().get("PREFECT_API_URL")
        except (psutil.Error, OSError):
            return False
        return at is not None and at != url


def node_pieces(settings: Settings, node: str, *, with_server: bool, say: Callable[[str], None]) -> list[Piece]:
    """The pieces of a node in the order in which they start: protection first, it needs nothing else.

    ``with_server``: `up` starts the embedded server unless the settings name another one; `node run` never does.
    """
    pieces: list[Piece] = [AgentPiece(settings, node)]
    if with_server and settings.prefect_api_url is None:
        pieces.append(ServerPiece(settings, say))
    pieces.append(WorkerPiece(settings, node))
    return pieces


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
