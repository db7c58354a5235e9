"""Which backends this environment can load, and opening one."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import sys
from collections.abc import Callable
from typing import Any

from batching import Backend
from prompts import Request


class NoBackend(RuntimeError):
    """The environment lacks what was asked for; says what to install."""


def loadable() -> list[str]:
    """Names, the one that ``auto`` takes first; ``stub`` is always there and never taken by ``auto``."""
    found = []
    if sys.platform == "darwin" and platform.machine() == "arm64" and _has("mlx") and _has("mlx_lm"):
        found.append("mlx")
    if _has("llama_cpp"):
        found.append("llamacpp")
    return [*found, "stub"]


def check(name: str) -> str:
    """Why a backend that is there does not load; empty where it does."""
    packages = {"mlx": ("mlx.core", "mlx_lm"), "llamacpp": ("llama_cpp",)}.get(name, ())
    try:
        for package in packages:
            importlib.import_module(package)
    except Exception as error:  # whatever its binding says: the module's other backends work without it
        return f"{type(error).__name__}: {error}"
    return ""


def _has(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def choose(request: Request) -> str:
    """The backend for a request.

    Raises:
        NoBackend: it is not in this environment.
    """
    there = loadable()
    if request.backend != "auto":
        if request.backend not in there:
            raise NoBackend(f"backend {request.backend} is not in the module's environment; {_INSTALL}")
        return request.backend
    real = [name for name in there if name != "stub"]
    if request.model.endswith(".gguf"):
        real = [name for name in real if name == "llamacpp"]
    if not real:
        raise NoBackend(f"no backend for a real model is in the module's environment; {_INSTALL}")
    return real[0]


_INSTALL = "install one: cotenant llmserve install"


def open_backend(
    name: str, request: Request, path: str, threads: int, point: Callable[[], None] = lambda: None
) -> Backend:
    """Load the model. This is device work: do it inside a unit.

    Args:
        path: the model's file or folder; unused by the stub.
        threads: CPU threads that may work at once.
        point: called wherever the load can rest; what it raises ends the load.
    """
    made: Any
    if name == "stub":
        from backend_stub import StubBackend

        made = StubBackend(request)
    elif name == "llamacpp":
        from backend_llamacpp import LlamaBackend

        made = LlamaBackend(request, path, threads, point)
    else:
        from backend_mlx import MlxBackend

        made = MlxBackend(request, path)
    found: Backend = made
    return found
