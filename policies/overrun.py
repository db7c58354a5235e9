"""Units that hold more memory than their stage declares (``mem_gb``), and which of them goes. Pure.

What a stage declares is what admission counted on, and nothing keeps a process to it. So what each unit holds of its own is
measured every tick. More than declared is lent from what is left over: it is said at once, and the unit is the first to go as
soon as what was promised to others, set aside for a program or kept free is no longer there, before anything of theirs is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["IN_A_ROW", "SLACK", "Claim", "OverrunState", "in_words", "step_overrun"]

SLACK: Final = 0.1
"""A declared figure is rounded: so much more is none."""
IN_A_ROW: Final = 2
"""Readings over the declared figure before it counts: a peak that is gone at the next tick costs nobody anything."""
GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Claim:
    """One unit. ``held_bytes``: memory of its own, what it shares counted once; None: it cannot be told."""

    attempt: str
    declared_bytes: float
    held_bytes: int | None

    @property
    def over_bytes(self) -> float:
        """What it holds beyond what its stage declares; 0 where that is within the slack, nothing is declared, or it is unknown."""
        if self.held_bytes is None or self.declared_bytes <= 0.0:
            return 0.0
        over = self.held_bytes - self.declared_bytes
        return over if over > SLACK * self.declared_bytes else 0.0


@dataclass(frozen=True, slots=True)
class OverrunState:
    """``seen``: readings in a row over the declared figure, by attempt; ``over``: those for which it counts."""

    seen: Mapping[str, int] = field(default_factory=dict)
    over: Mapping[str, Claim] = field(default_factory=dict)


def step_overrun(
    state: OverrunState, claims: Iterable[Claim], *, short: bool, going: bool = False
) -> tuple[OverrunState, tuple[Claim, ...], Claim | None]:
    """One tick: (state, claims that are over for the first time, the one that goes now).

    Args:
        claims: of every unit that lives.
        short: memory is short of what was promised, set aside or kept free.
        going: a unit is being stopped: its memory comes back before another one goes.
    """
    claims = tuple(claims)
    seen = {each.attempt: state.seen.get(each.attempt, 0) + 1 for each in claims if each.over_bytes}
    # one that could not be read this time stays what it was
    known = {each.attempt: each for each in claims}
    kept = {name: claim for name, claim in state.over.items() if name in known and known[name].held_bytes is None}
    over = kept | {name: known[name] for name, times in seen.items() if times >= IN_A_ROW}
    new = tuple(claim for name, claim in over.items() if name not in state.over)
    goes = (
        max(over.values(), key=lambda each: (each.over_bytes, each.attempt), default=None)
        if short and not going
        else None
    )
    return OverrunState(seen, over), new, goes


def in_words(claim: Claim) -> str:
    return f"it holds {(claim.held_bytes or 0) / GB:.2f} GB of memory, and its stage declares {claim.declared_bytes / GB:g} GB"
