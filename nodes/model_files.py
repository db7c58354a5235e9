"""What identifies the file of a model that a job's payload names: a certificate is bound to it, for a name can be given to another file.

Size and time of writing, not the content: a model is gigabytes, and hashing one would cost the node more than all else that the
agent does. So a model that was copied anew is another one (measure it again), and one that was given the size and the time of the
old one is not told from it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["model_file"]

FOLDER = "models"
PARTS_MAX = 1000


def model_file(data: Path, model: str | None) -> str | None:
    """Of the file, or folder of files, ``models/<model>`` in a module's data directory; None: no such name or file there."""
    if model in (None, "", "..") or Path(model).name != model:
        return None
    path = data / FOLDER / model
    try:
        if not path.is_dir():
            return _words([path.stat()])
        names = sorted(each.name for each in os.scandir(path) if each.is_file())[:PARTS_MAX]
        parts = [(path / name).stat() for name in names]
    except OSError:
        return None
    seal = hashlib.sha256(repr([(n, s.st_size, s.st_mtime_ns) for n, s in zip(names, parts, strict=True)]).encode())
    return f"{_words(parts)}, {len(parts)} files {seal.hexdigest()[:16]}" if parts else None


def _words(parts: list[os.stat_result]) -> str:
    newest = max(stat.st_mtime_ns for stat in parts)
    return f"{sum(stat.st_size for stat in parts)} bytes written at {newest / 1e9:.0f} s ({newest} ns)"
