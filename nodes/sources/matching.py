"""Which files a source's pattern means now, which directories tell of others, and what stands in the way."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

__all__ = ["Candidate", "Found", "expand_home", "find", "is_rotated_copy", "may_be_dated_copy"]

MAX_DEPTH = 8  # of ``**``
MAX_CANDIDATES = 10_000
_MAGIC = re.compile(r"[*?\[]")
# run.log.1, run.log.2.gz, run.log-20261129, run.log.old: what log rotation makes of run.log
_ROTATED = re.compile(
    r"(?P<base>.+?)(?:\.\d{1,3}|[.-]\d{8,10}|[.-]\d{4}-\d\d-\d\d|\.old|\.bak|~)?(?:\.(?:gz|bz2|xz|zst))?"
)

# what a dated rotation puts between stem and extension: run-20261129.log of run.log
_DATED = re.compile(r"[._-]\d[\d._-]{6,}\d")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A regular file that matches. ``key`` is its device and inode: who it is whatever its name. ``real``: where it lies."""

    path: str
    key: tuple[int, int]
    mtime_ns: int
    size: int
    real: str = ""


@dataclass(slots=True)
class Found:
    """What a pattern matched.

    Attributes:
        files: the regular files, in no order.
        dirs: directories whose changes may change the answer.
        odd: matches that are no regular file, with what they are.
        denied: files or directories that may not be looked into.
        failed: other errors, in words.
    """

    files: list[Candidate] = field(default_factory=list)
    dirs: set[str] = field(default_factory=set)
    odd: list[tuple[str, str]] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def newest(self) -> Candidate | None:
        """The newest file by modification time, then by name; a rotated copy never while its original is there."""
        if len(self.files) < 2:
            return self.files[0] if self.files else None
        names = {file.path for file in self.files}
        own = [file for file in self.files if not is_rotated_copy(file.path, names)]
        return max(own, key=lambda file: (file.mtime_ns, file.path), default=None)


def expand_home(pattern: str, owner_home: str) -> str:
    """``~`` is the home of the section's owner, not of this process. A home's own ``*`` is no wildcard here."""
    if pattern == "~" or pattern.startswith("~/"):
        return owner_home.rstrip("/") + pattern[1:]
    return pattern


def is_rotated_copy(path: str, others: Iterable[str]) -> bool:
    """Whether the name is another file's name with what log rotation appends."""
    match = _ROTATED.fullmatch(path)
    return match is not None and match["base"] != path and match["base"] in others


def may_be_dated_copy(path: str, original: str) -> bool:
    """Whether the name is the original's with a date before its extension. A later run's file may be named so too."""
    stem, extension = os.path.splitext(original)
    if not path.startswith(stem) or not path.endswith(extension) or len(path) <= len(original):
        return False
    return _DATED.fullmatch(path[len(stem) : len(path) - len(extension)]) is not None


def find(pattern: str) -> Found:
    """Looks for the regular files that an absolute pattern (``*``, ``?``, ``[…]``, ``**`` in any component) matches."""
    found = Found()
    if os.path.lexists(pattern):  # also a name that only looks like a pattern
        _leaf(os.path.dirname(pattern) or "/", os.path.basename(pattern), found)
        return found
    _walk("/", [part for part in pattern.split("/") if part], found, 0)
    return found


def _walk(base: str, parts: list[str], found: Found, depth: int) -> None:
    head, rest = parts[0], parts[1:]
    if not _MAGIC.search(head):
        if not rest:
            _leaf(base, head, found)
            return
        below = os.path.join(base, head)
        if _is_dir(below, found):
            _walk(below, rest, found, depth)
        else:
            found.dirs.add(base)
        return
    if head == "**":
        if rest:
            _walk(base, rest, found, depth)
            if depth < MAX_DEPTH:
                for name in _names(base, found):
                    below = os.path.join(base, name)
                    if not name.startswith(".") and not os.path.islink(below) and _is_dir(below, found):
                        _walk(below, parts, found, depth + 1)
            return
        head = "*"
    for name in _names(base, found):
        if (name.startswith(".") and not head.startswith(".")) or not fnmatchcase(name, head):
            continue
        if not rest:
            if len(found.files) >= MAX_CANDIDATES:
                found.failed.append(f"more than {MAX_CANDIDATES} files match; name the files more closely")
                return
            _leaf(base, name, found)
        elif _is_dir(below := os.path.join(base, name), found):
            _walk(below, rest, found, depth)


def _names(base: str, found: Found) -> list[str]:
    found.dirs.add(base)
    try:
        return os.listdir(base)
    except PermissionError:
        found.denied.append(base)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        found.failed.append(f"{base}: {error.strerror}")
    return []


def _is_dir(path: str, found: Found) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except PermissionError:
        found.denied.append(os.path.dirname(path))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            found.failed.append(f"{path}: {error.strerror}")
    return False


def _leaf(base: str, name: str, found: Found) -> None:
    found.dirs.add(base)
    path = os.path.join(base, name)
    try:
        info = os.stat(path)
    except PermissionError:
        found.denied.append(base)
        return
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            found.failed.append(f"{path}: {error.strerror}")
        return
    if not stat.S_ISREG(info.st_mode):
        found.odd.append((path, _kind(info.st_mode)))
        return
    real = _real(path, info.st_dev, info.st_ino)
    if real != path:
        found.dirs.add(os.path.dirname(real))  # a linked file's changes are told where it lies
    found.files.append(Candidate(path, (info.st_dev, info.st_ino), info.st_mtime_ns, info.st_size, real))


@lru_cache(maxsize=256)
def _real(path: str, device: int, inode: int) -> str:
    """Where the file lies. Looked up anew when the name leads to another file."""
    return os.path.realpath(path)


def _kind(mode: int) -> str:
    for test, words in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    ):
        if test(mode):
            return words
    return "no regular file"
