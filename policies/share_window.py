"""A share over a sliding window: what of a whole a part was, from increments of both."""

from __future__ import annotations

from collections import deque

__all__ = ["ShareWindow"]


class ShareWindow:
    """Increments of part and whole, each over a stretch of time. Times are seconds on one monotonic clock."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._spans: deque[tuple[float, float, float, float]] = deque()
        self._at_s: float | None = None

    def add(self, at_s: float, part: float | None, whole: float | None) -> None:
        """What came between the time before and ``at_s``; None: not known, and what came before no longer counts."""
        since_s, self._at_s = self._at_s, at_s
        if part is None or whole is None:
            self._spans.clear()
        elif since_s is not None and at_s > since_s:
            self._spans.append((since_s, at_s, part, whole))
        while self._spans and self._spans[0][1] <= at_s - self._keep_s:
            self._spans.popleft()

    def add_level(self, at_s: float, level: float | None) -> None:
        """A share that held since the time before; None: not known."""
        span_s = 0.0 if self._at_s is None else max(0.0, at_s - self._at_s)
        self.add(at_s, None if level is None else level * span_s, span_s)

    def over(self, now_s: float, window_s: float) -> float | None:
        """Part ÷ whole over the last ``window_s``; 0 where there was no whole; None where over half of it is not known."""
        known_s = part = whole = 0.0
        for begin_s, end_s, some, all_ in self._spans:
            inside_s = min(end_s, now_s) - max(begin_s, now_s - window_s)
            if inside_s <= 0.0:
                continue
            share = inside_s / (end_s - begin_s)
            known_s, part, whole = known_s + inside_s, part + share * some, whole + share * all_
        if known_s < 0.5 * window_s:
            return None
        return part / whole if whole > 0.0 else 0.0
