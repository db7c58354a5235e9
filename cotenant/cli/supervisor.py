"""Looks after the pieces of `up` and `node run`: starts what does not run yet, restarts what dies, stops what it started.

It owns only what it started, and what a supervisor of the same node started that was killed since. A piece that ran before is
used, shown and left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from nodes.identity import ProcessId

__all__ = ["Piece", "PieceState", "Supervisor", "restart_wait_s"]

Say = Callable[[str], None]
State = Literal["not started", "starting", "running", "runs already", "died", "stopping", "stopped"]


class Piece(Protocol):
    """One process that can be started and stopped. ``start`` returns when it answers, or raises with the reason."""

    name: str

    def is_running(self) -> bool:
        """Whether one answers now, whoever started it."""

    def start(self) -> None: ...

    def use(self) -> None:
        """Make one that ran before fit for what is asked now (the server: today's deployments)."""

    def stop(self) -> None: ...

    def died(self) -> str | None:
        """Why the process that we started is gone, or None while it lives."""

    @property
    def identity(self) -> ProcessId | None: ...

    @property
    def detail(self) -> str: ...


def restart_wait_s(deaths: int, base_s: float, max_s: float) -> float:
    """Wait before the start after this many deaths in a row: base, twice base, … up to max."""
    return min(base_s * 2.0 ** max(deaths - 1, 0), max_s)


@dataclass(slots=True)
class PieceState:
    """``owned``: this supervisor started it, or one before it that is gone, so it restarts and stops it."""

    piece: Piece
    state: State = "not started"
    owned: bool = False
    deaths: int = 0
    since_s: float = 0.0
    start_again_at_s: float | None = None
    last_reason: str = ""


class Supervisor:
    """Pieces in the order in which they are started; they are stopped in the order of ``stop_order``."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        *,
        stop_order: Sequence[str],
        say: Say,
        changed: Callable[[], None] = lambda: None,
        inherited: Collection[str] = (),
        restart_base_s: float = 1.0,
        restart_max_s: float = 60.0,
        steady_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.states = [PieceState(piece, owned=piece.name in inherited) for piece in pieces]
        self._stop_order = stop_order
        self._say = say
        self._changed = changed
        self._base_s, self._max_s, self._steady_s = restart_base_s, restart_max_s, steady_s
        self._clock = clock

    def start(self) -> None:
        """Start what does not run yet, in order. A piece that cannot start raises; what was started stays ours to stop."""
        for state in self.states:
            if state.piece.is_running():
                self._set(state, "running" if state.owned else "runs already")
                whose = (
                    "an `up` that is gone started it, and it is looked after"
                    if state.owned
                    else "it stays when this ends"
                )
                self._say(f"{state.piece.name}: runs already ({state.piece.detail}); {whose}")
                state.piece.use()
                continue
            self._begin(state)

    def look(self) -> None:
        """One look at every piece: says a death at once, starts again when its wait is over."""
        for state in self.states:
            if not state.owned:
                continue
            if state.state == "running":
                self._check(state)
            elif state.start_again_at_s is not None and self._clock() >= state.start_again_at_s:
                state.start_again_at_s = None
                try:
                    self._begin(state)
                except Exception as error:  # whatever it was, the other pieces are looked after
                    self._mourn(state, str(error))

    def stop(self) -> None:
        """Stop what was started here, in order; one that fails to stop does not keep the next from being stopped."""
        rank = {name: place for place, name in enumerate(self._stop_order)}
        for state in sorted(self.states, key=lambda s: rank.get(s.piece.name, len(rank))):
            if not state.owned or state.state == "stopped":
                continue
            self._set(state, "stopping")
            try:
                state.piece.stop()
            except Exception as error:
                self._say(f"{state.piece.name}: could not be stopped: {error}")
                continue
            self._set(state, "stopped")
            self._say(f"{state.piece.name}: stopped")

    def _begin(self, state: PieceState) -> None:
        state.owned = True  # said and noted before it starts, so that whatever interrupts the start leaves it ours
        self._set(state, "starting")
        self._say(f"{state.piece.name}: starting")
        state.piece.start()
        self._set(state, "running")
        self._say(f"{state.piece.name}: running ({state.piece.detail})")

    def _check(self, state: PieceState) -> None:
        reason = state.piece.died()
        if reason is None:
            return
        if self._clock() - state.since_s >= self._steady_s:
            state.deaths = 0
        self._mourn(state, reason)

    def _mourn(self, state: PieceState, reason: str) -> None:
        state.deaths += 1
        wait_s = restart_wait_s(state.deaths, self._base_s, self._max_s)
        state.start_again_at_s = self._clock() + wait_s
        state.last_reason = reason
        self._set(state, "died")
        self._say(f"{state.piece.name}: died ({reason}); it starts again in {wait_s:g} s")

    def _set(self, state: PieceState, new: State) -> None:
        state.state = new
        state.since_s = self._clock()
        self._changed()
