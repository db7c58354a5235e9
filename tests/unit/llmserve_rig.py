"""The llmserve runner's own modules, and the clock, control, duty and llama.cpp that stand in for real ones."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BUNDLE = Path(__file__).resolve().parents[2] / "modules" / "llmserve"


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """The runner's modules import each other by plain names, as they lie in one folder; afterwards nobody finds them there."""
    sys.path.insert(0, str(BUNDLE))
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.path.remove(str(BUNDLE))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).parent == BUNDLE:
                del sys.modules[name]


def load(name: str) -> Any:
    return importlib.import_module(name)


class Clock:
    """Time passes only where a backend works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stop(Exception):
    """As the SDK's: the runner was asked to stop."""


class Ctl:
    """Asks for a stop at the safe point after so many others."""

    paused_s = 0.0

    def __init__(self, gpu_duty: float | None = None, stop_after: int | None = None) -> None:
        self.gpu_duty, self.stop_after, self.points = gpu_duty, stop_after, 0

    def safe_point(self) -> None:
        self.points += 1
        if self.stop_after is not None and self.points > self.stop_after:
            raise Stop


class Duty:
    """Notes how long each unit was, and calls ``between`` before it. ``duty``: the share of a second that a unit must fit."""

    idle_s = 0.0

    def __init__(
        self, clock: Callable[[], float], duty: float | None = None, between: Callable[[], object] = lambda: None
    ) -> None:
        self.clock, self.duty, self.between = clock, duty, between
        self.units: list[float] = []

    @property
    def busy_s(self) -> float:
        return self.clock()

    @contextlib.contextmanager
    def unit(self) -> Iterator[None]:
        self.between()
        began_s = self.clock()
        yield
        self.units.append(self.clock() - began_s)

    def scale(self) -> float:
        longest = max(self.units[-8:])
        return 1.0 if self.duty is None or longest <= self.duty else self.duty / longest


@contextlib.contextmanager
def on_llama_cpp(formatter: object, **names: object) -> Iterator[Any]:
    """The adapter to llama.cpp on a binding that has only ``names``, and ``formatter`` for chat templates."""
    binding = types.ModuleType("llama_cpp")
    chat = types.ModuleType("llama_cpp.llama_chat_format")
    chat.Jinja2ChatFormatter = formatter  # type: ignore[attr-defined]
    for name, value in {"llama_log_callback": lambda function: function, **names}.items():
        setattr(binding, name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "llama_cpp", binding)
        patch.setitem(sys.modules, "llama_cpp.llama_chat_format", chat)
        try:
            yield load("backend_llamacpp")
        finally:
            sys.modules.pop("backend_llamacpp", None)
