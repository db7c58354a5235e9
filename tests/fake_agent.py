"""An agent's socket without an agent: answers verbs from a table, and remembers what it was asked."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodes.client import socket_path
from policies.refusal import Refused

Answer = Any


class FakeAgent:
    """``answers[verb]`` is a value, a ``Refused`` to answer with, or a function of the parameters."""

    def __init__(self, home: Path, node: str = "local", **answers: Answer) -> None:
        self.home, self.node = home, node
        self.answers: dict[str, Answer] = {"hello": {"node": node, "pid": 1}} | answers
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]

    def answer(self, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((verb, params))
        found = self.answers.get(
            verb, Refused("NO_SUCH_VERB", verb, "the fake agent has no answer for it", "give it one")
        )
        try:
            result = found(**params) if callable(found) else found
        except Refused as refused:
            result = refused
        if isinstance(result, Refused):
            return {"error": {"code": -32000, "message": str(result), "data": result.as_dict()}}
        return {"result": result}

    @contextmanager
    def serving(self) -> Iterator[FakeAgent]:
        path = socket_path(self.home, self.node)
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.home / "nodes" / self.node).mkdir(parents=True, exist_ok=True)
        answer = self.answer

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                request = json.loads(self.rfile.readline())
                said = answer(request["method"], request["params"])
                self.wfile.write(json.dumps({"jsonrpc": "2.0", "id": request["id"]} | said).encode() + b"\n")

        with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()
                path.unlink(missing_ok=True)
