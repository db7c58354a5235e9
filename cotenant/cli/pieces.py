"""The pieces of a node as `up` sees them: the agent, the Prefect server, the worker."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.cli.agents import Agent
from cotenant.cli.signals import end
from nodes.identity import ProcessId, identify
from policies.refusal import Refused

if TYPE_CHECKING:
    from cotenant.settings import Settings

__all__ = ["AgentPiece", "log_tail", "node_pieces"]

LOG_TAIL_LINES = 6


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


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
