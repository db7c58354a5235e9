"""Options that `ab start` and `ab sweep` share, and the parameters of a run that they make."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

__all__ = [
    "FEED",
    "FIRST_LOOK",
    "MARGIN",
    "MAX_HOURS",
    "WASHOUT_S",
    "WINDOW_S",
    "WORK",
    "FeedOption",
    "FirstLookOption",
    "MarginOption",
    "MaxHoursOption",
    "Off",
    "OffOption",
    "RuleOption",
    "TimedSourceFlag",
    "WashoutOption",
    "WatchFlag",
    "WindowOption",
    "WorkOption",
    "run_parameters",
]


class Off(StrEnum):
    paused = "paused"
    evicted = "evicted"


# RunSpec's own defaults, which a test holds them to: its import takes longer than all else that a `--help` needs.
WORK, FEED = "gpu", None
WINDOW_S, WASHOUT_S, MARGIN = 300.0, 60.0, 0.02
MAX_HOURS, FIRST_LOOK = 8.0, 8

RuleOption = Annotated[str, typer.Option("--rule", metavar="RULE", help="The rule whose program is protected.")]
WorkOption = Annotated[
    str, typer.Option("--work", help="The fleet work under test: gpu, cpu, all, MODULE or MODULE/STAGE.")
]
WindowOption = Annotated[float, typer.Option("--window", help="Length of a counted window, in seconds.")]
WashoutOption = Annotated[float, typer.Option("--washout", help="Seconds discarded after each switch.")]
MarginOption = Annotated[float, typer.Option("--margin", help="The slowdown that counts, as a fraction.")]
OffOption = Annotated[Off, typer.Option("--off", help="How OFF holds the work; evicted frees its memory too.")]
MaxHoursOption = Annotated[
    float,
    typer.Option("--max-hours", help="Hours of windows and washouts of one run at most; switching comes on top."),
]
FirstLookOption = Annotated[int, typer.Option("--first-look", help="Blocks before the first look: 8, 12, 16, …")]
FeedOption = Annotated[
    str | None,
    typer.Option(
        "--feed",
        metavar="MODULE/STAGE[@MODEL]",
        help="Keep ON windows loaded with this stage, of a model where it runs models.",
    ),
]
TimedSourceFlag = Annotated[
    bool, typer.Option("--accept-timed-source", help="Run on a source that looks timed; a demonstration at most.")
]
WatchFlag = Annotated[bool, typer.Option("--watch", help="Stay until it ends; Ctrl-C leaves it going.")]


def run_parameters(
    *,
    node: str,
    rule: str,
    work: str,
    window: float,
    washout: float,
    margin: float,
    off: Off,
    max_hours: float,
    first_look: int,
    feed: str | None,
    accept_timed_source: bool,
) -> dict[str, Any]:
    """As ``RunSpec`` names them."""
    return {
        "node": node,
        "rule": rule,
        "work": work,
        "window_s": window,
        "washout_s": washout,
        "margin": margin,
        "off": off.value,
        "max_hours": max_hours,
        "first_look": first_look,
        "feed": feed,
        "accept_timed_source": accept_timed_source,
    }
