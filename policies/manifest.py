"""The module manifest ``oarbank-module.toml`` (schema 1): what a bundle of fleet work says of itself.

Source: ``runner-protocol.md`` ("Manifest"). A module written for another host must load here unmodified, so keys that only
matter elsewhere are accepted and listed in ``Manifest.not_used``; keys that this host reads are checked, and an error names its key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from policies.workloads import is_workload, workload_name

__all__ = ["CAPABILITIES", "Manifest", "ManifestError", "Runner", "Stage", "is_reserved_variable", "parse_manifest"]

CAPABILITIES = frozenset(
    {
        "cancellable",
        "cooperative_pause",
        "cooperative_throttle",
        "freeze_ok",
        "progress_events",
        "resumable",
        "deterministic_output",
    }
)
RUNNER_PROTOCOL = 1
RESERVED = frozenset({"TMPDIR", "PATH", "HOME", "LANG", "PYTHONUTF8", "CUDA_VISIBLE_DEVICES"})
RESERVED_PREFIXES = ("OARBANK_", "CUDA_MPS_")
_ID = re.compile(r"^[a-z0-9][a-z0-9-]*(\.[a-z0-9][a-z0-9_-]*)*$")
_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]*$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


class ManifestError(ValueError):
    """A manifest that cannot be used. ``problems`` is a list of ``(key, why)``; the text shows them all."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {why}" if key else why for key, why in problems))
        self.problems = problems


def is_reserved_variable(name: str) -> bool:
    """Whether the agent itself sets this variable, so that ``[runner].env`` may not."""
    return name in RESERVED or name.startswith(RESERVED_PREFIXES)


class _Part(BaseModel):
    """Keys beyond the declared ones are kept (``model_extra``), to be listed as not used."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Module(_Part):
    id: str
    version: str
    compat: Any = None
    license: str = ""
    description: str = ""

    @field_validator("id")
    @classmethod
    def _id(cls, value: str) -> str:
        if not _ID.match(value) or len(value) > 200:
            raise ValueError("must be lower-case words joined by dots, such as dev.example.render")
        return value


class Requires(_Part):
    platforms: list[str] = []
    runner_protocol: Any = RUNNER_PROTOCOL

    @field_validator("runner_protocol")
    @classmethod
    def _protocol(cls, value: Any) -> Any:
        numbers = [
            int(n) for n in re.findall(r"\d+", " ".join(map(str, value if isinstance(value, list) else [value])))
        ]
        if RUNNER_PROTOCOL not in numbers:
            raise ValueError(f"this host speaks runner protocol {RUNNER_PROTOCOL}; the module asks for {value!r}")
        return value


class Runtime(_Part):
    kind: Literal["python", "uv", "native"] = "python"
    lock: str | None = None
    python: str | None = None


class Gpu(_Part):
    use: Literal["none", "shared", "exclusive"] = "none"
    apis_any: list[str] = []
    min_vram_gb: float = Field(default=0.0, ge=0.0)


def _checked_exec(value: list[str]) -> list[str]:
    if not value:
        raise ValueError("needs at least one element")
    head = value[0]
    if head != "python" and not head.startswith("{bundle}/"):
        raise ValueError("element 0 must be the word python or a path that begins with {bundle}/")
    for element in value:
        if "\0" in element:
            raise ValueError("an element holds a NUL byte")
        if "{bundle}" in element and ".." in element.split("/"):
            raise ValueError(f"{element!r} leaves the bundle")
    return value


def _known_capabilities(value: list[str]) -> list[str]:
    unknown = sorted(set(value) - CAPABILITIES)
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; allowed are {', '.join(sorted(CAPABILITIES))}")
    return value


class Variant(_Part):
    """Another way to start the runner on some platforms; the first that names ours applies."""

    platforms: list[str] = []
    exec: list[str] | None = None
    runtime: Runtime | None = None
    env: dict[str, str] = {}

    @field_validator("exec")
    @classmethod
    def _exec(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else _checked_exec(value)


class Runner(_Part):
    exec: list[str]
    runtime: Runtime = Runtime()
    capabilities: list[str] = []
    stop_grace_s: float = Field(default=10.0, gt=0.0, le=600.0)
    gpu: Gpu = Gpu()
    env: dict[str, str] = {}
    variants: list[Variant] = []

    @field_validator("exec")
    @classmethod
    def _exec(cls, value: list[str]) -> list[str]:
        return _checked_exec(value)

    @field_validator("capabilities")
    @classmethod
    def _capabilities(cls, value: list[str]) -> list[str]:
        return _known_capabilities(value)

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _VARIABLE.match(name):
                raise ValueError(f"{name!r} is no variable name")
            if is_reserved_variable(name):
                raise ValueError(f"{name} is reserved: the agent sets it")
        return value

    def on(self, platform: str) -> Runner:
        """This runner with the variant for ``platform`` applied, where there is one."""
        for variant in self.variants:
            if platform in variant.platforms:
                change = {
                    "exec": variant.exec or self.exec,
                    "runtime": variant.runtime or self.runtime,
                    "env": {**self.env, **variant.env},
                }
                return self.model_copy(update=change)
        return self


class Resources(_Part):
    cpu: float = Field(default=1.0, gt=0.0)
    mem_gb: float = Field(default=0.0, ge=0.0)


class StageRequires(_Part):
    resources: Resources = Resources()


class Retry(_Part):
    max_attempts: int = Field(default=1, ge=1, le=100)


class Stage(_Part):
    name: str
    default: bool = False
    determinism: Literal["exact", "within_tolerance", "none"] = "none"
    timeout_s: float | None = Field(default=None, gt=0.0)
    requires: StageRequires = StageRequires()
    retry: Retry = Retry()

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not _NAME.match(value):
            raise ValueError("must match ^[a-z0-9][a-z0-9_-]*$")
        return value


class Results(_Part):
    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())
    schema_: str | None = Field(default=None, alias="schema")
    schema_version: int = Field(default=1, ge=1)
    determinism: str | None = None
    digest: dict[str, Any] | None = None


class Goldens(_Part):
    fixtures: list[str] = []


class Operation(_Part):
    verb: str
    title: str = ""
    params_schema: Any = None


class Service(_Part):
    """A workload: a process that does not end by itself. ``exec`` is its whole command; the control document is in its work directory."""

    name: str = ""
    exec: list[str]
    requires: StageRequires = StageRequires()
    lifecycle: str = ""
    stop_grace_s: float = Field(default=10.0, gt=0.0, le=600.0)
    freeze_ok: bool = False
    gpu: Gpu = Gpu()
    capabilities: list[str] = []

    @field_validator("exec")
    @classmethod
    def _exec(cls, value: list[str]) -> list[str]:
        return _checked_exec(value)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if value and not _NAME.match(value):
            raise ValueError("must match ^[a-z0-9][a-z0-9_-]*$")
        return value

    @field_validator("capabilities")
    @classmethod
    def _capabilities(cls, value: list[str]) -> list[str]:
        return _known_capabilities(value)

    @property
    def ways(self) -> frozenset[str]:
        """Its capabilities, ``freeze_ok`` among them where the key says so."""
        return frozenset(self.capabilities) | ({"freeze_ok"} if self.freeze_ok else set())


class Devices(_Part):
    gpu: str | None = None


class Sandbox(_Part):
    devices: Devices = Devices()
    net: Any = None


class Manifest(_Part):
    """A checked manifest."""

    manifest: Literal[1]
    module: Module
    requires: Requires = Requires()
    runner: Runner
    variants: list[Variant] = []
    stages: list[Stage] = Field(min_length=1)
    results: Results = Results()
    goldens: Goldens = Goldens()
    operations: list[Operation] = []
    services: list[Service] = []
    sandbox: Sandbox = Sandbox()

    @model_validator(mode="after")
    def _whole(self) -> Manifest:
        names = [stage.name for stage in self.stages]
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise ValueError(f"stages: {', '.join(double)} is there twice")
        if sum(stage.default for stage in self.stages) > 1:
            raise ValueError("stages: more than one is the default")
        services = [service.name or f"service-{n}" for n, service in enumerate(self.services, 1)]
        if len(set(services)) < len(services):
            raise ValueError(f"services: a name is there twice in {', '.join(services)}")
        if self.uses_gpu and self.sandbox.devices.gpu != "compute":
            raise ValueError('sandbox.devices.gpu: must be "compute", since it uses the GPU (gpu.use is not "none")')
        for variant in (*self.variants, *self.runner.variants):
            bad = sorted(name for name in variant.env if is_reserved_variable(name))
            if bad:
                raise ValueError(f"variants.env: {', '.join(bad)} is reserved: the agent sets it")
        return self

    @property
    def short(self) -> str:
        """The last part of the module's id."""
        return self.module.id.rsplit(".", 1)[-1]

    @property
    def uses_gpu(self) -> bool:
        return self.runner.gpu.use != "none" or any(service.gpu.use != "none" for service in self.services)

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(self.runner.capabilities)

    @property
    def named_services(self) -> dict[str, Service]:
        """By name, in the manifest's order; one without a name is ``service-1`` and so on by its place."""
        return {service.name or f"service-{n}": service for n, service in enumerate(self.services, 1)}

    def _service(self, stage: str) -> Service | None:
        return self.named_services.get(workload_name(stage)) if is_workload(stage) else None

    def ways_of(self, stage: str) -> frozenset[str]:
        """Capabilities of what runs under that stage name (``service:NAME``: a workload's own)."""
        service = self._service(stage)
        return self.capabilities if service is None else service.ways

    def gpu_of(self, stage: str) -> Gpu:
        service = self._service(stage)
        return self.runner.gpu if service is None else service.gpu

    def grace_of(self, stage: str) -> float:
        """Seconds between TERM and KILL."""
        service = self._service(stage)
        return self.runner.stop_grace_s if service is None else service.stop_grace_s

    def stage(self, name: str | None = None) -> Stage | None:
        """The stage of that name, the default one for None; None where there is no such stage. ``service:NAME`` is a workload's."""
        service = self._service(name or "")
        if service is not None:
            return Stage.model_construct(name=str(name), requires=service.requires)
        if name is None:
            return next((stage for stage in self.stages if stage.default), self.stages[0])
        return next((stage for stage in self.stages if stage.name == name), None)

    def runner_on(self, platform: str) -> Runner:
        """The runner as it is started on ``platform`` (``linux-amd64``)."""
        runner = self.runner
        if self.variants:
            runner = runner.model_copy(update={"variants": [*runner.variants, *self.variants]})
        return runner.on(platform)

    @property
    def not_used(self) -> list[str]:
        """Dotted keys that were accepted and have no effect on this host, sorted."""
        found = set(_extras(self, ""))
        if self.operations:
            found.add("operations")
        return sorted(found)


def _extras(part: BaseModel, prefix: str) -> Iterable[str]:
    for key in part.model_extra or {}:
        yield prefix + key
    for name, info in type(part).model_fields.items():
        key = prefix + (info.alias or name)
        value = getattr(part, name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, BaseModel):
                yield from _extras(item, key + ".")


def parse_manifest(text: str) -> Manifest:
    """Read the text of an ``oarbank-module.toml``.

    Raises:
        ManifestError: naming each key at fault and why.
    """
    try:
        raw: Mapping[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ManifestError([("", f"this is no TOML: {error}")]) from None
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        problems = []
        for item in error.errors(include_url=False):
            key = ".".join(str(part) for part in item["loc"])
            problems.append((key, item["msg"].removeprefix("Value error, ")))
        raise ManifestError(problems) from None
