"""A stand-in for a language model: small, pure Python, and the same everywhere.

It has the shape of a recurrent character model (embedding, two mixing layers, a read-out over an alphabet) with seeded weights and
integer arithmetic modulo 2^31 - 1 only, so no machine's floating point can change a character. It says nothing sensible; it costs
CPU time in steps of a few milliseconds, one token each, which is what the self-test is for.
"""

from __future__ import annotations

ALPHABET = " abcdefghijklmnopqrstuvwxyz.,:;!?'-()0123456789\n"
MODULUS = (1 << 31) - 1
WIDTH = 64
LAYERS = 4


class StandIn:
    """Weights from a seed; ``read`` feeds text in, ``step`` gives the next character."""

    def __init__(self, seed: int) -> None:
        numbers = _Numbers(seed)
        self._embedding = [[numbers.next() for _ in range(WIDTH)] for _ in ALPHABET]
        self._layers = [[[numbers.next() for _ in range(WIDTH)] for _ in range(WIDTH)] for _ in range(LAYERS)]
        self._index = {character: number for number, character in enumerate(ALPHABET)}
        self._hidden = [1] * WIDTH

    def reset(self) -> None:
        self._hidden = [1] * WIDTH

    @property
    def state(self) -> list[int]:
        """What it has read, for setting it back later: one model can so keep several texts apart."""
        return self._hidden

    @state.setter
    def state(self, hidden: list[int]) -> None:
        self._hidden = hidden

    def read(self, character: str) -> None:
        """Take one character in; one that is not in the alphabet is folded onto it by its code point."""
        number = self._index.get(character, ord(character) % len(ALPHABET))
        hidden = [(h + e) % MODULUS for h, e in zip(self._hidden, self._embedding[number], strict=True)]
        for layer in self._layers:
            mixed = [sum(map(int.__mul__, row, hidden)) % MODULUS for row in layer]
            # squaring keeps the layers from folding into a single matrix
            hidden = [(value * value + value) % MODULUS for value in mixed]
        self._hidden = hidden

    def step(self) -> str:
        """The next character (the largest read-out; the first of equals), which is then read in."""
        scores = [sum(map(int.__mul__, row, self._hidden)) % MODULUS for row in self._embedding]
        character = ALPHABET[scores.index(max(scores))]
        self.read(character)
        return character


class _Numbers:
    """splitmix64: a fixed sequence of 31-bit numbers for a seed."""

    def __init__(self, seed: int) -> None:
        self._state = seed & 0xFFFFFFFFFFFFFFFF

    def next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return (z ^ (z >> 31)) % MODULUS
