"""The embedded Prefect server: one process on loopback, its database and settings inside our home."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from cotenant.fleet.process import Background, prefect_env
from cotenant.fleet.template import seed
from cotenant.settings import Settings
from policies.refusal import Refused

__all__ = ["PrefectServer", "is_healthy", "listens"]

START_WITHIN_S = 300.0
# A port can be lost between its choice and the server's bind, which comes a minute later on a busy machine.
PORT_TRIES = 4
LOOK_EVERY_S = 0.3
GIVE_UP_WITHIN_S = 15.0
HOST, ANY_HOST = "127.0.0.1", "0.0.0.0"


class _PortLost(Exception):
    """Another process took the port before our server did."""


def is_healthy(url: str, timeout_s: float = 2.0) -> bool:
    """Does a Prefect API answer at this URL?"""
    try:
        # Never through a proxy: the server is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/health", timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException, ValueError):
        return False


def listens(pid: int, port: int) -> bool:
    """Does this process, or a descendant of it, hold the listening socket of the port on loopback, or on every address?

    False as well where that cannot be read: a server that is not known to be ours is not ours.
    """
    try:
        top = psutil.Process(pid)
        family = [top, *top.children(recursive=True)]
    except psutil.Error:
        return False
    for member in family:
        try:
            sockets = member.net_connections("tcp")
        except psutil.Error:
            continue
        if any(one.status == psutil.CONN_LISTEN and one.laddr in ((HOST, port), (ANY_HOST, port)) for one in sockets):
            return True
    return False


def _is_taken(port: int) -> bool:
    """Does anybody accept connections there?"""
    with socket.socket() as caller:
        caller.settimeout(2.0)
        return caller.connect_ex((HOST, port)) == 0


def _prefect_server(port: int) -> list[str]:
    host = Settings.from_env().server_host
    return [sys.executable, "-m", "prefect", "server", "start", "--host", host, "--port", str(port)]


class PrefectServer:
    """``start()`` gives the API's URL; a server of this home that runs already is used as it is.

    The port is kept in ``prefect/server.json``, so that links into the UI stay good: as ``starting`` while the server comes
    up, as ``port`` once our process holds it. Whoever answers on the port is ours only where our process holds its socket.
    """

    def __init__(
        self, home: Path, port: int | None = None, *, command: Callable[[int], Sequence[str]] = _prefect_server
    ) -> None:
        self.home = home
        self.port_wanted = port
        self._command = command
        self._where = home / "prefect" / "server.json"
        self.process = Background(home / "prefect" / "server.pid.json", home / "prefect" / "server.log")
        self._log_from = 0

    @property
    def url(self) -> str | None:
        """URL of the API, whether it answers or not; None while no process of this home has held a port."""
        port = self._noted("port")
        return None if port is None else _url(port)

    def is_ours(self) -> bool:
        """Our process lives and holds the socket that the URL leads to. To be asked before anything is written there."""
        port = self._noted("port")
        return port is not None and self._holds(port)

    def is_running(self) -> bool:
        """Our process lives and it is the one that answers."""
        url = self.url
        return url is not None and self.is_ours() and is_healthy(url) and self.is_ours()

    def start(self, within_s: float = START_WITHIN_S) -> str:
        """Start it unless it runs, and wait until it answers. A port that another process took meanwhile is changed.

        Raises:
            Refused: SERVER_FAILED: it ended, or did not answer in time (the first start makes the database, which takes a
                while). SERVER_PORT_TAKEN: each port that was tried went to another process.
        """
        end = time.monotonic() + within_s
        lost: list[int] = []
        while len(lost) < PORT_TRIES:
            port = self._noted("starting") or self._noted("port")
            if port is None or not self.process.is_alive():
                port = self._launch(lost)
            try:
                self._await(port, end, within_s)
            except _PortLost:
                lost.append(port)
                self._note(starting=port)  # nobody shall take the other's server for ours
                self.process.stop(GIVE_UP_WITHIN_S)
                continue
            self._note(port=port)
            return _url(port)
        why = f"other processes took the ports {', '.join(map(str, lost))} before it could"
        raise Refused("SERVER_PORT_TAKEN", "the Prefect server", why, "try again, or set COTENANT_SERVER_PORT")

    def stop(self) -> bool:
        return self.process.stop()

    def _await(self, port: int, end: float, within_s: float) -> None:
        """Until our process holds the port and answers on it."""
        while not (self._holds(port) and is_healthy(_url(port)) and self._holds(port)):
            if not self.process.is_alive():
                if _is_taken(port) or self._said_in_use():
                    raise _PortLost
                why = f"it ended at once; its log says:\n{self.process.last_words()}"
                raise Refused("SERVER_FAILED", "the Prefect server", why, f"see {self.process.log}")
            # Asked again after the call: ours may have bound the port just before it.
            if not self._holds(port) and _is_taken(port) and not self._holds(port):
                raise _PortLost
            if time.monotonic() > end:
                why = f"it did not answer on {_url(port)} within {within_s:g} s"
                raise Refused("SERVER_FAILED", "the Prefect server", why, f"see {self.process.log}, then try again")
            time.sleep(LOOK_EVERY_S)

    def _holds(self, port: int) -> bool:
        who = self.process.identity()
        return who is not None and self.process.is_alive() and listens(who.pid, port) and self.process.is_alive()

    def _said_in_use(self) -> bool:
        """Did it end because its port was taken, though the other has let go of it since?"""
        try:
            with self.process.log.open("rb") as log:
                log.seek(self._log_from)
                return b"already in use" in log.read()
        except OSError:
            return False

    def _launch(self, lost: Sequence[int]) -> int:
        port = self._free_port(lost)
        # The URL of a server that comes back on its port stays known; one that moves has none until it is there.
        if self._noted("port") == port:
            self._note(port=port, starting=port)
        else:
            self._note(starting=port)
        settings = Settings.from_env(home=self.home)
        if settings.server_host != HOST and settings.prefect_auth_string is None:
            raise Refused(
                "SERVER_OPEN",
                f"the Prefect server on {settings.server_host}",
                "whoever reaches it may run flows on every node, and it asks for no password",
                "set COTENANT_PREFECT_AUTH_STRING=USER:PASSWORD",
            )
        env = prefect_env(self.home) | {
            "PREFECT_SERVER_API_HOST": settings.server_host,
            "PREFECT_SERVER_API_PORT": str(port),
            # Browsers on other machines reach the API under the address of the page.
            "PREFECT_UI_API_URL": _url(port) if settings.server_host == HOST else "/api",
            # Runs, logs and artifacts would be kept for ever.
            "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
            "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": f"P{settings.events_kept_days}D",
            # In memory a lease is forgotten by a restart, and its slot stays taken for ever.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        }
        if settings.prefect_auth_string is not None:
            env["PREFECT_SERVER_API_AUTH_STRING"] = settings.prefect_auth_string
            env["PREFECT_API_AUTH_STRING"] = settings.prefect_auth_string  # its own services ask it too
        if settings.server_database_url is not None:
            env["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = settings.server_database_url
        else:
            seed(self.home / "prefect")
        self._log_from = self.process.log.stat().st_size if self.process.log.exists() else 0
        self.process.start(self._command(port), env, cwd=self.home)
        return port

    def _noted(self, key: str) -> int | None:
        try:
            return int(json.loads(self._where.read_text())[key])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _note(self, **ports: int) -> None:
        self._where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._where.with_suffix(".new")
        draft.write_text(json.dumps(ports))
        os.replace(draft, self._where)

    def _free_port(self, lost: Sequence[int]) -> int:
        """The port used before, the one wanted, or any free one; none of those that were lost."""
        for port in (self._noted("port"), self.port_wanted, self._noted("starting"), 0):
            if port is None or port in lost:
                continue
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError:
                    continue
                return int(probe.getsockname()[1])
        raise Refused("SERVER_FAILED", "the Prefect server", "no port on loopback is free", "end some programs")


def _url(port: int) -> str:
    return f"http://{HOST}:{port}/api"
