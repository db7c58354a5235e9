"""How many tokens one unit of device work may hold.

A unit must be short: it is what a pause waits for, and a burst that the protected program feels whatever the duty. Two bounds
hold at once: ``UNIT_S``, and what ``duty.scale()`` says fits the duty's share of a second. Tokens cost differently on every
machine, model and width, so nothing is assumed of them: the number grows while units are short and shrinks by as much as
one was too long.
"""

from __future__ import annotations

from collections import deque

UNIT_S = 0.2
# with no duty asked nothing is being shared out by the second, and more tokens a unit cost less each
FREE_UNIT_S = 0.4
FIRST = 8
# a unit this close to what is allowed is let be: units of one size differ by as much
NEAR = 1.15
RECENT = 8
RELAX = 1.02


class Sizer:
    """``tokens`` is the bound for the next unit; ``saw`` tells how long the last one took."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._tokens = float(min(FIRST, most))
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._allowed_s = FREE_UNIT_S
        self._hold = 0

    @property
    def tokens(self) -> int:
        return max(1, int(self._tokens))

    def saw(self, took_s: float, tokens: int, scale: float, *, limited: bool) -> None:
        """Args:
        took_s: device seconds of the unit.
        tokens: how many it held.
        scale: ``duty.scale()``, which looks at the longest of the last eight units.
        limited: a duty is asked for.
        """
        self._recent.append(took_s)
        self._hold = max(0, self._hold - 1)
        longest = max(self._recent)
        most_s = UNIT_S if limited else FREE_UNIT_S
        if scale < 1.0:
            # the duty's share of a second, said only while a recent unit was longer
            self._allowed_s = min(most_s, longest * scale)
        elif self._hold == 0:
            # it may have grown since it was last said
            self._allowed_s = min(most_s, self._allowed_s * RELAX)
        self._allowed_s = min(self._allowed_s, most_s)
        if took_s > self._allowed_s:
            # By this unit's own length: the longest one stays in view for eight units and must not be paid eight times.
            self._tokens = max(1.0, tokens * self._allowed_s / took_s)
            self._hold = RECENT
        elif tokens >= self.tokens and self._hold == 0 and took_s * NEAR <= self._allowed_s:
            # as far as the room that this unit left, never twice as much at once
            factor = min(2.0, self._allowed_s / max(took_s, 1e-6) / NEAR)
            self._tokens = min(float(self.most), max(self._tokens * factor, self._tokens + 1.0))
