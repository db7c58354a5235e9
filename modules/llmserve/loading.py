"""A start in pieces: a backend's imports, the model's file, the child that tries it, the load. Each piece is a unit of the duty.

A start takes seconds of processor time before the first token. The meter counts them and the protected program feels them like
those of any step, so they are held to the duty as well, and a pause, a stop or a smaller duty is met in the middle of a start.
What cannot be cut is made short by what stands before it: a load finds its file in the page cache.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PIECE_S = 0.1
# of a duty that is hardly any, pieces are not cut any finer than this
PIECE_LEAST_S = 0.02
READ_BYTES = 1 << 20
# one after the other, each in a piece of its own; the last is the backend itself
IMPORTS = {
    "llamacpp": ("numpy", "jinja2", "diskcache", "llama_cpp"),
    "mlx": ("numpy", "mlx.core", "transformers", "mlx_lm"),
}


class DoesNotLoad(RuntimeError):
    """The backend is in the environment and cannot be imported; the text says why."""


class Pieces:
    """Units of the duty, with a safe point before each. ``worst_s`` is the longest one so far.

    Args:
        ctl, duty: the runner's.
    """

    def __init__(self, ctl: Any, duty: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.ctl, self.duty, self.clock = ctl, duty, clock
        self.worst_s = 0.0

    @property
    def room_s(self) -> float:
        """How long a piece may be: no longer than the duty's share of a second."""
        asked = self.ctl.gpu_duty
        return PIECE_S if asked is None else min(PIECE_S, max(PIECE_LEAST_S, asked))

    @contextlib.contextmanager
    def piece(self) -> Iterator[None]:
        """Raises ``Stopped`` where a stop is asked for."""
        self.ctl.safe_point()
        with self.duty.unit():
            began_s = self.clock()
            try:
                yield
            finally:
                self.worst_s = max(self.worst_s, self.clock() - began_s)

    @contextlib.contextmanager
    def gated(self) -> Iterator[Callable[[], None]]:
        """For one call that cannot be cut but says now and then that it goes on: calling what is yielded is a chance to rest."""
        with contextlib.ExitStack() as unit:
            unit.enter_context(self.piece())
            began_s = self.clock()

            def point() -> None:
                nonlocal began_s
                if self.clock() - began_s >= self.room_s:
                    unit.close()
                    unit.enter_context(self.piece())
                    began_s = self.clock()

            yield point


def import_backend(name: str, pieces: Pieces) -> None:
    """Import what a backend needs, so that it is there when it is used.

    Raises:
        DoesNotLoad: its package cannot be imported.
    """
    parts = IMPORTS.get(name, ())
    for part in parts:
        with pieces.piece():
            try:
                importlib.import_module(part)
            except Exception as error:  # whatever a binding says: without its library some raise an error of their own
                if part == parts[-1]:
                    raise DoesNotLoad(f"backend {name} does not load: {type(error).__name__}: {error}") from error


def read_ahead(path: Path, pieces: Pieces) -> None:
    """A model's file, or those of its folder, into the page cache.

    Raises:
        OSError: it cannot be read.
    """
    buffer = bytearray(READ_BYTES)
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    for file in files:
        with open(file, "rb", buffering=0) as source:
            left = True
            while left:
                with pieces.piece():
                    until_s = pieces.clock() + pieces.room_s
                    while left and pieces.clock() < until_s:
                        left = bool(source.readinto(buffer))


def wait_in_pieces(child: subprocess.Popen[bytes], pieces: Pieces, within_s: float) -> int:
    """Its exit code. A child knows nothing of the duty: it is stopped, at whatever instruction, between two pieces.

    Raises:
        OSError: it ran for ``within_s`` and had not ended; whoever made it ends it.
    """
    child.send_signal(signal.SIGSTOP)
    ran_s = 0.0
    while ran_s < within_s:
        with pieces.piece():
            began_s = pieces.clock()
            child.send_signal(signal.SIGCONT)
            try:
                return child.wait(pieces.room_s)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGSTOP)
            ran_s += pieces.clock() - began_s
    raise OSError(f"loading it in a child took longer than {within_s:g} s")
