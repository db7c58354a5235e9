"""The environment of a module with ``runtime.kind = "uv"``: built once per bundle from its lock, never inside a job.

Offline from the bundle's ``wheels/`` where it has them, else through the owner's index, as uv is configured. It is built in place, as
an environment cannot be moved; a mark at the end says that it is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodes.builds import Builds
from nodes.bundles import put_sdk, sdk_sources
from policies.manifest import Runtime

__all__ = ["EnvironmentFailed", "find_uv", "uv_environment"]

# A backend built from source takes minutes; at idle priority beside a busy program many times that.
BUILD_LIMIT_S = 4 * 3600.0
WHOLE = ".whole"
WORDS_KEPT = 800


class EnvironmentFailed(Exception):
    """It could not be built; the text says why, in uv's words where it was uv."""


def find_uv() -> str | None:
    """uv beside this interpreter (a dependency of the project), else on PATH."""
    beside = Path(sys.prefix) / "bin" / "uv"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")


def uv_environment(bundle: Path, digest: str, runtime: Runtime, home: Path, builds: Builds) -> Path:
    """The environment's interpreter.

    Args:
        bundle: the copied bundle; its ``pyproject.toml`` lies beside the lock that the manifest names.
        home: where the module's environments are kept, one a bundle and SDK.
        builds: the agent's.

    Raises:
        EnvironmentFailed: no uv, no usable lock, a package that cannot be had or built.
    """
    sources = sdk_sources()
    seal = hashlib.sha256(repr((digest, runtime.lock, runtime.python, sys.version, sorted(sources.items()))).encode())
    place = home / seal.hexdigest()[:24]
    python = place / "bin" / "python"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(home / f"{place.name}.lock"):
        if not (place / WHOLE).exists() or not python.exists():
            shutil.rmtree(place, ignore_errors=True)
            _build(bundle, runtime, place, builds)
            packages = next(place.glob("lib/python*/site-packages"), None)
            if packages is None:
                raise EnvironmentFailed("uv made an environment without a site-packages folder")
            put_sdk(packages, sources)
            (place / WHOLE).touch()
    return python


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with open(path, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(bundle: Path, runtime: Runtime, place: Path, builds: Builds) -> None:
    uv = find_uv()
    if uv is None:
        raise EnvironmentFailed("there is no uv on this node; install it (https://docs.astral.sh/uv/) and try again")
    lock = bundle / (runtime.lock or "uv.lock")
    if not lock.resolve().is_relative_to(bundle.resolve()) or lock.name != "uv.lock":
        raise EnvironmentFailed(f"the lock {runtime.lock!r} is no uv.lock inside the bundle")
    if not lock.is_file() or not (lock.parent / "pyproject.toml").is_file():
        raise EnvironmentFailed(f"the bundle has no {runtime.lock or 'uv.lock'} with a pyproject.toml beside it")
    wheels = bundle / "wheels"
    offline = wheels.is_dir()
    env = dict(os.environ)
    for name in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH", "PYTHONHOME"):
        env.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="cotenant-uv-") as scratch:
        wanted = Path(scratch) / "requirements.txt"
        export = [uv, "export", "--frozen", "--no-emit-project", "--no-dev", "--directory", str(lock.parent)]
        # Wheels of the bundle were built from what the lock names, and the bundle's digest covers them.
        export += ["--no-hashes"] if offline else []
        _run(builds, [*export, "--output-file", str(wanted)], env)
        _run(builds, [uv, "venv", "--no-project", "--python", runtime.python or sys.executable, str(place)], env)
        install = [uv, "pip", "install", "--python", str(place / "bin" / "python"), "-r", str(wanted)]
        if offline:
            install += ["--no-index", "--offline", "--find-links", str(wheels)]
        else:
            install += ["--require-hashes"]
        _run(builds, install, env)


def _run(builds: Builds, argv: list[str], env: Mapping[str, str]) -> None:
    try:
        done = builds.run(argv, env, BUILD_LIMIT_S)
    except OSError as error:
        raise EnvironmentFailed(f"uv {argv[1]}: {error}") from error
    if done.ended:
        raise EnvironmentFailed(f"uv {argv[1]} was ended with the agent; add the module again")
    if done.late:
        raise EnvironmentFailed(f"uv {argv[1]} was not done within {BUILD_LIMIT_S / 3600:g} hours")
    if done.code != 0:
        words = " ".join(done.words.split())[-WORDS_KEPT:]
        raise EnvironmentFailed(f"uv {argv[1]} gave {done.code}: {words}")
