"""The embedded Prefect server: one process on loopback, its database and settings inside our home."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from cotenant.fleet.process import Background, prefect_env
from policies.refusal import Refused

__all__ = ["PrefectServer", "is_healthy"]

START_WITHIN_S = 300.0
HOST = "127.0.0.1"


def is_healthy(url: str, timeout_s: float = 2.0) -> bool:
    """Does a Prefect API answer at this URL?"""
    try:
        # Never through a proxy: the server is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/health", timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False


class PrefectServer:
    """``start()`` gives the API's URL; a server that runs already is used as it is.

    The port is chosen once and kept in ``prefect/server.json``, so that links into the UI stay good.
    """

    def __init__(self, home: Path, port: int | None = None) -> None:
        self.home = home
        self.port_wanted = port
        self._where = home / "prefect" / "server.json"
        self.process = Background(home / "prefect" / "server.pid.json", home / "prefect" / "server.log")

    @property
    def url(self) -> str | None:
        """URL of the API, whether it answers or not; None before the first start."""
        try:
            return f"http://{HOST}:{int(json.loads(self._where.read_text())['port'])}/api"
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_running(self) -> bool:
        """Our process lives and its API answers."""
        url = self.url
        return url is not None and self.process.is_alive() and is_healthy(url)

    def start(self, within_s: float = START_WITHIN_S) -> str:
        """Start it unless it runs, and wait until it answers.

        Raises:
            Refused: it ended, or did not answer in time (the first start makes the database, which takes a while).
        """
        url = self.url
        if url is None or not self.process.is_alive():
            url = self._launch()
        end = time.monotonic() + within_s
        while not is_healthy(url):
            if not self.process.is_alive():
                why = f"it ended at once; its log says: {self.process.last_words()}"
                raise Refused("SERVER_FAILED", "the Prefect server", why, f"see {self.process.log}")
            if time.monotonic() > end:
                why = f"it did not answer on {url} within {within_s:g} s"
                raise Refused("SERVER_FAILED", "the Prefect server", why, f"see {self.process.log}, then try again")
            time.sleep(0.2)
        return url

    def stop(self) -> bool:
        return self.process.stop()

    def _launch(self) -> str:
        port = self._free_port()
        self._where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._where.with_suffix(".new")
        draft.write_text(json.dumps({"port": port}))
        os.replace(draft, self._where)
        url = f"http://{HOST}:{port}/api"
        env = prefect_env(self.home) | {
            "PREFECT_SERVER_API_HOST": HOST,
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_UI_API_URL": url,
            # In memory a lease is forgotten by a restart, and its slot stays taken for ever.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        }
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
        self.process.start(command, env, cwd=self.home)
        return url

    def _free_port(self) -> int:
        """The port wanted, the one used before, or any free one."""
        before = self.url
        for port in (self.port_wanted, int(before.rsplit(":", 1)[1].split("/")[0]) if before else None, 0):
            if port is None:
                continue
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError:
                    continue
                return int(probe.getsockname()[1])
        raise Refused("SERVER_FAILED", "the Prefect server", "no port on loopback is free", "end some programs")
