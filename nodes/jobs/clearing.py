"""Takes a folder that a runner has written away, however it was left."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

__all__ = ["remove_tree"]


def remove_tree(root: Path) -> None:
    """Remove the folder and all below it; what the system does not let go stays, without an error.

    A tree deeper than the interpreter's stack, or with folders that were closed to their owner, goes as well.
    """
    with contextlib.suppress(RecursionError):
        shutil.rmtree(root, ignore_errors=True)
    if os.path.lexists(root):
        with contextlib.suppress(OSError):
            _remove_flat(os.fspath(root))


def _remove_flat(root: str) -> None:
    """Every folder below is moved up to ``root`` before it is emptied, so that no path grows long."""
    moved = 0
    os.chmod(root, 0o700)
    while True:
        folders = [entry.path for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
        for folder in folders:
            with contextlib.suppress(OSError):
                os.chmod(folder, 0o700)
                for entry in list(os.scandir(folder)):
                    if entry.is_dir(follow_symlinks=False):
                        moved += 1
                        os.chmod(entry.path, 0o700)
                        os.rename(entry.path, os.path.join(root, f".gone-{os.getpid()}-{moved}"))
                    else:
                        os.unlink(entry.path)
        before = len(folders)
        for folder in folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
                before -= 1
        if before == len(folders):  # none left, or none that goes
            break
    for entry in list(os.scandir(root)):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
    os.rmdir(root)
