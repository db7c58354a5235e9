"""Files between agent, launcher and runner: written whole, and read without trust in who may have written there.

Standard library only, loaded by its path (``launcher.py``).
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any, BinaryIO

__all__ = ["PAUSED", "fresh", "open_regular", "phase_of", "read_document", "write_document"]

PAUSED = "paused"
"""The phase by which a runner says that a pause is in force."""
DOCUMENT_BYTES_MAX = 1 << 20


def fresh(path: str) -> int:
    """A new file to write; what stood there (the runner may have put a FIFO or a link) is never written through."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o600)


def write_document(path: str | os.PathLike[str], document: Mapping[str, Any], *, durable: bool = False) -> int:
    """Replace a JSON file whole. ``durable`` adds the fsyncs that survive a power cut.

    When it was written, by the file system's clock in ns.
    """
    place = os.fspath(path)
    temporary = f"{place}.{os.getpid()}.tmp"
    data = json.dumps(document, ensure_ascii=False).encode()
    with os.fdopen(fresh(temporary), "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        if durable:
            os.fsync(file.fileno())
        written_ns = os.fstat(file.fileno()).st_mtime_ns
    os.replace(temporary, place)
    if durable:
        folder = os.open(os.path.dirname(place) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # the new name, too
        finally:
            os.close(folder)
    return written_ns


def open_regular(path: str | os.PathLike[str]) -> BinaryIO | None:
    """A regular file to read; None for anything else. A FIFO is not waited for, a link not followed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)  # a folder would be an error of fdopen's, with the descriptor left open
        return None
    return os.fdopen(fd, "rb")


def read_document(path: str | os.PathLike[str], limit_bytes: int = DOCUMENT_BYTES_MAX) -> dict[str, Any] | None:
    """A JSON object from a regular file no larger than ``limit_bytes``; None for anything else."""
    opened = open_regular(path)
    if opened is None:
        return None
    with opened as file:
        try:
            data = file.read(limit_bytes + 1)
            raw = json.loads(data) if len(data) <= limit_bytes else None
            # a lone surrogate is JSON, and no text that a row or a path can hold
            json.dumps(raw, ensure_ascii=False).encode()
        except (OSError, ValueError, RecursionError):
            return None
    return raw if isinstance(raw, dict) else None


def phase_of(path: str | os.PathLike[str]) -> tuple[str, int] | None:
    """What stands in a ``phase`` file, and when it was written (ns, by the file system's clock); None: there is none."""
    opened = open_regular(path)
    if opened is None:
        return None
    with opened as file:
        return file.read(200).decode("utf-8", "replace").strip(), os.fstat(file.fileno()).st_mtime_ns
