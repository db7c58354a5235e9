"""A module's doctor: ``<exec…> doctor --json``, heard within a minute or not at all (``runner-protocol.md``)."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from nodes.builds import Builds
from nodes.jobs.runnerfiles import write_document
from nodes.jobs.workdir import runner_environment
from policies.json_text import parse_json
from policies.manifest import RUNNER_PROTOCOL

if TYPE_CHECKING:
    from nodes.jobs.starting import ModuleLike

__all__ = ["DoctorReport", "run_doctor"]

DOCTOR_LIMIT_S = 60.0
# At a low priority beside a busy program it may wait so long for a CPU before the limit is said to be its own fault.
STARVED_LIMIT_S = 540.0
DOCTOR_OUTPUT_BYTES = 1 << 20
# The shell's, of a file that cannot be run or is not there.
NOT_STARTED = (126, 127)
# Of what it wrote to its standard error, the end.
COMPLAINT_BYTES = 500

Health = Literal["healthy", "unhealthy", "undetected"]


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What the module's doctor said, or why it could not be heard (``health`` "undetected")."""

    health: Health
    why: str
    checks: list[dict[str, Any]]
    attrs: dict[str, Any]
    capabilities: list[str]
    ended: bool = False
    """It was ended through no fault of its own: this says nothing of the module."""

    def as_dict(self) -> dict[str, Any]:
        names = ("health", "why", "checks", "attrs", "capabilities")
        return {name: getattr(self, name) for name in names}


def run_doctor(
    module: ModuleLike,
    limit_s: float = DOCTOR_LIMIT_S,
    builds: Builds | None = None,
    *,
    insists: bool = False,
    gpu: bool = True,
) -> DoctorReport:
    """``<exec…> doctor --json`` in the module's data folder, as work that gives way to all other (``nodes.builds``).

    Blocks for at most ``limit_s``, not counting what it waited for a CPU and while something holds fleet work. ``insists``: a person
    asked for it in spite of that. ``gpu``: the module uses the GPU, so what holds that holds its doctor.
    """
    tmp = module.data.parent / "tmp"
    tmp.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = module.data.parent / "settings.json"
    if not settings.exists():
        write_document(settings, {})
    env = runner_environment(
        short=module.short,
        module_data=module.data,
        tmp=tmp,
        settings=settings,
        search=module.search,
        module_env=module.variables,
    )
    said = tmp / f"doctor-{threading.get_ident()}"
    # files: of a pipe that a child of its inherits nobody knows when the last word is said
    with open(said.with_suffix(".out"), "w+b") as out, open(said.with_suffix(".err"), "w+b") as errors:
        try:
            done = (builds or Builds()).run(
                [*module.command(), "doctor", "--json"],
                env,
                limit_s,
                cwd=module.data,
                out=out,
                errors=errors,
                starved_s=STARVED_LIMIT_S,
                insists=insists,
                gpu=gpu,
                short=True,
            )
        except (OSError, ValueError) as error:
            return _unheard(f"its doctor cannot be started, or ended: {error}")
        out.seek(0)
        text = out.read(DOCTOR_OUTPUT_BYTES)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - COMPLAINT_BYTES))
        complaint = errors.read(COMPLAINT_BYTES)
    if done.ended:
        return replace(_unheard(f"its doctor was ended {done.how_ended}; ask it again"), ended=True)
    if done.late:
        starved = f" of its own (it waited {done.starved_s:.0f} s more for a CPU)" if done.starved_s >= 1.0 else ""
        return _unheard(f"its doctor did not answer within {limit_s:g} s{starved}")
    if done.code in NOT_STARTED and not text.strip():
        return _unheard(f"its doctor cannot be started: {complaint.decode('utf-8', 'replace').strip()}")
    return _read_report(text, done.code, complaint.decode("utf-8", "replace").strip())


def _unheard(why: str) -> DoctorReport:
    return DoctorReport("undetected", why, [], {}, [])


def _read_report(text: bytes, code: int, errors: str) -> DoctorReport:
    try:
        raw = parse_json(text)
    except ValueError:
        raw = None
    if not isinstance(raw, dict):
        return DoctorReport(
            "undetected", f"its doctor printed no JSON object (exit {code}) {errors}".strip(), [], {}, []
        )
    checks = [check for check in _items(raw, "checks") if isinstance(check, dict)]
    attrs = raw.get("attrs") if isinstance(raw.get("attrs"), dict) else {}
    capabilities = [str(item) for item in _items(raw, "capabilities")]
    protocol = raw.get("runner_protocol")
    supported = protocol.get("supported") if isinstance(protocol, dict) else None
    said = raw.get("health")
    health: Health = said if said in ("healthy", "unhealthy", "undetected") else "undetected"
    why = ""
    if not isinstance(supported, list) or RUNNER_PROTOCOL not in supported:
        health, why = (
            "unhealthy",
            f"its doctor does not list runner protocol {RUNNER_PROTOCOL} as supported ({supported!r})",
        )
    elif said != health:
        why = f"its doctor says health {said!r}"
    elif health != "healthy":
        bad = [f"{check.get('name')}: {check.get('detail', '')}" for check in checks if check.get("ok") is not True]
        why = f"its doctor says {health}" + (f" ({'; '.join(bad)})" if bad else "")
    return DoctorReport(health, why, checks, attrs or {}, capabilities)


def _items(raw: dict[str, Any], name: str) -> list[Any]:
    found = raw.get(name)
    return found if isinstance(found, list) else []
