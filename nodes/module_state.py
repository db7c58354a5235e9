"""A module as its node has it: what is known of it, and what its doctor and a look at its copy make of that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from nodes.bundles import newest_file
from nodes.doctor import DoctorReport
from nodes.jobs.workdir import platform_name
from policies.manifest import Manifest, ManifestError, parse_manifest

__all__ = ["MANIFEST", "ModuleState", "as_read", "judged_by", "manifest_of", "state_of"]

MANIFEST = "oarbank-module.toml"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


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
    added_by_owner: bool = False
    """It came from ``module add``, so the built-in bundle of the same name does not replace it."""
    notes: tuple[str, ...] = ()
    """What was built from source for it just now, or used of what was built before."""
    seal: str | None = None
    """Of its copy when that was last read; None: it has to be read again."""
    changed: bool = False
    """When its copy was last read, it was not what ``digest`` names any more."""
    unheard: bool = False
    """Its build or its doctor was ended through no fault of its own: of this state nothing is kept."""
    being_read: bool = False
    """Its copy is being read again, so nothing is started from it."""
    stands: bool = False
    """It is ready, or was until its copy began to be read again: what was measured of it still counts."""

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
    def uses_gpu(self) -> bool:
        """By its manifest; one that cannot be read may."""
        return self.manifest is None or self.manifest.uses_gpu

    @property
    def search(self) -> str:
        """``PATH`` of its processes."""
        return f"{self.python.parent}:{SYSTEM_PATH}" if self.python is not None else SYSTEM_PATH

    @property
    def variables(self) -> dict[str, str]:
        """``[runner].env`` as it applies here."""
        return self.manifest.runner_on(platform_name()).env if self.manifest is not None else {}

    def command(self) -> list[str]:
        """The runner's argv up to its verb."""
        return self._resolved(None)

    def service_command(self, name: str) -> list[str]:
        """The whole argv of a workload."""
        return self._resolved(name)

    def _resolved(self, service: str | None) -> list[str]:
        if self.manifest is None or self.bundle is None:
            raise ValueError(f"{self.short} has no bundle that could be run")
        runner = self.manifest.runner_on(platform_name())
        parts = runner.exec if service is None else self.manifest.named_services[service].exec
        argv = [part.replace("{bundle}", str(self.bundle)) for part in parts]
        if argv[0] == "python":
            if self.python is None:
                raise ValueError(f"{self.short} has no Python environment")
            argv[0] = str(self.python)
        return argv

    def as_dict(self) -> dict[str, Any]:
        """The record of the socket's ``modules`` verb."""
        names = ("module", "short", "version", "digest", "state", "why", "stages", "not_used")
        services = list(self.manifest.named_services) if self.manifest is not None else []
        return {
            **{name: getattr(self, name) for name in names},
            "capabilities": sorted(self.capabilities),
            "services": services,
            "notes": list(self.notes),
        }


def state_of(
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


def as_read(state: ModuleState, seal: str | None, found: str) -> ModuleState:
    """As it is where its copy, read under ``seal``, still is what was added, else not ready and why; whole again, it waits for its
    doctor.
    """
    assert state.bundle is not None
    if found != state.digest:
        again = "cotenant module add FOLDER" if state.added_by_owner else f"cotenant module doctor {state.short}"
        why = f"its copy {state.bundle} was changed after it was added (bundle {state.digest[:12]} → {found[:12]}"
        newest = newest_file(state.bundle)
        why += f"; touched last: {newest})" if newest is not None else ")"
        return replace(state, state="not_ready", why=f"{why}: put it there anew: {again}", seal=seal, changed=True)
    if state.changed:
        why = f"its copy is whole again: cotenant module doctor {state.short}"
        return replace(state, seal=seal, changed=False, why=why)
    return replace(state, seal=seal)


def judged_by(state: ModuleState, report: DoctorReport) -> ModuleState:
    healthy = report.health == "healthy"
    why = "" if healthy else report.why
    return replace(state, doctor=report, state="ready" if healthy else "not_ready", why=why, unheard=report.ended)


def manifest_of(path: Path) -> tuple[Manifest | None, str]:
    try:
        return parse_manifest((path / MANIFEST).read_text(encoding="utf-8")), ""
    except (OSError, UnicodeDecodeError, ManifestError) as error:
        return None, f"{MANIFEST}: {error}"
