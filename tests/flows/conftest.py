# ruff: noqa: E402 - the environment is set before Prefect is imported
"""One real Prefect server and one worker for all flow tests, in a home of their own; the agent is a scripted one."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before anything imports Prefect: nothing of the user's own Prefect is read or written.
for name in [name for name in os.environ if name.startswith("PREFECT_")]:
    del os.environ[name]
os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="cotenant-test-prefect-")
# Registered before Prefect's own: removed after whatever Prefect still writes when the process ends.
atexit.register(shutil.rmtree, os.environ["PREFECT_HOME"], ignore_errors=True)
os.environ["DO_NOT_TRACK"] = "1"

import pytest

from cotenant import fleet
from cotenant.fleet.deployments import client_of
from cotenant.fleet.runs import flow_state
from nodes.worker import NodeWorker
from tests.flows import worker_rig
from tests.flows.fake_agent import FakeAgent
from tests.flows.fake_records import steady

ROOT = Path(__file__).parents[2]
NODE = "local"
# A machine with all cores taken needs this long for what takes a free one some seconds.
PATIENCE_S = 300.0


def until(what: Callable[[], Any], words: str, seconds: float = PATIENCE_S, every_s: float = 0.1) -> Any:
    """The first true answer, or a failure that says what did not come."""
    end = time.monotonic() + seconds
    while True:
        if answer := what():
            return answer
        assert time.monotonic() < end, f"did not come within {seconds:g} s: {words}"
        time.sleep(every_s)


def disk_full(*_: Any, **__: Any) -> None:
    """Stands for a write to a disk that has no room."""
    raise OSError(errno.ENOSPC, "No space left on device")


@dataclass
class Rig:
    home: Path
    url: str
    server: fleet.PrefectServer
    worker: fleet.WorkerProcess
    agent: FakeAgent

    def start(self, **over: Any) -> str:
        parameters = {
            "node": NODE,
            "rule": "trainer",
            "work": "cpu",
            "window_s": 5.0,
            "washout_s": 1.0,
            "max_hours": 0.14,
            "reviewed": True,
            **over,
        }
        return fleet.run_flow(self.url, "ab-run/ab-run", parameters, NODE)

    def wait_state(self, flow_run: str, *names: str) -> dict[str, Any]:
        """Wait until the flow run's state has one of these names; a final state with another name fails at once."""

        def reached() -> dict[str, Any] | None:
            state = flow_state(self.url, flow_run)
            if state["name"] in names:
                return state
            assert not state["final"], f"waited for {names}, came to {state}; {self.worker.process.last_words(20)}"
            return None

        return dict(until(reached, f"flow run {flow_run} in {names}", every_s=0.3))

    def states(self, flow_run: str) -> list[tuple[str, str]]:
        """Every state of the run so far: name and message."""
        from uuid import UUID

        with client_of(self.url) as client:
            found = client.read_flow_run_states(UUID(flow_run))
        return [(state.name or "", state.message or "") for state in found]


@pytest.fixture(scope="session")
def _rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    # COTENANT_TEST_HOME: a home of an earlier run, whose server is kept, for quick repeats by hand.
    kept = os.environ.get("COTENANT_TEST_HOME")
    home = Path(kept) if kept else tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTENANT_HOME", str(home))
        patch.setenv("COTENANT_NODE", NODE)
        # At idle priority a flow on a busy machine takes minutes to start; that it is lowered has a test of its own.
        patch.setenv("COTENANT_FLOW_PRIORITY", "normal")
        server = fleet.PrefectServer(home)
        url = server.start()
        worker = fleet.WorkerProcess(home, NODE, url, ROOT)
        agent = FakeAgent(home, NODE)
        try:
            fleet.ensure_pool(url)
            fleet.deploy(url, ROOT)
            agent.start()
            worker.start(within_s=PATIENCE_S)
            yield Rig(home, url, server, worker, agent)
        finally:
            worker.stop()
            agent.stop()
            if not kept:
                server.stop()


@pytest.fixture
def rig(_rig: Rig) -> Iterator[Rig]:
    _rig.agent.rates = steady(1.0)
    _rig.agent.block_s = 0.05
    _rig.agent.refuse = {}
    yield _rig
    _rig.agent.refuse = {}


@pytest.fixture
def server() -> worker_rig.FakeServer:
    """A list of runs in place of a server."""
    return worker_rig.FakeServer()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: worker_rig.FakeServer) -> NodeWorker:
    """A worker that has no server but that list of runs."""
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path))
    monkeypatch.setenv("COTENANT_NODE", worker_rig.NODE)
    worker = NodeWorker(work_pool_name="cotenant", name=worker_rig.NODE)
    worker._client = server  # type: ignore[assignment]
    return worker


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, as a flow's is."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield child
    child.kill()
    child.wait()
