"""The prompts of a job, decoded together: a sequence a prompt, the next prompt in as soon as one has finished.

The loop is the same for every backend. Between two units of device work stands a safe point, so what a pause or a stop waits for
is one unit; the longest stretch between two safe points is reported as the yield latency.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from prompts import Prompt, Sampling
from sequence import Sequence
from sizing import Sizer

# Shorter common beginnings are not worth their own sequence.
PREFIX_MIN = 16


class BadPrompt(ValueError):
    """This one prompt cannot be given to the model; the text says why. The others can."""


class Backend(Protocol):
    """What a backend does. Only ``open`` and ``step`` work on the device."""

    name: str
    device: str
    context: int
    """Tokens that one sequence may hold."""
    width: int
    """Sequences that it holds at once."""
    unit_max: int
    """Tokens that one ``step`` can hold."""

    def encode(self, prompt: Prompt) -> list[int]:
        """Its tokens. Raises ``BadPrompt``, as where the model's chat template refuses it."""
        ...

    def open(self, shared: list[int]) -> None:
        """Once, when every prompt was encoded: what they all begin with. ``width`` may come out smaller, for want of memory."""

    def start(self, slot: int, tokens: list[int], sampling: Sampling) -> None: ...
    def step(self, limit: int) -> tuple[int, list[tuple[int, int]]]: ...
    def piece(self, slot: int, token: int) -> bytes:
        """What the next token of a sequence adds to its text; each token is asked about once, in order."""
        ...

    def rest(self, slot: int) -> bytes:
        """What ``piece`` held back of a sequence that is finished."""
        ...

    def ends(self, token: int) -> bool: ...
    def stop(self, slot: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A prompt that has its answer, or the reason why it can have none."""

    prompt: Prompt
    text: str
    finish: str
    prompt_tokens: int
    tokens: int
    first_s: float | None
    took_s: float
    error: dict[str, str] | None = None


@dataclass
class Figures:
    """What the job has done so far. ``yield_s``: the longest stretch between two safe points, time held and idled left out."""

    tokens: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    units: int = 0
    unit_worst_s: float = 0.0
    yield_s: float = 0.0
    width_most: int = 0
    at_limit: int = 0
    """Prompts that the wall limit ended before they were done."""


class Batch:
    """One job's prompts through one backend.

    Args:
        ctl, duty: the runner's.
        wall_s: after so many seconds of units that gave it a token, a prompt ends with what it has: with one token at least.
        finished: called with each prompt as it finishes.
        beat: called after each unit.
    """

    def __init__(
        self,
        backend: Backend,
        ctl: Any,
        duty: Any,
        wall_s: float,
        finished: Callable[[Finished], None],
        beat: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend, self.ctl, self.duty, self.wall_s = backend, ctl, duty, wall_s
        self.figures = Figures()
        self._finished, self._beat, self._clock = finished, beat, clock
        self._sizer = Sizer(backend.unit_max)
        self._live: dict[int, Sequence] = {}
        self._queue: deque[tuple[Prompt, list[int]]] = deque()
        self._since = 0.0

    def run(self, prompts: Iterable[Prompt]) -> None:
        """All of them, or until ``Stopped``."""
        self._since = self._own_s()
        for prompt in prompts:
            self._gate()
            # where the processor is the device, making tokens of many prompts is work of it like any other
            with self.duty.unit() if self.backend.device == "cpu" else contextlib.nullcontext():
                self._admit(prompt)
        shared = common_prefix([tokens for _, tokens in self._queue])
        if self._queue:
            self._gate()
            with self.duty.unit():
                self.backend.open(shared)
        self.figures.shared_tokens = len(shared)
        while self._queue or self._live:
            self._gate()
            self._refill()
            self._unit()
            self._beat()

    # -- steps ----------------------------------------------------------------------------------------------------------

    def _own_s(self) -> float:
        """A clock that stands still while the runner is held or idles for its duty."""
        return float(self._clock() - self.ctl.paused_s - self.duty.idle_s)

    def _gate(self) -> None:
        self.figures.yield_s = max(self.figures.yield_s, self._own_s() - self._since)
        self.ctl.safe_point()
        self._since = self._own_s()

    def _admit(self, prompt: Prompt) -> None:
        try:
            tokens = self.backend.encode(prompt)
        except BadPrompt as error:
            self._refuse(prompt, 0, "bad_prompt", str(error))
            return
        room = self.backend.context - len(tokens)
        if not tokens:
            self._refuse(prompt, 0, "empty_prompt", "it has no token")
        elif room < prompt.max_tokens:
            words = (
                f"{len(tokens)} tokens and {prompt.max_tokens} to generate are more than "
                f"the {self.backend.context} of the context"
            )
            self._refuse(prompt, len(tokens), "too_long", words)
        else:
            self._queue.append((prompt, tokens))

    def _refuse(self, prompt: Prompt, prompt_tokens: int, code: str, words: str) -> None:
        error = {"code": code, "message": words}
        self._finished(Finished(prompt, "", "error", prompt_tokens, 0, None, 0.0, error))

    def _refill(self) -> None:
        """Never more sequences than one unit may hold tokens: the width follows the duty."""
        width = min(self.backend.width, max(1, self._sizer.tokens))
        free = (slot for slot in range(self.backend.width) if slot not in self._live)
        while self._queue and len(self._live) < width:
            prompt, tokens = self._queue.popleft()
            slot = next(free)
            self._live[slot] = Sequence(prompt, len(tokens), self._own_s())
            self.backend.start(slot, tokens, prompt.sampling)
        self.figures.width_most = max(self.figures.width_most, len(self._live))

    def _unit(self) -> None:
        limit, since_s = self._sizer.tokens, self._own_s()
        with self.duty.unit():
            began, used_s = self._clock(), self.duty.busy_s
            held, news = self.backend.step(limit)
            took_s = self._clock() - began
            used_s = self.duty.busy_s - used_s
        self.figures.units += 1
        self.figures.unit_worst_s = max(self.figures.unit_worst_s, took_s)
        # by what it used of the device: on a CPU that others want too, waiting for it makes a unit no larger
        self._sizer.saw(used_s, held, self.duty.scale(), limited=self.ctl.gpu_duty is not None)
        now_s = self._own_s()
        for slot, token in news:
            sequence = self._live[slot]
            sequence.generating_s += now_s - since_s
            end = self.backend.ends(token)
            sequence.take(b"" if end else self.backend.piece(slot, token), now_s, end=end)
            self.figures.tokens += 1
        for slot, sequence in list(self._live.items()):
            if sequence.finish is None and sequence.generating_s > self.wall_s:
                sequence.finish = "wall"
                self.figures.at_limit += 1
            if sequence.finish is not None:
                sequence.close(self.backend.rest(slot))
                self.backend.stop(slot)
                del self._live[slot]
                self._tell(sequence, now_s)

    def _tell(self, sequence: Sequence, now_s: float) -> None:
        self.figures.prompt_tokens += sequence.prompt_tokens
        assert sequence.finish is not None
        self._finished(
            Finished(
                sequence.prompt,
                sequence.text,
                sequence.finish,
                sequence.prompt_tokens,
                sequence.tokens,
                sequence.first_s,
                now_s - sequence.began_s,
            )
        )


def common_prefix(prompts: list[list[int]]) -> list[int]:
    """The tokens with which all of them begin; empty where that is not worth it. Each keeps a token of its own."""
    if len(prompts) < 2:
        return []
    first, last = min(prompts), max(prompts)
    most = min(len(first), len(last), min(map(len, prompts)) - 1)
    count = next((at for at in range(most) if first[at] != last[at]), most)
    return first[:count] if count >= PREFIX_MIN else []
