"""Bundles of modules on disk: their digest, their copy on a node, the Python environment they run in."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
from pathlib import Path

from nodes.builds import BuildEnded, Builds
from policies.refusal import Refused

__all__ = [
    "bundle_digest",
    "bundle_seal",
    "check_bundle",
    "copy_bundle",
    "keep_copy",
    "newest_file",
    "put_sdk",
    "python_environment",
    "sdk_sources",
]

BUNDLE_BYTES_MAX = 2 << 30
BUILD_LIMIT_S = 60.0
STARVED_LIMIT_S = 3600.0
PIECE_BYTES = 1 << 16
_LEFT_OUT = frozenset({"__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
_ALIAS = {
    "__init__.py": '"""The SDK under the name by which modules of other hosts import it."""\n',
    "control.py": "from cotenant.sdk.control import *  # noqa: F403\n",
    "duty.py": "from cotenant.sdk.duty import *  # noqa: F403\n",
    "supervisor.py": "from cotenant.sdk.supervisor import *  # noqa: F403\n",
}


def _files(path: Path) -> list[str]:
    """Relative paths with ``/`` of everything that is part of a bundle, sorted."""
    found = []
    for folder, names, files in os.walk(path):
        names[:] = [name for name in names if name not in _LEFT_OUT]
        relative = os.path.relpath(folder, path).replace(os.sep, "/")
        prefix = "" if relative == "." else relative + "/"
        found += [prefix + name for name in files if not name.endswith(".pyc")]
        found += [prefix + name for name in names if (Path(folder) / name).is_symlink()]
    return sorted(found)


def bundle_digest(path: Path) -> str:
    """sha256 over the sorted relative paths and contents, caches left out; the executable bit counts."""
    digest = hashlib.sha256()
    for name in _files(path):
        full = path / name
        mark = b"x" if os.access(full, os.X_OK) else b"-"
        if not full.is_file():
            digest.update(f"{len(name.encode())}:{name}:0:".encode() + mark)
            continue
        with open(full, "rb") as file:
            # As many bytes as it says that it has: one that is written to meanwhile has another digest either way.
            left = os.fstat(file.fileno()).st_size
            digest.update(f"{len(name.encode())}:{name}:{left}:".encode() + mark)
            while left > 0 and (piece := file.read(min(left, PIECE_BYTES))):  # the loop must get its turn in between
                digest.update(piece)
                left -= len(piece)
    return digest.hexdigest()


def bundle_seal(path: Path) -> str | None:
    """What changes whenever a file of the bundle is written, added or taken away, without reading any; None: not readable.

    The change time is set by nobody but the kernel, so a copy whose seal is the same has the digest that it had.
    """
    digest = hashlib.sha256()
    try:
        for name in _files(path):
            stat = (path / name).lstat()
            facts = (name, stat.st_ino, stat.st_size, stat.st_mode, stat.st_mtime_ns, stat.st_ctime_ns)
            digest.update(repr(facts).encode())
    except OSError:
        return None
    return digest.hexdigest()


def newest_file(path: Path) -> str | None:
    """The file of the bundle that was touched last; None: there is none."""
    try:
        return max(_files(path), key=lambda name: (path / name).lstat().st_ctime_ns, default=None)
    except OSError:
        return None


def check_bundle(path: Path) -> None:
    root = path.resolve()
    total = 0
    for name in _files(path):
        full = path / name
        if full.is_symlink() and not full.resolve().is_relative_to(root):
            raise Refused(
                "MODULE_BAD_BUNDLE", f"bundle {path}", f"{name} is a link that leads out of it", "put a copy there"
            )
        if not full.is_file() and not full.is_dir():
            raise Refused("MODULE_BAD_BUNDLE", f"bundle {path}", f"{name} is no regular file", "take it out")
        total += full.stat().st_size
    if total > BUNDLE_BYTES_MAX:
        raise Refused(
            "MODULE_BAD_BUNDLE", f"bundle {path}", f"it holds {total} bytes", "keep models in the module's data folder"
        )


def copy_bundle(path: Path, place: Path) -> str:
    """Copy a bundle to ``place``, which is replaced, and say the digest of the copy: of what will run, not of what it was made from.

    Its files can be written by nobody. Its folders can, for Python keeps what it compiled in them.
    """
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True, mode=0o700)
    root = path.resolve()
    for name in _files(path):
        source, target = path / name, place / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if source.is_dir():  # a link to a folder of the bundle
            inside = place / source.resolve().relative_to(root)
            target.symlink_to(os.path.relpath(inside, target.parent), target_is_directory=True)
        else:
            shutil.copy2(source, target)
            target.chmod(target.stat().st_mode & ~0o222)
    return bundle_digest(place)


def keep_copy(copy: Path, bundle: Path) -> None:
    """Put a copy where its digest names it. One that is there already and still is what its name says stays."""
    bundle.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if _is_whole(bundle):
        return
    # It goes whole, so that nothing of what it was changed to is in the new one.
    changed = copy.with_name(f"{copy.name}.changed")
    if bundle.is_dir():
        os.rename(bundle, changed)
    try:
        os.rename(copy, bundle)
    except OSError:
        if not _is_whole(bundle):  # somebody else put the same one there meanwhile
            raise
    finally:
        shutil.rmtree(changed, ignore_errors=True)


def _is_whole(bundle: Path) -> bool:
    return bundle.is_dir() and bundle_digest(bundle) == bundle.name


def sdk_sources() -> dict[str, bytes]:
    sdk = Path(__file__).resolve().parent.parent / "cotenant" / "sdk"
    return {path.name: path.read_bytes() for path in sorted(sdk.glob("*.py"))}


def put_sdk(packages: Path, sources: dict[str, bytes]) -> None:
    """The SDK, under both its names, into a ``site-packages``."""
    (packages / "cotenant" / "sdk").mkdir(parents=True, exist_ok=True)
    (packages / "cotenant" / "__init__.py").touch()
    for name, data in sources.items():
        (packages / "cotenant" / "sdk" / name).write_bytes(data)
    (packages / "oarbank_sdk").mkdir(exist_ok=True)
    for name, text in _ALIAS.items():
        (packages / "oarbank_sdk" / name).write_text(text, encoding="utf-8")


def python_environment(home: Path, builds: Builds | None = None, *, insists: bool = False, gpu: bool = True) -> Path:
    """The interpreter in which only the SDK can be imported; built once per Python and SDK version under ``home``.

    A virtual environment without pip: its site-packages hold a copy of ``cotenant.sdk`` and the alias ``oarbank_sdk``.
    ``insists``, ``gpu``: as in ``Builds.run``.
    """
    sources = sdk_sources()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    seal = hashlib.sha256(
        repr((sys.version, sys.base_prefix, sorted(sources.items()), sorted(_ALIAS.items()))).encode()
    )
    place = home / f"python{version}-{seal.hexdigest()[:16]}"
    python = place / "bin" / "python"
    if python.exists():
        return python
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = home / f".new-{os.getpid()}-{threading.get_ident()}"
    shutil.rmtree(temporary, ignore_errors=True)
    command = [sys.executable, "-I", "-m", "venv", "--without-pip", "--symlinks", str(temporary)]
    done = (builds or Builds()).run(
        command, os.environ, BUILD_LIMIT_S, starved_s=STARVED_LIMIT_S, insists=insists, gpu=gpu, short=True
    )
    if done.late or done.code != 0:
        shutil.rmtree(temporary, ignore_errors=True)
        if done.ended:
            raise BuildEnded(f"venv was ended {done.how_ended}")
        how = (
            f"was not done within {BUILD_LIMIT_S:g} s"
            if done.late
            else f"gave {done.code}: {done.words.strip()[-300:]}"
        )
        raise OSError(f"venv {how}")
    put_sdk(temporary / "lib" / f"python{version}" / "site-packages", sources)
    try:
        os.rename(temporary, place)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not python.exists():
            raise
    return python
