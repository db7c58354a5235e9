"""What a target is, and the shapes that hostile input comes in."""

from __future__ import annotations

import contextlib
import json
import string
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

__all__ = ["ROOT", "Target", "altered", "json_values", "mutated", "mutated_bytes", "scalars"]

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Target:
    """``inputs``: what is tried; ``opened``: gives the check, and takes away what that needed."""

    inputs: st.SearchStrategy[Any]
    opened: Callable[[], contextlib.AbstractContextManager[Callable[[Any], None]]]


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["trainer", "all", "gpu", "/x", "~/x", "(a+)+$", "1e400", "", "\x00", "local"])
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn, texts: list[str]) -> str:
    """A good text with a few pieces cut out, doubled, swapped or replaced."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(0, 4))):
        low = draw(st.integers(0, len(text)))
        high = min(len(text), low + draw(st.integers(0, 30)))
        piece = draw(
            st.sampled_from(
                ["", "\n", "[[", "]]", "{", "}", "=", '"', "'''", "[[rule]]\n", "id = 1\n", "-1", "1e999", "\0", "é"]
            )
            | st.text(string.printable, max_size=8)
            | st.just(text[low:high] * 2)
        )
        text = text[:low] + piece + text[high:]
    return text


@st.composite
def mutated_bytes(draw: st.DrawFn, files: list[bytes]) -> bytes:
    """A good file cut off, or with a few bytes of it replaced, doubled or put in."""
    data = draw(st.sampled_from(files))
    for _ in range(draw(st.integers(0, 3))):
        low = draw(st.integers(0, len(data)))
        high = min(len(data), low + draw(st.integers(0, 16)))
        piece = draw(
            st.binary(max_size=16)
            | st.sampled_from(
                [b"\xff" * 4, b"\xff" * 8, b"\0" * 8, b"\0\0\0\x80", b"\n", b"[" * 3000, data[low:high] * 2]
            )
        )
        data = data[:low] + piece + data[high:]
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 4)) == 0 else data


_ODD = (
    scalars
    | st.sampled_from(
        [
            float("nan"),
            float("inf"),
            -float("inf"),
            1e308,
            -1e308,
            10**400,
            -1,
            [],
            {},
            "\ud800",
            "é" * 300,
            "1_0",
            [[[]]],
        ]
    )
    | json_values
)


def _places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each part of a JSON value."""
    found = [way]
    if isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            found += _places(part, (*way, key))
    return found


@st.composite
def altered(draw: st.DrawFn, documents: list[Any]) -> str:
    """A good JSON document with up to three of its parts left out or odd, or its text mutated."""
    value = json.loads(json.dumps(draw(st.sampled_from(documents))))
    for _ in range(draw(st.integers(0, 3))):
        *way, last = draw(st.sampled_from(_places(value))) or (None,)
        if last is None:
            value = deepcopy(draw(_ODD))
            continue
        inner = value
        for key in way:
            inner = inner[key]
        if draw(st.booleans()) and isinstance(inner, dict):
            del inner[last]
        else:
            inner[last] = deepcopy(draw(_ODD))  # what is drawn is drawn again: put into itself it would have no end
    text = json.dumps(value)
    kind = draw(st.integers(0, 9))
    return draw(mutated([text])) if kind == 0 else "[" * 5000 + text if kind == 1 else text
