"""An agent's socket without an agent: one request a connection, as the agent's clients make them, answered by a function."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from policies.refusal import Refused

Answer = Callable[[str, dict[str, Any]], dict[str, Any] | None]


def refusal(refused: Refused) -> dict[str, Any]:
    """The answer that says so."""
    return {"error": {"code": -32000, "message": str(refused), "data": refused.as_dict()}}


class AgentSocket:
    """``answer`` gives ``{"result": …}`` or ``{"error": …}``, or None where the connection ends without a line."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.path, self.answer = path, answer
        self._server: socketserver.ThreadingUnixStreamServer | None = None

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        answer = self.answer

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline()
                if not line:
                    return
                request = json.loads(line)
                said = answer(request["method"], request["params"])
                if said is None:
                    return
                with contextlib.suppress(OSError):
                    self.wfile.write(json.dumps({"jsonrpc": "2.0", "id": request["id"]} | said).encode() + b"\n")

        server = self._server = socketserver.ThreadingUnixStreamServer(str(self.path), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        """Nobody is accepted any more; requests in hand go on until they are answered."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self.path.unlink(missing_ok=True)

    @contextmanager
    def serving(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()
