"""The environment of a module with ``runtime.kind = "uv"``: built once per bundle from its lock, never inside a job.

Offline from the bundle's ``wheels/`` where it has them, else through the owner's index, as uv is configured. It is built in place, as
an environment cannot be moved; a mark at the end says that it is whole. What has to be built from source is built once per lock
(``nodes.kept_wheels``).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodes.builds import Builds, Built
from nodes.bundles import put_sdk, sdk_sources
from nodes.kept_wheels import KeptWheels, build_settings, cache_home, cpu_kind, package_of
from policies.manifest import Runtime

__all__ = ["Environment", "EnvironmentEnded", "EnvironmentFailed", "find_uv", "uv_environment"]

# A backend built from source takes minutes; at idle priority beside a busy program many times that.
BUILD_LIMIT_S = 4 * 3600.0
WHOLE = ".whole"
WORDS_KEPT = 800
LOCK_LOOK_S = 0.5
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==", re.MULTILINE)
# What a wheel built for one interpreter may depend on.
_INTERPRETER = (
    "import platform, sys, sysconfig as c; "
    "print(sys.implementation.cache_tag, c.get_config_var('SOABI'), c.get_platform(), *platform.libc_ver())"
)


class EnvironmentFailed(Exception):
    """It could not be built; the text says why, in uv's words where it was uv."""


class EnvironmentEnded(EnvironmentFailed):
    """Its build was ended through no fault of its own."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Its interpreter, and what became of wheels that had to be built, in words."""

    python: Path
    notes: tuple[str, ...] = ()


def find_uv() -> str | None:
    """uv beside this interpreter (a dependency of the project), else on PATH."""
    beside = Path(sys.prefix) / "bin" / "uv"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")


def uv_environment(
    bundle: Path,
    digest: str,
    runtime: Runtime,
    home: Path,
    builds: Builds,
    *,
    insists: bool = False,
    gpu: bool = True,
) -> Environment:
    """The environment, built where it is not there yet.

    Args:
        bundle: the copied bundle; its ``pyproject.toml`` lies beside the lock that the manifest names.
        home: where the module's environments are kept, one a bundle and SDK.
        builds: the agent's.
        insists, gpu: as in ``Builds.run``.

    Raises:
        EnvironmentEnded: with the agent, or for want of memory.
        EnvironmentFailed: no uv, no usable lock, a package that cannot be had or built.
    """
    sources = sdk_sources()
    facts = (digest, runtime.lock, runtime.python, sys.version, sorted(sources.items()), cpu_kind())
    place = home / hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    python = place / "bin" / "python"
    notes: tuple[str, ...] = ()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    asked = _Asked(builds, insists, gpu)
    with _alone(home / f"{place.name}.lock", asked):
        if not (place / WHOLE).exists() or not python.exists():
            shutil.rmtree(place, ignore_errors=True)
            notes = _Building(bundle, runtime, place, asked).build()
            packages = next(place.glob("lib/python*/site-packages"), None)
            if packages is None:
                raise EnvironmentFailed("uv made an environment without a site-packages folder")
            put_sdk(packages, sources)
            (place / WHOLE).touch()
    return Environment(python, notes)


class _Asked:
    """How one environment is asked for, and the locks that are held for it: whoever insists on one of those insists on it."""

    def __init__(self, builds: Builds, insists: bool, gpu: bool) -> None:
        self.builds, self.insists, self.gpu = builds, insists, gpu
        self.locks: list[Path] = []

    def is_insisted(self) -> bool:
        return self.insists or any(self.builds.is_insisted(lock) for lock in self.locks)


@contextlib.contextmanager
def _alone(path: Path, asked: _Asked) -> Iterator[None]:
    """Other processes may build for hours: whoever waits for them stops waiting when its agent stops."""
    with contextlib.ExitStack() as waiting, open(path, "a") as lock:
        insisting = False
        while True:
            if not insisting and asked.is_insisted():
                insisting = True
                waiting.enter_context(asked.builds.insisting(path))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if asked.builds.is_over:
                    raise EnvironmentEnded(
                        "its build was waited for when the agent ended; add the module again"
                    ) from None
            time.sleep(LOCK_LOOK_S)
        waiting.close()
        asked.locks.append(path)
        try:
            yield
        finally:
            asked.locks.remove(path)


class _Building:
    """One environment being built in ``place``."""

    def __init__(self, bundle: Path, runtime: Runtime, place: Path, asked: _Asked) -> None:
        uv = find_uv()
        if uv is None:
            raise EnvironmentFailed(
                "there is no uv on this node; install it (https://docs.astral.sh/uv/) and try again"
            )
        lock = bundle / (runtime.lock or "uv.lock")
        if not lock.resolve().is_relative_to(bundle.resolve()) or lock.name != "uv.lock":
            raise EnvironmentFailed(f"the lock {runtime.lock!r} is no uv.lock inside the bundle")
        if not lock.is_file() or not (lock.parent / "pyproject.toml").is_file():
            raise EnvironmentFailed(f"the bundle has no {runtime.lock or 'uv.lock'} with a pyproject.toml beside it")
        self._uv, self._lock, self._place, self._asked = uv, lock, place, asked
        self._wheels = bundle / "wheels"
        self._python = runtime.python or sys.executable
        self._env = dict(os.environ)
        for name in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH", "PYTHONHOME"):
            self._env.pop(name, None)

    def build(self) -> tuple[str, ...]:
        """What happened to wheels that had to be built."""
        self._uv_does("venv", "--no-project", "--python", self._python, str(self._place))
        with tempfile.TemporaryDirectory(prefix="cotenant-uv-") as scratch:
            wanted = Path(scratch) / "requirements.txt"
            if self._wheels.is_dir():
                # They were built from what the lock names, and the bundle's digest covers them.
                self._export(wanted, "--no-hashes")
                self._install(wanted, "--no-index", "--offline", "--find-links", str(self._wheels))
                return ()
            return self._from_index(wanted)

    def _from_index(self, wanted: Path) -> tuple[str, ...]:
        """With wheels of the index and those kept here; where that is not enough, what is missing is built, and kept."""
        home = cache_home(self._place.parent / "wheels")
        kept = KeptWheels(home / self._seal())
        kept.place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(home / f"{kept.place.name}.lock", self._asked):
            sound = kept.sound()
            without = [word for one in sound for word in ("--no-emit-package", one.package)]
            self._export(wanted, *without)
            with open(wanted, "a", encoding="utf-8") as file:
                file.writelines(one.as_requirement() + "\n" for one in sound)
            hashed = ("--require-hashes",)
            # uv may hold a wheel that it built under other settings
            if sound or not build_settings(self._env):
                tried = self._tries(wanted, *hashed, "--no-build")
                if tried.ended:
                    self._done(tried, "uv pip")
                if tried.code == 0:
                    return tuple(kept.notes)
            cache = kept.place / "building"
            shutil.rmtree(cache, ignore_errors=True)
            try:
                # in a cache of its own, where what it builds can be told from what it built before
                self._install(wanted, *hashed, "--cache-dir", str(cache))
                pinned = {package_of(name) for name in _PINNED.findall(wanted.read_text(encoding="utf-8"))}
                built = [path for path in sorted(cache.glob("sdists-*/**/*.whl")) if path.is_file()]
                kept.keep(path for path in built if package_of(path.name) in pinned)
            finally:
                shutil.rmtree(cache, ignore_errors=True)
            return tuple(kept.notes)

    def _seal(self) -> str:
        """Of everything that makes another wheel."""
        facts = self._done(self._builds_run([str(self._place / "bin" / "python"), "-I", "-c", _INTERPRETER]), "python")
        digest = hashlib.sha256(self._lock.read_bytes())
        digest.update(repr((facts.words.split(), cpu_kind(), build_settings(self._env))).encode())
        return digest.hexdigest()[:24]

    # -- uv -------------------------------------------------------------------------------------------------------------

    def _export(self, wanted: Path, *more: str) -> None:
        from_lock = ("--frozen", "--no-emit-project", "--no-dev", "--directory", str(self._lock.parent))
        self._uv_does("export", *from_lock, *more, "--output-file", str(wanted))

    def _tries(self, wanted: Path, *more: str) -> Built:
        python = str(self._place / "bin" / "python")
        return self._builds_run([self._uv, "pip", "install", "--python", python, "-r", str(wanted), *more])

    def _install(self, wanted: Path, *more: str) -> None:
        self._done(self._tries(wanted, *more), "uv pip")

    def _uv_does(self, verb: str, *arguments: str) -> None:
        self._done(self._builds_run([self._uv, verb, *arguments]), f"uv {verb}")

    def _builds_run(self, argv: Sequence[str]) -> Built:
        try:
            asked = self._asked
            return asked.builds.run(argv, self._env, BUILD_LIMIT_S, insists=asked.is_insisted, gpu=asked.gpu)
        except OSError as error:
            raise EnvironmentFailed(f"{Path(argv[0]).name} {argv[1]}: {error}") from error

    @staticmethod
    def _done(done: Built, what: str) -> Built:
        if done.ended:
            raise EnvironmentEnded(f"{what} was ended {done.how_ended}; add the module again")
        if done.late:
            raise EnvironmentFailed(f"{what} was not done within {BUILD_LIMIT_S / 3600:g} hours")
        if done.code != 0:
            words = " ".join(done.words.split())[-WORDS_KEPT:]
            raise EnvironmentFailed(f"{what} gave {done.code}: {words}")
        return done
