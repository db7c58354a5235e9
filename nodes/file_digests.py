"""What is in files, by digest: read once as long as a file is the same, and said of no file that was written to meanwhile."""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

__all__ = ["sha256_of", "unhashed_bytes"]

CHUNK_BYTES = 1 << 16
DIGESTS_KEPT = 64


class _Key(NamedTuple):
    """A file's content, as long as none of these changes. The change time is set by nobody but the kernel."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> _Key:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


_digests: dict[_Key, str] = {}


def _key(path: str) -> _Key | None:
    try:
        return _Key.of(os.stat(path))
    except OSError:
        return None


def sha256_of(path: str | None) -> str | None:
    """Hex digest of a file's content; None: unknown (not readable, or written to meanwhile), which is the same as nothing."""
    key = None if path is None else _key(path)
    if path is None or key is None:
        return None
    try:
        return _digests[key]
    except KeyError:
        pass
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            key, content = _Key.of(os.fstat(file.fileno())), hashlib.sha256()
            while chunk := file.read(CHUNK_BYTES):
                content.update(chunk)
            if _Key.of(os.fstat(file.fileno())) != key:
                return None
    except OSError:
        return None
    while len(_digests) >= DIGESTS_KEPT:
        _digests.pop(next(iter(_digests)), None)
    _digests[key] = found = content.hexdigest()
    return found


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def unhashed_bytes(path: str) -> int:
    """How much ``sha256_of`` would have to read of it now."""
    key = _key(path)
    return key.size if key is not None and key not in _digests else 0
