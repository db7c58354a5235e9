"""A node's Prefect worker as a background process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cotenant.fleet.deployments import POOL, SHARED_QUEUE, ensure_queue
from cotenant.fleet.process import Background, prefect_env
from cotenant.settings import Settings
from nodes.client import node_dir
from policies.refusal import Refused

__all__ = ["WorkerProcess"]

START_WITHIN_S = 120.0
# SQLite serves few writers at once: more flow runs at a time cost runs, not time.
FLOW_RUNS_AT_ONCE = 4
HEARTBEAT_S = 600


class WorkerProcess:
    """``start()`` waits until the worker says that it started; one that runs already stays."""

    def __init__(self, home: Path, node: str, url: str, root: Path | None = None) -> None:
        self.home = home
        self.node = node
        self.url = url
        self.root = root
        folder = node_dir(home, node)
        self.process = Background(folder / "worker.pid.json", folder / "worker.log")

    def is_running(self) -> bool:
        return self.process.is_alive()

    def start(self, within_s: float = START_WITHIN_S) -> None:
        """Start it unless it runs.

        Raises:
            Refused: it ended, or did not start in time.
        """
        if self.process.is_alive():
            return
        ensure_queue(self.url, self.node)
        seen = self.process.log.stat().st_size if self.process.log.exists() else 0
        self.process.start(
            [
                sys.executable,
                "-m",
                "prefect",
                "worker",
                "start",
                *("--pool", POOL, "--type", "cotenant-node", "--name", self.node),
                *("--work-queue", self.node, "--work-queue", SHARED_QUEUE),
                *("--limit", str(FLOW_RUNS_AT_ONCE), "--install-policy", "never"),
            ],
            self.environment(),
            cwd=self.home,
        )
        end = time.monotonic() + within_s
        while b"started!" not in self.process.log.read_bytes()[seen:]:
            if not self.process.is_alive():
                why = f"it ended at once; its log says:\n{self.process.last_words()}"
                raise Refused("WORKER_FAILED", f"the worker of node {self.node}", why, f"see {self.process.log}")
            if time.monotonic() > end:
                why = f"it did not start within {within_s:g} s"
                raise Refused("WORKER_FAILED", f"the worker of node {self.node}", why, f"see {self.process.log}")
            time.sleep(0.1)

    def environment(self) -> dict[str, str]:
        """Of the worker, and so of its flow runs."""
        settings = Settings.from_env(home=self.home)
        env = prefect_env(self.home, self.url) | {
            "COTENANT_NODE": self.node,
            # A run that is put off by seconds would be taken again before its time.
            "PREFECT_WORKER_PREFETCH_SECONDS": "0",
            "PREFECT_WORKER_QUERY_SECONDS": f"{settings.worker_query_s:g}",
            # What a flow process does besides waiting while a window is counted: fewer wake-ups. The worker itself looks
            # after lost runs, so nothing depends on frequent heartbeats; log lines reach the UI within this interval.
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
            "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "20",
            "PYTHONUNBUFFERED": "1",
        }
        if settings.prefect_auth_string is not None:
            env["PREFECT_API_AUTH_STRING"] = settings.prefect_auth_string
        if self.root is not None:
            env["COTENANT_ROOT"] = str(self.root)
        return env

    def stop(self) -> bool:
        return self.process.stop()
