"""One figure of a report: a value with where it comes from, or the reason why there is none.

A figure that was not observed is ``unknown`` with its reason. It is never 0, and no formatter here can print it as a
number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "Figure",
    "State",
    "above_words",
    "hours",
    "interval",
    "measured",
    "number",
    "percent",
    "places_for",
    "seconds",
    "shown",
    "unknown",
]

State = Literal["measured", "unknown"]
MAX_PLACES = 4


@dataclass(frozen=True, slots=True)
class Figure:
    """``{value, state, source, measured_at, unknown_reason}``; ``measured_at`` is aware UTC in ISO form, or None.

    Build one with ``measured`` or ``unknown``: a value goes with ``measured`` alone, a reason with ``unknown`` alone.
    """

    value: float | int | None
    state: State
    source: str
    measured_at: str | None = None
    unknown_reason: str | None = None

    def __post_init__(self) -> None:
        if (self.state == "measured") != (self.value is not None):
            raise ValueError(f"a {self.state} figure with value {self.value!r}")
        if (self.state == "unknown") != (self.unknown_reason is not None):
            raise ValueError(f"a {self.state} figure with reason {self.unknown_reason!r}")

    @property
    def known(self) -> bool:
        return self.state == "measured"

    def as_dict(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "state": self.state,
            "source": self.source,
            "measured_at": self.measured_at,
            "unknown_reason": self.unknown_reason,
        }


def measured(
    value: float | int | None, source: str, measured_at: str | None = None, otherwise: str = "not recorded"
) -> Figure:
    """A figure with this value; ``otherwise`` is the reason where ``value`` is None or not finite."""
    if value is None:
        return unknown(otherwise, source)
    if not math.isfinite(value):
        return unknown(f"the record holds {value!r}, which is not a finite number", source)
    return Figure(value, "measured", source, measured_at)


def unknown(reason: str, source: str) -> Figure:
    return Figure(None, "unknown", source, None, reason or "no reason was recorded")


# --- how figures read ---------------------------------------------------------------------------------------------


def shown(figure: Figure, form: Callable[[float], str], *, why: bool = False) -> str:
    """``form(value)``, or "unknown", with its reason in brackets where ``why``."""
    if figure.value is not None:
        return form(figure.value)
    return f"unknown ({figure.unknown_reason})" if why else "unknown"


def number(value: float, digits: int = 4) -> str:
    """Significant digits without an exponent for everyday sizes: 12.46, 0.0415, 1,520."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude >= 7 or magnitude < -5:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def percent(fraction: float, places: int = 1) -> str:
    """0.994 -> "99.4 %"."""
    return f"{_fixed(fraction * 100.0, places)} %"


def interval(low: float, high: float, places: int = 1) -> str:
    """(0.986, 1.003) -> "98.6–100.3 %"."""
    return f"{_fixed(low * 100.0, places)}–{_fixed(high * 100.0, places)} %"


def above_words(R: float, low: float, high: float, places: int = 1) -> str:
    """What is to be said of an estimate that reads above 100 % while its interval includes 100 %; "" of every other."""
    if round(R * 100.0, places) > 100.0 and low <= 1.0 <= high:
        return "above 100 % is within the noise, since the interval includes 100 %: no speed-up was shown"
    return ""


def seconds(value: float) -> str:
    return f"{number(value, 3)} s"


def hours(value_h: float) -> str:
    if value_h < 1.0 / 60.0:
        return f"{value_h * 3600.0:.0f} s"
    return f"{value_h * 60.0:.0f} min" if value_h < 1.0 else f"{value_h:.1f} h"


def places_for(compared: Sequence[tuple[float | None, float]], start: int = 1) -> int:
    """Decimals of a percentage at which every "value is below limit" reads as it is (97.996 % is not "98.0 %" of 98 %).

    Args:
        compared: pairs of fractions (value, limit), as the verdict compares them; a None value is skipped.
    """
    for places in range(start, MAX_PLACES):
        if all(
            (value < limit) == (round(value * 100.0, places) < round(limit * 100.0, places))
            for value, limit in compared
            if value is not None
        ):
            return places
    return MAX_PLACES


def _fixed(value: float, places: int) -> str:
    text = f"{value:.{places}f}"
    return text.lstrip("-") if float(text) == 0 else text
