"""What identifies the file of a model that a job's payload names: a certificate is bound to it, for a name can be given to another file.

Size and time of writing, not the content: a model is gigabytes, and hashing one would cost the node more than all else that the
agent does. So a model that was copied anew is another one (measure it again), and one that was given the size and the time of the
old one is not told from it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from policies.certificate import FILE_UNKNOWN

__all__ = ["model_file"]

FOLDER = "models"
PARTS_MAX = 1000
"""Files and folders of one model: it is looked at at every tick in which a job that names it waits."""


def model_file(data: Path, model: str | None) -> str | None:
    """Of the file, or folder of files, ``models/<model>`` in a module's data directory; None: no such name or file there.

    ``FILE_UNKNOWN``: there is something, but not all of it can be looked at, or it has more than ``PARTS_MAX`` parts.
    """
    if model in (None, "", "..") or Path(model).name != model:
        return None
    path = data / FOLDER / model
    try:
        if not path.is_dir():
            return _words([path.stat()])
        parts = _parts(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return FILE_UNKNOWN
    if parts is None:
        return FILE_UNKNOWN
    seal = hashlib.sha256(repr([(n, s.st_size, s.st_mtime_ns) for n, s in parts]).encode())
    return f"{_words([s for _, s in parts])}, {len(parts)} files {seal.hexdigest()[:16]}" if parts else None


def _parts(path: Path) -> list[tuple[str, os.stat_result]] | None:
    """Its files by relative path, links followed; None: too many. A folder that links lead to twice is gone through once."""
    found: list[tuple[str, os.stat_result]] = []
    folders, seen, looked = [""], set(), 0
    while folders:
        prefix = folders.pop()
        here = os.stat(path / prefix)
        if (here.st_dev, here.st_ino) in seen:
            continue
        seen.add((here.st_dev, here.st_ino))
        with os.scandir(path / prefix) as entries:
            for each in entries:
                looked += 1
                if looked > PARTS_MAX:
                    return None
                name = prefix + each.name
                if each.is_dir():
                    folders.append(name + "/")
                elif each.is_file():
                    found.append((name, os.stat(path / name)))
    return sorted(found, key=lambda part: part[0])


def _words(parts: list[os.stat_result]) -> str:
    newest = max(stat.st_mtime_ns for stat in parts)
    return f"{sum(stat.st_size for stat in parts)} bytes written at {newest / 1e9:.0f} s ({newest} ns)"
