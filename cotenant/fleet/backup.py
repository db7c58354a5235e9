"""One file with what a home cannot lose, and back: journals, keys, modules, the embedded store and server, reports.

Databases are copied through SQLite itself, so that a backup of a home in use is whole. Left out is what is made again or
belongs to a moment: sockets, locks, logs, work directories, environments of modules. A store or server on PostgreSQL is
backed up with its own tools.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from nodes.restored import mark_restored
from policies.refusal import Refused
from policies.version import VERSION

__all__ = ["FORMAT", "backup", "restore"]

FORMAT = 1
MANIFEST = "cotenant-backup.json"
AT_ONCE_BYTES = 4 << 20
# Databases that may be in use; -wal and -shm files belong to them and are part of the copy.
JOURNALS = "nodes/*/journal.sqlite"
DATABASES = (JOURNALS, "store.sqlite", "prefect/prefect.db")
FILES = (
    "fleet.json",
    "prefect/server.json",
    "prefect/house.json",
    "prefect/storage/**/*",
    "reports/**/*",
    "nodes/*/key",
    "nodes/*/mirror.json",
    "nodes/*/daily-check.json",
    "nodes/*/modules/*/bundles/**/*",
    "nodes/*/modules/*/data/**/*",
    "nodes/*/artifacts/**/*",
)


def backup(home: Path, target: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Write ``target`` (a .tar.gz), whole or not at all, readable by its owner alone.

    Args:
        overwrite: a file that is there already is replaced, once the new one is whole and on the disk.

    Returns:
        The manifest: ``{format, cotenant, made_at, files: {name: sha256}}``.

    Raises:
        Refused: the home has nothing to keep, a database of it cannot be read, or the target cannot be written.
    """
    _check_target(target, overwrite)
    databases = [path for pattern in DATABASES for path in sorted(home.glob(pattern))]
    files = [path for pattern in FILES for path in sorted(home.glob(pattern)) if _is_plain(path)]
    if not databases:
        raise Refused("BACKUP_EMPTY", str(home), "it has no journal, store or server", "set COTENANT_HOME to the home")
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "cotenant": VERSION,
        "made_at": datetime.now(UTC).isoformat(),
        "files": {},
    }
    try:
        handle, draft = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        why = f"its folder cannot be written to: {error.strerror or error}"
        raise Refused("BACKUP_FAILED", str(target), why, "name a file in a folder of yours") from error
    try:
        with os.fdopen(handle, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar, _workroom() as room:
            for path in databases:
                copy = room / "copy.sqlite"
                copy.unlink(missing_ok=True)
                _copy_database(path, copy)
                _add(tar, copy, path.relative_to(home).as_posix(), manifest)
            for path in files:
                _add(tar, path, path.relative_to(home).as_posix(), manifest)
            content = json.dumps(manifest, indent=1).encode()
            entry = tarfile.TarInfo(MANIFEST)
            entry.size, entry.mode = len(content), 0o600
            tar.addfile(entry, io.BytesIO(content))
        with open(draft, "rb") as whole:
            os.fsync(whole.fileno())  # a power cut must not leave an empty file in the place of the old backup
        _put(Path(draft), target, overwrite)
    except OSError as error:
        why = f"{error.strerror or error}; what was there before is as it was"
        raise Refused(
            "BACKUP_FAILED", str(target), why, "see whether the disk is full, or name another file"
        ) from error
    finally:
        Path(draft).unlink(missing_ok=True)
    return manifest


def _check_target(target: Path, overwrite: bool) -> None:
    """Refused before anything is read: a mistyped path must neither cost an older backup nor make folders."""
    if target.is_dir():
        raise Refused(
            "BACKUP_TARGET", str(target), "it is a folder", f"cotenant backup {_quoted(target / 'cotenant.tar.gz')}"
        )
    if not target.parent.is_dir():
        there = target.parent.exists()
        why = "its folder is no folder" if there else "its folder is not there"
        raise Refused(
            "BACKUP_TARGET", str(target), why, "name another file" if there else f"mkdir -p {_quoted(target.parent)}"
        )
    if not overwrite and os.path.lexists(target):
        raise _exists(target)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _exists(target: Path) -> Refused:
    why = "it is there already, and may be the only backup that there is"
    return Refused(
        "BACKUP_EXISTS", str(target), why, f"cotenant backup {_quoted(target)} --overwrite; or name another file"
    )


def _put(draft: Path, target: Path, overwrite: bool) -> None:
    """Give the draft its name. Without ``overwrite`` one that came there meanwhile is refused, not replaced."""
    if overwrite:
        os.replace(draft, target)
        return
    try:
        os.link(draft, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise _exists(target) from None
        os.replace(draft, target)


def restore(source: Path, home: Path, before: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
    """Unpack a backup into an empty or missing home, after every file in it was checked.

    Each node's journal then says that it was restored: a certificate that was revoked since, or a run that failed, is not
    in it, so no certificate in it holds (``nodes.restored``).

    Args:
        before: is given the manifest when all was checked, before anything is put into the home.

    Returns:
        Its manifest.

    Raises:
        Refused: the home has something already, or the file is no whole backup; nothing is written then.
    """
    if not source.is_file():
        why = "it is a folder" if source.is_dir() else "there is no such file"
        raise Refused("RESTORE_REFUSED", str(source), why, "name a file that `cotenant backup` made")
    if home.exists() and any(home.iterdir()):
        why = "it is not empty, and a restore never mixes with what is there"
        raise Refused(
            "RESTORE_REFUSED",
            str(home),
            why,
            f"cotenant down; mv {_quoted(home)} {_quoted(home)}.old; then restore again",
        )
    home.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            tempfile.TemporaryDirectory(prefix=f".{home.name}-restore-", dir=home.parent) as draft,
            tarfile.open(source, mode="r:gz") as tar,
        ):
            room = Path(draft) / "home"
            room.mkdir(mode=0o700)
            _unpack(tar, room)
            manifest = _checked(room)
            (room / MANIFEST).unlink()
            for journal in room.glob(JOURNALS):
                mark_restored(journal, str(manifest["made_at"]))
            before(manifest)
            if home.exists():
                home.rmdir()
            os.replace(room, home)
    except (OSError, tarfile.TarError, ValueError, KeyError, EOFError, sqlite3.Error) as error:
        why = f"it is no whole backup: {error}"
        raise Refused("RESTORE_REFUSED", str(source), why, "name a file that `cotenant backup` made") from error
    return manifest


def _unpack(tar: tarfile.TarFile, room: Path) -> None:
    """Plain files with paths inside the room: nothing else is in a backup.

    By hand, since tarfile's own filters are lacking in the first releases of Python 3.11 (Debian 12 has one).
    """
    for entry in tar:
        name = PurePosixPath(entry.name)
        if name.is_absolute() or ".." in name.parts or not entry.isreg():
            raise ValueError(f"{entry.name} is no plain file inside a home")
        content = tar.extractfile(entry)
        assert content is not None
        path = room / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with content, open(path, "xb") as file:
            shutil.copyfileobj(content, file)
        os.chmod(path, entry.mode & 0o700 | 0o600)
        os.utime(path, (entry.mtime, entry.mtime))


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _workroom() -> Any:
    class Room(tempfile.TemporaryDirectory[str]):
        def __enter__(self) -> Path:  # type: ignore[override]
            return Path(super().__enter__())

    return Room(prefix="cotenant-backup-")


def _copy_database(path: Path, copy: Path) -> None:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as old, closing(sqlite3.connect(copy)) as new:
            old.backup(new)
    except sqlite3.Error as error:
        raise Refused(
            "BACKUP_FAILED", str(path), str(error), "see whether the disk is full or the file damaged"
        ) from error


class _Hashed:
    """A file of which what is read is hashed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self.digest.update(piece)
        return piece


def _add(tar: tarfile.TarFile, path: Path, name: str, manifest: dict[str, Any]) -> None:
    """From one open file, so that what is hashed is what is kept even where a report is written anew meanwhile.

    A large one (a model of a module's may be larger than memory) in pieces.
    """
    with open(path, "rb") as file:
        told = os.fstat(file.fileno())
        whole = file.read() if told.st_size <= AT_ONCE_BYTES else None
        entry = tarfile.TarInfo(name)
        entry.size = told.st_size if whole is None else len(whole)
        entry.mtime, entry.mode = int(told.st_mtime), told.st_mode & 0o700
        hashed = _Hashed(file if whole is None else io.BytesIO(whole))
        tar.addfile(entry, hashed)  # type: ignore[arg-type]  # it is read, and nothing else
    manifest["files"][name] = hashed.digest.hexdigest()


def _checked(room: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((room / MANIFEST).read_text())
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']}, and this version reads {FORMAT}")
    found = set(_names(room)) - {MANIFEST}
    wanted = set(manifest["files"])
    if found != wanted:
        raise ValueError(f"files are missing or foreign: {', '.join(sorted(found ^ wanted)[:3])}")
    for name, digest in manifest["files"].items():
        with open(room / name, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(f"{name} is damaged")
    return manifest


def _names(room: Path) -> Iterator[str]:
    for path in room.rglob("*"):
        if path.is_file():
            yield PurePosixPath(path.relative_to(room)).as_posix()
