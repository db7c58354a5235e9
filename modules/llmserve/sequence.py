"""One prompt while it generates: its tokens so far as text, and when it is finished."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import Any, Literal

from prompts import Prompt

Finish = Literal["stop", "length", "wall"]


@dataclass
class Sequence:
    """Takes tokens as bytes; a character may come in several, and a stop string in any number of them."""

    prompt: Prompt
    prompt_tokens: int
    began_s: float
    first_s: float | None = None
    generating_s: float = 0.0
    """Of the units that gave it a token: what the wall limit is compared with. Waiting for its turn and reading are not in it."""
    tokens: int = 0
    finish: Finish | None = None
    _text: str = ""
    _decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    _searched: int = 0
    _cut: bool = False
    """At a stop text: what came after it is not part of the answer."""

    def take(self, piece: bytes, now_s: float, *, end: bool) -> None:
        """One generated token. ``end``: it is one that ends the text and says nothing itself."""
        if self.first_s is None:
            self.first_s = now_s - self.began_s
        self.tokens += 1
        if end:
            self.finish = "stop"
            return
        self._text += self._decoder.decode(piece)
        if self._stopped():
            self.finish = "stop"
        elif self.tokens >= self.prompt.max_tokens:
            self.finish = "length"

    def close(self, rest: bytes) -> None:
        """It is finished, and this is what the backend had held back of it."""
        if rest and not self._cut:
            self._text += self._decoder.decode(rest)
            if self._stopped():
                self.finish = "stop"

    def _stopped(self) -> bool:
        if not self.prompt.stop:
            return False
        longest = max(map(len, self.prompt.stop))
        since = max(0, self._searched - longest + 1)
        found = [at for at in (self._text.find(stop, since) for stop in self.prompt.stop) if at >= 0]
        self._searched = len(self._text)
        if found:
            self._text, self._cut = self._text[: min(found)], True
        return self._cut

    @property
    def text(self) -> str:
        """Whole, once it is finished: a character that was begun shows as the mark for one that is not there."""
        return self._text if self._cut else self._text + self._decoder.decode(b"", final=True)
