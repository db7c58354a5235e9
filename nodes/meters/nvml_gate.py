"""The one way to the NVIDIA driver: every call is made here, timed, and answers with a value or a fault.

The driver serialises these calls with what programs on the device ask of it, so a meter that asks often is itself the
stutter. The gate counts what each kind of call costs and says how long to wait before the next of its kind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["BUDGET_MS_PER_S", "Fault", "Gate"]

BUDGET_MS_PER_S = 1.0
"""What one kind of call may cost, in milliseconds of driver time per second."""
COST_WINDOW_S = 60.0
RECENT = 6
RETRIES = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """The driver said no. ``code`` is NVML's return code, ``why`` its words."""

    code: int
    why: str

    def is_(self, *names: str) -> bool:
        """Whether it is one of these, named without their prefix (``NOT_FOUND``)."""
        import pynvml

        return any(self.code == getattr(pynvml, f"NVML_ERROR_{name}") for name in names)


class Gate:
    """Not thread-safe: one thread makes the calls. ``clock``: seconds, for the cost of calls."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._costs: deque[tuple[float, str, float]] = deque()
        self._recent: dict[str, deque[float]] = {}

    def call(self, kind: str, function: Callable[..., Any], *arguments: Any) -> Any | Fault:
        """``function(*arguments)`` of pynvml; [] where it raises its own "success" for an answer without entries."""
        import pynvml

        begun = self._clock()
        try:
            for left in range(RETRIES, 0, -1):
                try:
                    return function(*arguments)
                except pynvml.NVMLError_InsufficientSize as error:
                    # more entries came up between asking for their number and asking for them
                    if left == 1:
                        return Fault(error.value, str(error))
        except pynvml.NVMLError as error:
            return [] if error.value == pynvml.NVML_SUCCESS else Fault(error.value, str(error))
        finally:
            self._note(kind, begun, self._clock())
        raise AssertionError("unreachable")

    def _note(self, kind: str, begun: float, ended: float) -> None:
        cost_ms = 1000.0 * (ended - begun)
        self._costs.append((ended, kind, cost_ms))
        self._recent.setdefault(kind, deque(maxlen=RECENT)).append(cost_ms)
        while self._costs and self._costs[0][0] < ended - COST_WINDOW_S:
            self._costs.popleft()

    def cost_ms_per_s(self) -> float:
        """Milliseconds of the driver's time taken per second, over the last minute."""
        if not self._costs:
            return 0.0
        span_s = max(1.0, min(COST_WINDOW_S, self._clock() - self._costs[0][0]))
        return sum(cost for _, _, cost in self._costs) / span_s

    def period_s(self, kind: str, least_s: float, most_s: float, calls: int = 1) -> float:
        """How long to wait between rounds of ``calls`` calls of a kind, so that they keep to the budget.

        The cheapest of the last calls is what the driver takes; the rest of a dearer one was the machine being busy.
        """
        dear_ms = min(self._recent.get(kind, (0.0,)))
        return min(most_s, max(least_s, calls * dear_ms / BUDGET_MS_PER_S))
