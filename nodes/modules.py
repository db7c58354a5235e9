"""Modules on a node: bundles, their environments, their doctors.

``modules/<short>/`` holds ``bundles/<digest>/`` (copies, never changed), ``data/`` (the module's own) and ``module.json`` (which bundle
is in use and what its doctor said). A broken manifest or a failing doctor makes a module ``not_ready`` with the reason; it is no error.

Source: ``runner-protocol.md`` ("The module's environment", ``doctor`` output).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from nodes.clock import utc_iso
from nodes.jobs.workdir import platform_name, read_document, runner_environment, write_document
from policies.manifest import Manifest, ManifestError, parse_manifest
from policies.refusal import Refused

__all__ = ["DoctorReport", "ModuleState", "ModuleStore", "bundle_digest", "python_environment"]

MANIFEST = "oarbank-module.toml"
DOCTOR_LIMIT_S = 60.0
DOCTOR_OUTPUT_BYTES = 1 << 20
BUNDLE_BYTES_MAX = 2 << 30
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_LEFT_OUT = frozenset({"__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
_ALIAS = {
    "__init__.py": '"""The SDK under the name by which modules of other hosts import it."""\n',
    "control.py": "from cotenant.sdk.control import *  # noqa: F403\n",
    "duty.py": "from cotenant.sdk.duty import *  # noqa: F403\n",
}


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What the module's doctor said, or why it could not be heard (``health`` "undetected")."""

    health: Literal["healthy", "unhealthy", "undetected"]
    why: str
    checks: list[dict[str, Any]]
    attrs: dict[str, Any]
    capabilities: list[str]

    def as_dict(self) -> dict[str, Any]:
        names = ("health", "why", "checks", "attrs", "capabilities")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class ModuleState:
    """A module as this node has it. ``bundle`` is None until it was added."""

    module: str
    short: str
    version: str
    digest: str
    state: Literal["ready", "not_ready"]
    why: str
    manifest: Manifest | None
    bundle: Path | None
    data: Path
    python: Path | None
    doctor: DoctorReport | None = None

    @property
    def stages(self) -> list[str]:
        return [stage.name for stage in self.manifest.stages] if self.manifest else []

    @property
    def capabilities(self) -> frozenset[str]:
        return self.manifest.capabilities if self.manifest else frozenset()

    @property
    def not_used(self) -> list[str]:
        return self.manifest.not_used if self.manifest else []

    @property
    def search(self) -> str:
        """``PATH`` of its processes."""
        return f"{self.python.parent}:{SYSTEM_PATH}" if self.python is not None else SYSTEM_PATH

    def command(self) -> list[str]:
        """The runner's argv up to its verb."""
        if self.manifest is None or self.bundle is None:
            raise ValueError(f"{self.short} has no bundle that could be run")
        argv = [part.replace("{bundle}", str(self.bundle)) for part in self.manifest.runner_on(platform_name()).exec]
        if argv[0] == "python":
            if self.python is None:
                raise ValueError(f"{self.short} has no Python environment")
            argv[0] = str(self.python)
        return argv

    def as_dict(self) -> dict[str, Any]:
        """The record of the socket's ``modules`` verb."""
        names = ("module", "short", "version", "digest", "state", "why", "stages", "not_used")
        return {**{name: getattr(self, name) for name in names}, "capabilities": sorted(self.capabilities)}


class ModuleStore:
    """Modules of one node.

    Args:
        node_dir: the node's home.
        builtin: folder of bundles that come with the product; each is added when it is first asked for.

    Methods that run a doctor (``add``, ``doctor``, ``prepare``) block for up to a minute: call them in a thread.
    """

    def __init__(self, node_dir: Path, builtin: Path) -> None:
        self._home = Path(node_dir) / "modules"
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._builtin = Path(builtin)
        self._lock = threading.RLock()
        self._states: dict[str, ModuleState] = {}
        self._digests: dict[str, tuple[float, str]] = {}
        for folder in sorted(self._home.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                kept = self._kept(folder.name)
                if kept is not None:
                    self._states[folder.name] = kept

    # -- reading --------------------------------------------------------------------------------------------------------

    def list(self) -> list[ModuleState]:
        """All modules, by short name. A built-in one that was not added yet is there as ``not_ready``."""
        with self._lock:
            found = dict(self._states)
        for short, path in self._builtins():
            found.setdefault(short, self._not_added(short, path))
        return [found[short] for short in sorted(found)]

    def get(self, name: str) -> ModuleState | None:
        """By short name or id."""
        return next((state for state in self.list() if name in (state.short, state.module)), None)

    def ready(self, name: str) -> tuple[bool, str]:
        """Whether its jobs may start, and why not."""
        state = self.get(name)
        if state is None:
            return False, f"there is no module {name!r} on this node"
        return state.state == "ready", state.why

    def pending(self) -> list[str]:
        """Built-in modules that were not added yet, or whose files changed since: for ``prepare`` in a thread."""
        found = []
        for short, path in self._builtins():
            with self._lock:
                state = self._states.get(short)
            if state is None or state.digest != bundle_digest(path):
                found.append(short)
        return found

    def _builtins(self) -> Iterator[tuple[str, Path]]:
        if self._builtin.is_dir():
            for path in sorted(self._builtin.iterdir()):
                if (path / MANIFEST).is_file():
                    yield path.name, path

    # -- adding ---------------------------------------------------------------------------------------------------------

    def prepare(self, name: str) -> ModuleState | None:
        """Add a built-in module (again, where its files changed). Blocks."""
        for short, path in self._builtins():
            if short == name:
                return self.add(path)
        return self.get(name)

    def add(self, path: Path) -> ModuleState:
        """Copy a bundle, build its environment, run its doctor. Blocks.

        Raises:
            Refused: ``path`` is no folder, has no manifest, is too large, or holds a link that leads out of it.
        """
        path = Path(path)
        if not (path / MANIFEST).is_file():
            why = "is no folder" if not path.is_dir() else f"holds no {MANIFEST}"
            raise Refused("MODULE_NO_BUNDLE", f"bundle {path}", why, "name the folder that holds the module's manifest")
        _check_bundle(path)
        digest = bundle_digest(path)
        manifest, why = _manifest(path)
        short = manifest.short if manifest is not None else path.resolve().name.lower()
        with self._lock:
            clash = self._states.get(short)
        if (
            clash is not None
            and manifest is not None
            and clash.manifest is not None
            and clash.module != manifest.module.id
        ):
            raise Refused(
                "MODULE_NAME_TAKEN",
                f"module {manifest.module.id}",
                f"{clash.module} has the short name {short} here",
                "rename one of them",
            )
        bundle = self._home / short / "bundles" / digest
        _copy_bundle(path, bundle)
        data = self._home / short / "data"
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = _state_of(short, digest, manifest, why, bundle, data)
        if manifest is not None and not state.why:
            state = self._with_environment(state)
        if manifest is not None and not state.why:
            state = _judged(state, run_doctor(state))
        return self._keep(state)

    def doctor(self, name: str) -> DoctorReport:
        """Run a module's doctor now and keep what it says. Blocks.

        Raises:
            Refused: there is no such module.
        """
        state = self.get(name)
        if state is None:
            raise Refused(
                "MODULE_UNKNOWN", f"module {name!r}", "there is no such module on this node", "cotenant module list"
            )
        if state.bundle is None:
            state = self.prepare(state.short) or state
            if state.doctor is not None:
                return state.doctor
        else:
            if state.manifest is not None and state.python is None:
                state = self._with_environment(replace(state, why=""))
            if state.manifest is not None and (state.doctor is not None or not state.why):
                state = self._keep(_judged(state, run_doctor(state)))
        return state.doctor or DoctorReport("undetected", state.why, [], {}, [])

    def _with_environment(self, state: ModuleState) -> ModuleState:
        assert state.manifest is not None
        kind = state.manifest.runner_on(platform_name()).runtime.kind
        if kind == "uv":
            return replace(state, why='runtime.kind = "uv" is not supported by this version; use "python" or "native"')
        if kind == "native":
            return state
        try:
            return replace(state, python=python_environment(self._home / ".env"))
        except (OSError, subprocess.SubprocessError) as error:
            return replace(state, why=f"its environment cannot be built: {error}")

    def _keep(self, state: ModuleState) -> ModuleState:
        document = {
            "digest": state.digest,
            "state": state.state,
            "why": state.why,
            "python": str(state.python) if state.python else None,
            "doctor": state.doctor.as_dict() if state.doctor else None,
            "checked_at": utc_iso(),
        }
        with contextlib.suppress(OSError):
            write_document(self._home / state.short / "module.json", document, durable=True)
        with self._lock:
            self._states[state.short] = state
        return state

    def _kept(self, short: str) -> ModuleState | None:
        """As the last agent left it; what cannot be read is not ready."""
        told = read_document(self._home / short / "module.json")
        if told is None:
            return None
        digest = str(told.get("digest", ""))
        bundle = self._home / short / "bundles" / digest
        if not (bundle / MANIFEST).is_file():
            return None
        manifest, why = _manifest(bundle)
        state = _state_of(short, digest, manifest, why, bundle, self._home / short / "data")
        if manifest is None:
            return state
        python = Path(told["python"]) if told.get("python") else None
        if python is not None and not python.exists():
            return replace(state, why="its environment is gone: run its doctor again")
        doctor = told.get("doctor")
        report = DoctorReport(**doctor) if isinstance(doctor, dict) else None
        ready = told.get("state") == "ready"
        return replace(
            state, python=python, doctor=report, state="ready" if ready else "not_ready", why=str(told.get("why", ""))
        )

    def _not_added(self, short: str, path: Path) -> ModuleState:
        manifest, why = _manifest(path)
        state = _state_of(short, "", manifest, why or "its doctor has not run yet", None, self._home / short / "data")
        return state


def _state_of(
    short: str, digest: str, manifest: Manifest | None, why: str, bundle: Path | None, data: Path
) -> ModuleState:
    if manifest is not None and not why:
        wanted = manifest.requires.platforms
        if wanted and platform_name() not in wanted:
            why = f"it runs on {', '.join(wanted)}; this node is {platform_name()}"
    return ModuleState(
        module=manifest.module.id if manifest else short,
        short=short,
        version=manifest.module.version if manifest else "",
        digest=digest,
        state="not_ready",
        why=why,
        manifest=manifest,
        bundle=bundle,
        data=data,
        python=None,
    )


def _judged(state: ModuleState, report: DoctorReport) -> ModuleState:
    healthy = report.health == "healthy"
    return replace(state, doctor=report, state="ready" if healthy else "not_ready", why="" if healthy else report.why)


def _manifest(path: Path) -> tuple[Manifest | None, str]:
    try:
        return parse_manifest((path / MANIFEST).read_text(encoding="utf-8")), ""
    except (OSError, UnicodeDecodeError, ManifestError) as error:
        return None, f"{MANIFEST}: {error}"


# -- bundles --------------------------------------------------------------------------------------------------------------


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
        data = full.read_bytes() if full.is_file() else b""
        mark = b"x" if os.access(full, os.X_OK) else b"-"
        digest.update(f"{len(name.encode())}:{name}:{len(data)}:".encode() + mark)
        digest.update(data)
    return digest.hexdigest()


def _check_bundle(path: Path) -> None:
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


def _copy_bundle(path: Path, bundle: Path) -> None:
    """Whole or not at all; a bundle that is there already has the same contents by its name."""
    if bundle.is_dir():
        return
    bundle.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = bundle.with_name(f".{bundle.name[:16]}.{os.getpid()}.{threading.get_ident()}")
    shutil.rmtree(temporary, ignore_errors=True)
    for name in _files(path):
        target = temporary / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (path / name).is_dir():
            shutil.copy2(path / name, target)
        else:
            target.mkdir(exist_ok=True)
    try:
        os.rename(temporary, bundle)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not bundle.is_dir():
            raise


# -- environments ---------------------------------------------------------------------------------------------------------


def python_environment(home: Path) -> Path:
    """The interpreter in which only the SDK can be imported; built once per Python and SDK version under ``home``.

    A virtual environment without pip: its site-packages hold a copy of ``cotenant.sdk`` and the alias ``oarbank_sdk``.
    """
    sdk = Path(__file__).resolve().parent.parent / "cotenant" / "sdk"
    sources = {path.name: path.read_bytes() for path in sorted(sdk.glob("*.py"))}
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
    subprocess.run(
        [sys.executable, "-I", "-m", "venv", "--without-pip", "--symlinks", str(temporary)],
        check=True,
        capture_output=True,
        timeout=DOCTOR_LIMIT_S,
    )
    packages = temporary / "lib" / f"python{version}" / "site-packages"
    (packages / "cotenant" / "sdk").mkdir(parents=True)
    (packages / "cotenant" / "__init__.py").touch()
    for name, data in sources.items():
        (packages / "cotenant" / "sdk" / name).write_bytes(data)
    (packages / "oarbank_sdk").mkdir()
    for name, text in _ALIAS.items():
        (packages / "oarbank_sdk" / name).write_text(text, encoding="utf-8")
    try:
        os.rename(temporary, place)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not python.exists():
            raise
    return python


# -- doctors --------------------------------------------------------------------------------------------------------------


def run_doctor(state: ModuleState, limit_s: float = DOCTOR_LIMIT_S) -> DoctorReport:
    """``<exec…> doctor --json`` in the module's data folder; blocks for at most ``limit_s``."""
    assert state.manifest is not None
    tmp = state.data.parent / "tmp"
    tmp.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = state.data.parent / "settings.json"
    if not settings.exists():
        write_document(settings, {})
    env = runner_environment(
        short=state.short,
        module_data=state.data,
        tmp=tmp,
        settings=settings,
        search=state.search,
        module_env=state.manifest.runner_on(platform_name()).env,
    )
    with open(tmp / f"doctor-{threading.get_ident()}.out", "w+b") as out:
        try:
            process = subprocess.Popen(
                [*state.command(), "doctor", "--json"],
                cwd=state.data,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return DoctorReport("undetected", f"its doctor cannot be started: {error}", [], {}, [])
        try:
            _, errors = process.communicate(timeout=limit_s)
            late = False
        except subprocess.TimeoutExpired:
            late = True
            errors = b""
        finally:
            # the group is the doctor's own session; its leader is not collected before this
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, 9)
            process.communicate()
        out.seek(0)
        text = out.read(DOCTOR_OUTPUT_BYTES)
    if late:
        return DoctorReport("undetected", f"its doctor did not answer within {limit_s:g} s", [], {}, [])
    return _read_report(text, process.returncode, errors.decode("utf-8", "replace").strip()[-500:])


def _read_report(text: bytes, code: int, errors: str) -> DoctorReport:
    try:
        raw = json.loads(text)
    except ValueError:
        raw = None
    if not isinstance(raw, dict):
        return DoctorReport(
            "undetected", f"its doctor printed no JSON object (exit {code}) {errors}".strip(), [], {}, []
        )
    checks = [check for check in raw.get("checks") or [] if isinstance(check, dict)]
    attrs = raw.get("attrs") if isinstance(raw.get("attrs"), dict) else {}
    capabilities = [str(item) for item in raw.get("capabilities") or []]
    protocol = raw.get("runner_protocol")
    supported = protocol.get("supported") if isinstance(protocol, dict) else None
    health = raw.get("health")
    why = ""
    if not isinstance(supported, list) or 1 not in supported:
        health, why = "unhealthy", f"its doctor does not list runner protocol 1 as supported ({supported!r})"
    elif health not in ("healthy", "unhealthy", "undetected"):
        health, why = "undetected", f"its doctor says health {health!r}"
    elif health != "healthy":
        bad = [f"{check.get('name')}: {check.get('detail', '')}" for check in checks if check.get("ok") is not True]
        why = f"its doctor says {health}" + (f" ({'; '.join(bad)})" if bad else "")
    return DoctorReport(health, why, checks, attrs or {}, capabilities)
