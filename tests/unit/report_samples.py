"""The sample RunRecords of ``tests/data/runs``, and the numbers that a person would read out of a text."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from tasks.reports import Rendered, build

RUNS = Path(__file__).parents[1] / "data" / "runs"
NAMES = tuple(sorted(path.stem for path in RUNS.glob("*.json")))
# what each sample says it is, by its file's name
ENDINGS = {
    "pass": "no slowdown shown",
    "demonstration": "no slowdown shown",
    "repeat": "no slowdown shown",
    "left_out_many": "no slowdown shown",
    "null": "no slowdown shown",
    "self": "no slowdown shown",
    "slowdown": "slowdown",
    "collapse": "slowdown",
    "inconclusive": "inconclusive",
    "refused": "refused",
    "no_dose": "no_dose",
    "harm_suspected": "harm_suspected",
    "aborted": "aborted",
    "unknowns": "aborted",
    "hostile": "aborted",
    "interrupted": "interrupted",
    "running": None,
}


@cache
def _text(name: str) -> str:
    return (RUNS / f"{name}.json").read_text(encoding="utf-8")


def record(name: str) -> dict[str, Any]:
    """A fresh copy of one sample."""
    return copy.deepcopy(json.loads(_text(name)))


@cache
def rendered(name: str) -> Rendered:
    """One sample, rendered; shared between tests, so read only."""
    return build(record(name))


def flat(text: str) -> str:
    """Text without its line breaks and padding."""
    return re.sub(r"\s+", " ", text)
