"""Backend ``stub``: the stand-in model behind the same loop, for machines without a real one. Its units run on the CPU.

A token is a character. It always takes the likeliest next one, so of the sampling options only ``max_tokens`` and ``stop`` tell.
"""

from __future__ import annotations

from collections import deque

from prompts import Prompt, Request, Sampling
from standin import StandIn

CONTEXT = 8192
UNIT_MAX = 512


class StubBackend:
    """See ``batching.Backend``."""

    name = "stub"
    device = "cpu"
    unit_max = UNIT_MAX
    model = "stand-in"

    def __init__(self, request: Request) -> None:
        self.context = min(CONTEXT, request.context or CONTEXT)
        self.width = request.width
        self._model = StandIn(0)
        self._model.reset()
        self._begin = self._model.state
        self._shared: list[int] = []
        self._shared_state: list[int] | None = None
        self._unread: dict[int, deque[int]] = {}
        self._states: dict[int, list[int]] = {}
        self._waiting: list[int] = []
        self._prefix: deque[int] = deque()

    def encode(self, prompt: Prompt) -> list[int]:
        text = prompt.text if prompt.text is not None else "".join(f"{r}: {c}\n" for r, c in prompt.messages)
        return [ord(character) for character in text]

    def open(self, shared: list[int]) -> None:
        self._shared, self._prefix = shared, deque(shared)
        self._shared_state = self._begin

    def start(self, slot: int, tokens: list[int], sampling: Sampling) -> None:
        own = tokens[len(self._shared) :]
        self._unread[slot] = deque(own)
        if self._prefix:
            self._waiting.append(slot)
        else:
            self._states[slot] = self._shared_state or self._begin

    def step(self, limit: int) -> tuple[int, list[tuple[int, int]]]:
        held = 0
        news: list[tuple[int, int]] = []
        if self._prefix:
            self._shared_state, held = self._read(self._shared_state or self._begin, self._prefix, limit)
            if not self._prefix:
                for slot in self._waiting:
                    self._states[slot] = self._shared_state
                self._waiting.clear()
            return held, news
        for slot in list(self._states):
            if held >= limit:
                break
            if self._unread[slot]:
                self._states[slot], read = self._read(self._states[slot], self._unread[slot], limit - held)
                held += read
                continue
            self._model.state = self._states[slot]
            news.append((slot, ord(self._model.step())))
            self._states[slot] = self._model.state
            held += 1
        return held, news

    def _read(self, state: list[int], unread: deque[int], limit: int) -> tuple[list[int], int]:
        self._model.state = state
        count = min(limit, len(unread))
        for _ in range(count):
            self._model.read(chr(unread.popleft()))
        return self._model.state, count

    def piece(self, slot: int, token: int) -> bytes:
        return chr(token).encode("utf-8", "replace")

    def rest(self, slot: int) -> bytes:
        return b""

    def ends(self, token: int) -> bool:
        return False

    def stop(self, slot: int) -> None:
        self._states.pop(slot, None)
        self._unread.pop(slot, None)

    def close(self) -> None:
        return
