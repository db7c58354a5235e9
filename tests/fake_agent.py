"""An agent's socket without an agent: answers verbs from a table, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodes.client import socket_path
from policies.refusal import Refused
from tests.agent_socket import AgentSocket, refusal

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
        return refusal(result) if isinstance(result, Refused) else {"result": result}

    @contextmanager
    def serving(self) -> Iterator[FakeAgent]:
        (self.home / "nodes" / self.node).mkdir(parents=True, exist_ok=True)
        with AgentSocket(socket_path(self.home, self.node), self.answer).serving():
            yield self
