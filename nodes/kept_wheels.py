"""Wheels that were built on this machine, kept so that a lock is built once: per lock, interpreter, machine and build settings.

uv keeps what it builds too, but forgets it when an index tells of the source archive anew. Here a wheel is known by its sha256, which
is checked before it is used; one that is damaged, half written or unknown is removed, said, and built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Kept", "KeptWheels", "build_settings", "cache_home", "cpu_kind"]

log = logging.getLogger(__name__)

INDEX = "built.json"
PIECE_BYTES = 1 << 20
# Wheels of a lock that nobody has used for so long are removed when others are kept.
UNUSED_S = 180 * 86400.0
# What compilers and the build systems around them are told by.
_SETTINGS = re.compile(
    r"(CC|CXX|CFLAGS|CXXFLAGS|CPPFLAGS|LDFLAGS|ARCHFLAGS|MACOSX_DEPLOYMENT_TARGET)$"
    r"|(CMAKE|GGML|LLAMA|CUDA|NVCC|HIP|ROCM|VULKAN|SKBUILD|FORCE_CMAKE)"
)
_INSTRUCTIONS = re.compile(
    r"sse|ssse|avx|fma|f16c|bmi|amx|popcnt|abm|adx|aes|sha|vaes|vpclmul|gfni|movbe"  # x86
    r"|neon|asimd|sve|sme|crc32|atomics|fp|i8mm|bf16|dot|lrcpc|uscat|vfp|idiv|half|lsx|lasx|rv"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A wheel that is what was built. ``package`` is its normalised name."""

    package: str
    path: Path
    sha256: str

    def as_requirement(self) -> str:
        """A line for a requirements file: this very wheel, and its digest for the installer to check again."""
        return f"{self.package} @ {self.path.as_uri()} --hash=sha256:{self.sha256}"


class KeptWheels:
    """The wheels of one lock on this machine, in a folder of their own. One process at a time works with it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.notes: list[str] = []
        """What happened to them, in words for the owner."""

    def sound(self) -> list[Kept]:
        """Those that are whole; what is not is removed and noted."""
        told = self._index()
        before, found = len(told), []
        for path in sorted(self.place.glob("*.whl")):
            expected = told.pop(path.name, None)
            why = "it was not finished" if expected is None else ""
            if expected is not None and (seen := _sha256(path)) != expected:
                why = f"its digest is {seen[:12]}, not {expected[:12]}"
            if why:
                self._note(f"the kept wheel {path.name} is damaged ({why}): it is built again", warn=True)
                path.unlink(missing_ok=True)
            else:
                found.append(Kept(package_of(path.name), path, str(expected)))
        for name in told:
            self._note(f"the kept wheel {name} is gone: it is built again", warn=True)
        if len(found) != before:
            with contextlib.suppress(OSError):
                self._write({kept.path.name: kept.sha256 for kept in found})
        for kept in found:
            self._note(f"{kept.path.name} was built here before and is used again")
        with contextlib.suppress(OSError):
            os.utime(self.place / INDEX)
        return found

    def keep(self, built: Iterable[Path]) -> None:
        """Take wheels over, whole or not at all. What cannot be kept is noted: the environment works without.

        Args:
            built: files on any file system; they stay where they are.
        """
        kept = {name: digest for name, digest in self._index().items() if (self.place / name).is_file()}
        try:
            for wheel in built:
                draft = self.place / f".{wheel.name}.{os.getpid()}"
                try:
                    shutil.copyfile(wheel, draft)
                    _sync(draft)
                    kept[wheel.name] = _sha256(draft)
                    os.replace(draft, self.place / wheel.name)
                finally:
                    draft.unlink(missing_ok=True)
                self._note(f"{wheel.name} was built here and is kept in {self.place}")
            self._write(kept)
        except OSError as error:
            self._note(f"what was built could not be kept, and will be built again: {error}", warn=True)
        self._forget_unused()

    def _index(self) -> dict[str, str]:
        try:
            wheels = json.loads((self.place / INDEX).read_text(encoding="utf-8"))["wheels"]
            return {str(name): str(digest) for name, digest in wheels.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def _write(self, kept: Mapping[str, str]) -> None:
        draft = self.place / f".{INDEX}.{os.getpid()}"
        draft.write_text(json.dumps({"wheels": dict(kept)}, indent=1), encoding="utf-8")
        _sync(draft)
        os.replace(draft, self.place / INDEX)

    def _forget_unused(self) -> None:
        for index in self.place.parent.glob(f"*/{INDEX}"):
            with contextlib.suppress(OSError):
                if time.time() - index.stat().st_mtime > UNUSED_S:
                    shutil.rmtree(index.parent, ignore_errors=True)

    def _note(self, words: str, *, warn: bool = False) -> None:
        self.notes.append(words)
        log.log(logging.WARNING if warn else logging.INFO, "%s", words)


def package_of(wheel: str) -> str:
    """The normalised name of the package in a wheel's file name."""
    return re.sub(r"[-_.]+", "-", wheel.split("-")[0]).lower()


def cache_home(fallback: Path) -> Path:
    """Where wheels are kept for all homes and nodes of this account: its cache folder.

    Args:
        fallback: where the account has none that is its own and that only it can write: what lies there will be run.
    """
    try:
        base = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
        if (named := os.environ.get("XDG_CACHE_HOME")) and Path(named).is_absolute():
            base = Path(named)
        place = base / "cotenant" / "wheels"
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder, others_write in ((place, 0o022), (place.parent, 0o002)):
            stat = folder.stat()
            if stat.st_uid != os.geteuid() or stat.st_mode & others_write:
                return fallback
        return place if os.access(place, os.W_OK | os.X_OK) else fallback
    except (OSError, RuntimeError):
        return fallback


def build_settings(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that make another wheel of the same source."""
    return sorted((name, value) for name, value in environ.items() if value and _SETTINGS.match(name))


def cpu_kind() -> str:
    """What a compiler builds for when it builds for this very machine."""
    found = [platform.machine(), platform.system()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    # a kernel's update may add others, which say nothing of instructions
                    found.append(" ".join(sorted(flag for flag in value.split() if _INSTRUCTIONS.match(flag))))
                    break
    except OSError:
        found.append(platform.processor())
    return "\n".join(found)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
