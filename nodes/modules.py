"""Modules on a node: bundles, their environments, their doctors.

``modules/<short>/`` holds ``bundles/<digest>/`` (copies, never changed: a module whose copy was is not ready), ``data/`` (the
module's own) and ``module.json`` (which bundle is in use and what its doctor said). A broken manifest or a failing doctor makes a
module ``not_ready`` with the reason; it is no error.

Source: ``runner-protocol.md`` ("The module's environment", ``doctor`` output).
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nodes.builds import BuildEnded, Builds
from nodes.bundles import (
    bundle_digest,
    bundle_seal,
    check_bundle,
    copy_bundle,
    keep_copy,
    python_environment,
)
from nodes.clock import utc_iso
from nodes.copy_reads import CopyReads, touched
from nodes.doctor import DoctorReport, run_doctor
from nodes.jobs.runnerfiles import read_document, write_document
from nodes.jobs.workdir import platform_name
from nodes.module_state import MANIFEST, ModuleState, as_read, judged_by, manifest_of, state_of
from nodes.uv_environment import EnvironmentEnded, EnvironmentFailed, uv_environment
from policies.manifest import Manifest
from policies.refusal import Refused

__all__ = [
    "MANIFEST",
    "READ_WITHIN_S",
    "DoctorReport",
    "ModuleState",
    "ModuleStore",
    "bundle_digest",
    "python_environment",
]

READ_WITHIN_S = 20.0
"""So long whoever may wait waits for a copy that is being read: below the time that a client of the socket has."""
BEING_READ = (
    "its copy is being read, to see whether it still is what was added: nothing starts from it before that has ended"
)


class ModuleStore:
    """Modules of one node.

    Args:
        node_dir: the node's home.
        builtin: folder of bundles that come with the product; each is added when it is first asked for.

    Methods that run a doctor (``add``, ``doctor``, ``prepare``) block for up to a minute, and for as long as an environment
    takes to build (``nodes.uv_environment``): call them in a thread.
    """

    def __init__(self, node_dir: Path, builtin: Path) -> None:
        self._home = Path(node_dir) / "modules"
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._builtin = Path(builtin)
        self.builds = Builds()
        self._lock = threading.RLock()
        self._states: dict[str, ModuleState] = {}
        # Adding takes long: by module, which of those that were begun is in force. None that was begun before it comes after it.
        self._turns = itertools.count(1)
        self._in_force: dict[str, int] = {}
        # Why the last try of a module was not heard to its end.
        self._unheard: dict[str, str] = {}
        self._reads = CopyReads(self._was_read)
        for folder in sorted(self._home.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                kept = self._kept(folder.name)
                if kept is not None:
                    self._states[folder.name] = kept
                    if kept.bundle is not None and touched(kept.bundle, kept.seal):
                        self._reads.begin(kept.short, kept.bundle, kept.seal, first=True)

    # -- reading --------------------------------------------------------------------------------------------------------

    def list(self) -> list[ModuleState]:
        """All modules, by short name. A built-in one that was not added yet is there as ``not_ready``."""
        with self._lock:
            found = {short: self._shown(state) for short, state in self._states.items()}
        for short, path in self._builtins():
            if short not in found:
                found[short] = self._not_added(short, path)
        return [found[short] for short in sorted(found)]

    def get(self, name: str) -> ModuleState | None:
        """By short name or id."""
        with self._lock:
            for state in self._states.values():
                if name in (state.short, state.module):
                    return self._shown(state)
        return next((state for state in self.list() if name in (state.short, state.module)), None)

    def ready(self, name: str) -> tuple[bool, str]:
        """Whether its jobs may start, and why not."""
        state = self.get(name)
        if state is None:
            return False, f"there is no module {name!r} on this node"
        return state.state == "ready", state.why

    def bundles(self) -> dict[str, str]:
        """Digest by module of those that stand."""
        return {state.module: state.digest for state in self.list() if state.stands}

    def check(self, name: str | None = None, *, within_s: float = 0.0) -> None:
        """Look whether copies (all of them, or one module's) still are what was added; one that is not makes its module not ready.

        A copy is read again only where one of its files was touched since: otherwise this costs a look at each file. It is read in
        a thread, and its module is not ready until that has ended; ``within_s``: wait so long for it.
        """
        until_s = time.monotonic() + within_s
        for _ in range(2):  # again: it may have been touched while it was read
            with self._lock:
                asked = [state for state in self._states.values() if name in (None, state.short, state.module)]
            for state in asked:
                if state.bundle is not None and touched(state.bundle, state.seal):
                    self._reads.begin(state.short, state.bundle, state.seal)
            reading = [state.short for state in asked if self._reads.running(state.short)]
            if within_s <= 0.0 or not reading:
                return
            self._reads.wait(reading, until_s)

    def _shown(self, state: ModuleState) -> ModuleState:
        ready = state.state == "ready"
        if not self._reads.running(state.short):
            return replace(state, stands=ready) if state.stands != ready else state
        stands = ready and not self._reads.first(state.short)
        return replace(state, state="not_ready", why=BEING_READ, being_read=True, stands=stands)

    def _was_read(self, short: str, bundle: Path, known: str | None, seal: str | None, found: str) -> None:
        while True:
            with self._lock:
                state = self._states.get(short)
            if state is None or (state.bundle, state.seal) != (bundle, known):
                return  # it was added anew meanwhile
            judged = as_read(state, seal, found)
            with self._lock:
                if self._states.get(short) is state:
                    self._states[short] = judged
                    break
        if judged != state:
            self._write(judged)

    def pending(self) -> builtins.list[str]:
        """Built-in modules that were not added yet, or whose files changed since: for ``prepare`` in a thread. Blocks for as long
        as copies are being read.
        """
        self._reads.wait([short for short, _ in self._builtins()], time.monotonic() + READ_WITHIN_S)
        found = []
        for short, path in self._builtins():
            with self._lock:
                state = self._states.get(short)
            if state is None or (not state.added_by_owner and (state.changed or state.digest != bundle_digest(path))):
                found.append(short)
        return found

    def _builtins(self) -> Iterator[tuple[str, Path]]:
        if self._builtin.is_dir():
            for path in sorted(self._builtin.iterdir()):
                if (path / MANIFEST).is_file():
                    yield path.name, path

    def uses_gpu(self, module: str | Path) -> bool:
        """A module of this node by name, or a bundle by its folder, by its manifest; one that cannot be read may."""
        if isinstance(module, Path):
            manifest, _ = manifest_of(module)
            return manifest is None or manifest.uses_gpu
        state = self.get(module)
        return state is None or state.uses_gpu

    # -- adding ---------------------------------------------------------------------------------------------------------

    def prepare(self, name: str, *, insists: bool = False) -> ModuleState | None:
        """Add a built-in module (again, where its files changed). Blocks. ``insists``: in spite of what holds fleet work."""
        for short, path in self._builtins():
            if short == name:
                state = self.get(name)
                return (
                    state
                    if state is not None and state.added_by_owner
                    else self._add(path, by_owner=False, insists=insists)
                )
        return self.get(name)

    def add(self, path: Path, *, insists: bool = False) -> ModuleState:
        """Copy a bundle, build its environment, run its doctor. Blocks. ``insists``: in spite of what holds fleet work.

        Raises:
            Refused: ``path`` is no folder, has no manifest, is too large, or holds a link that leads out of it.
        """
        by_owner = not any(Path(path).resolve() == own.resolve() for _, own in self._builtins())
        return self._add(path, by_owner=by_owner, insists=insists)

    def _add(self, path: Path, *, by_owner: bool, insists: bool) -> ModuleState:
        path, turn = Path(path), next(self._turns)
        if not (path / MANIFEST).is_file():
            why = "is no folder" if not path.is_dir() else f"holds no {MANIFEST}"
            raise Refused("MODULE_NO_BUNDLE", f"bundle {path}", why, "name the folder that holds the module's manifest")
        check_bundle(path)
        copy = self._home / f".adding.{os.getpid()}.{threading.get_ident()}"
        try:
            digest = copy_bundle(path, copy)
            manifest, why = manifest_of(copy)
            short = manifest.short if manifest is not None else path.resolve().name.lower()
            self._check_name(short, manifest)
            bundle = self._home / short / "bundles" / digest
            keep_copy(copy, bundle)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        data = self._home / short / "data"
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = state_of(short, digest, manifest, why, bundle, data)
        state = replace(state, added_by_owner=by_owner, seal=bundle_seal(bundle))
        if manifest is not None and not state.why:
            state = self._with_environment(state, insists=insists)
        if manifest is not None and not state.why:
            state = self._asked(state, insists=insists)
        with self._lock:
            if turn < self._in_force.get(short, 0):
                why = "another bundle of the module was added while this one was built or asked"
                raise Refused("MODULE_NOT_ADDED", f"bundle {path}", why, f"cotenant module add {path}")
            if not state.unheard:
                self._in_force[short] = turn
        return self._keep(state)

    def _check_name(self, short: str, manifest: Manifest | None) -> None:
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

    def doctor(self, name: str, *, insists: bool = False) -> DoctorReport:
        """Run a module's doctor now and keep what it says. Blocks. ``insists``: in spite of what holds fleet work.

        Raises:
            Refused: there is no such module.
        """
        self.check(name, within_s=READ_WITHIN_S)
        state = self.get(name)
        if state is None:
            raise Refused(
                "MODULE_UNKNOWN", f"module {name!r}", "there is no such module on this node", "cotenant module list"
            )
        if state.being_read or (state.changed and state.added_by_owner):
            return DoctorReport("undetected", state.why, [], {}, [])
        if state.bundle is None or state.changed:
            state = self.prepare(state.short, insists=insists) or state
            if state.doctor is not None:
                return state.doctor
        else:
            if state.manifest is not None and state.python is None:
                state = self._with_environment(replace(state, why=""), insists=insists)
            if state.unheard:
                return DoctorReport("undetected", self._keep(state).why, [], {}, [], ended=True)
            if state.manifest is not None and (state.doctor is not None or not state.why):
                asked = self._asked(state, insists=insists)
                with self._lock:
                    now = self._states.get(state.short)
                if now is not None and (now.digest, now.added_by_owner) != (state.digest, state.added_by_owner):
                    why = "another bundle of the module was added while its doctor was asked; ask it again"
                    return DoctorReport("undetected", why, [], {}, [])
                state = self._keep(asked)
        return state.doctor or DoctorReport("undetected", state.why, [], {}, [])

    def _asked(self, state: ModuleState, *, insists: bool) -> ModuleState:
        return judged_by(state, run_doctor(state, builds=self.builds, insists=insists, gpu=state.uses_gpu))

    def _with_environment(self, state: ModuleState, *, insists: bool) -> ModuleState:
        assert state.manifest is not None
        runtime = state.manifest.runner_on(platform_name()).runtime
        if runtime.kind == "native":
            return state
        if runtime.kind == "uv":
            assert state.bundle is not None
            place = self._home / state.short / "environments"
            try:
                built = uv_environment(
                    state.bundle, state.digest, runtime, place, self.builds, insists=insists, gpu=state.uses_gpu
                )
                return replace(state, python=built.python, notes=built.notes)
            except EnvironmentEnded as error:
                return replace(state, why=f"its environment is not built: {error}", unheard=True)
            except EnvironmentFailed as error:
                return replace(state, why=f"its environment cannot be built: {error}")
        try:
            home = self._home / ".env"
            python = python_environment(home, self.builds, insists=insists, gpu=state.uses_gpu)
            return replace(state, python=python)
        except BuildEnded as error:
            return replace(state, why=f"its environment is not built: {error}", unheard=True)
        except OSError as error:
            return replace(state, why=f"its environment cannot be built: {error}")

    def _keep(self, state: ModuleState) -> ModuleState:
        if state.unheard:
            return self._as_it_was(state)
        self._unheard.pop(state.short, None)
        with self._lock:
            self._states[state.short] = state
        self._write(state)
        return state

    def _as_it_was(self, state: ModuleState) -> ModuleState:
        """The module is as it was before this try, so that one of the product is tried again by the next agent."""
        self._unheard[state.short] = state.why
        with self._lock:
            before = self._states.get(state.short)
            if before is not None and before.changed and not before.added_by_owner:
                # its copy is whole by now, and nobody has heard its doctor since
                del self._states[state.short]
                with contextlib.suppress(OSError):
                    (self._home / state.short / "module.json").unlink()
        return state

    def _write(self, state: ModuleState) -> None:
        document = {
            "digest": state.digest,
            "state": state.state,
            "why": state.why,
            "python": str(state.python) if state.python else None,
            "doctor": state.doctor.as_dict() if state.doctor else None,
            "added_by_owner": state.added_by_owner,
            "seal": state.seal,
            "changed": state.changed,
            "checked_at": utc_iso(),
        }
        with contextlib.suppress(OSError):
            write_document(self._home / state.short / "module.json", document, durable=True)

    def _kept(self, short: str) -> ModuleState | None:
        """As the last agent left it; what cannot be read is not ready."""
        told = read_document(self._home / short / "module.json")
        if told is None:
            return None
        digest = str(told.get("digest", ""))
        bundle = self._home / short / "bundles" / digest
        if not digest or not bundle.is_dir():
            return None
        manifest, why = manifest_of(bundle)
        state = replace(
            state_of(short, digest, manifest, why, bundle, self._home / short / "data"),
            added_by_owner=told.get("added_by_owner") is True,
            seal=told.get("seal") if isinstance(told.get("seal"), str) else None,
        )
        if told.get("changed") is True:
            state = replace(state, changed=True, why=str(told.get("why", "")))
        elif manifest is None:
            return state
        python = Path(told["python"]) if told.get("python") else None
        doctor = told.get("doctor")
        report = DoctorReport(**doctor) if isinstance(doctor, dict) else None
        if state.changed:
            return replace(state, python=python, doctor=report)
        if python is not None and not python.exists():
            return replace(state, why="its environment is gone: run its doctor again")
        ready = told.get("state") == "ready"
        return replace(
            state, python=python, doctor=report, state="ready" if ready else "not_ready", why=str(told.get("why", ""))
        )

    def _not_added(self, short: str, path: Path) -> ModuleState:
        manifest, why = manifest_of(path)
        hold = self.builds.held(gpu=manifest is None or manifest.uses_gpu)
        if hold is not None:
            why = why or f"its doctor waits: {hold}"
        why = why or self._unheard.get(short, "its doctor has not run yet")
        return state_of(short, "", manifest, why, None, self._home / short / "data")
