"""What a certificate was earned under, and what of it is no longer the same (harness.md, "Certificates").

Unknown is never the same as anything, itself included: what cannot be read cannot vouch.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["Fingerprint", "Gpu", "Program", "differences", "other_program"]

# A kernel sets aside a little more or less memory at each boot; a module of memory is far more than this.
MEMORY_TOLERANCE = 0.02
SHOWN_SHA = 12


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpu(_Fact):
    """One GPU. None: could not be read."""

    name: str | None
    uuid: str | None
    memory_bytes: int | None
    driver: str | None


class Program(_Fact):
    """One distinct program of the rule's. ``script`` is None where the executable is no interpreter (or runs no file)."""

    exe: str | None
    exe_sha256: str | None
    script: str | None = None
    script_sha256: str | None = None
    argv: tuple[str, ...] | None


class Fingerprint(_Fact):
    """Hardware, system, agent and protected program. None: could not be read. ``kernel`` is shown and does not bind.

    ``gpus`` () means that there is none, ``program`` () that the program does not run now; None of either is unknown.
    """

    cpu_model: str | None
    cores: int | None
    memory_gib: float | None
    gpus: tuple[Gpu, ...] | None
    os_name: str | None
    os_major: str | None
    kernel: str | None = Field(default=None, description="kernel release: shown, not binding")
    agent_version: str
    program: tuple[Program, ...] | None

    @field_validator("program", mode="before")
    @classmethod
    def _one_program(cls, raw: Any) -> Any:
        return (raw,) if isinstance(raw, dict | Program) else raw


def differences(old: Fingerprint, new: Fingerprint) -> list[str]:
    """What of ``old`` is not the same in ``new``, each as "item: old → new"; empty: all that binds is the same.

    A program that certainly does not run now (``new.program`` lacks it) is no difference: nothing stands against the
    certificate until the program runs again as another one.
    """
    found = [
        *_item("CPU", old.cpu_model, new.cpu_model),
        *_item("cores", old.cores, new.cores),
        *_memory(old.memory_gib, new.memory_gib),
        *_gpus(old.gpus, new.gpus),
        *_item("OS", old.os_name, new.os_name),
        *_item("OS major version", old.os_major, new.os_major),
        *_item("agent version", old.agent_version, new.agent_version),
    ]
    return found + _programs(old.program, new.program)


def other_program(old: Fingerprint, new: Fingerprint) -> list[str]:
    """What of ``old``'s program runs otherwise in ``new``, as in ``differences``; what cannot be told is a difference.

    Empty where ``old`` itself could not be told: then nothing can be compared with it.
    """
    return [] if _programs(old.program, old.program) else _programs(old.program, new.program)


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)


def _item(name: str, old: object, new: object) -> list[str]:
    if old is not None and old == new:
        return []
    return [f"{name}: {_shown(old)} → {_shown(new)}"]


def _memory(old: float | None, new: float | None) -> list[str]:
    if old is not None and new is not None and abs(old - new) <= MEMORY_TOLERANCE * old:
        return []
    return [f"memory: {_gib(old)} → {_gib(new)}"]


def _gib(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g} GiB"


def _gpus(old: tuple[Gpu, ...] | None, new: tuple[Gpu, ...] | None) -> list[str]:
    """Cards are told apart by UUID: their numbers may change from boot to boot."""
    if old is None or new is None:
        return [f"GPUs: {_count(old)} → {_count(new)}"]
    left = list(new)
    found: list[str] = []
    for number, card in enumerate(old):
        other = next((each for each in left if each.uuid is not None and each.uuid == card.uuid), None)
        name = f"GPU {card.name or number}"
        if other is None:
            unnamed = card.uuid is None or any(each.uuid is None for each in left)
            found.append(f"{name}: {_shown(card.uuid)} → {'unknown' if unnamed and left else 'gone'}")
            continue
        left.remove(other)
        for item, before, now in (
            ("name", card.name, other.name),
            ("memory in bytes", card.memory_bytes, other.memory_bytes),
            ("driver", card.driver, other.driver),
        ):
            found += _item(f"{name} {item}", before, now)
    known = {card.uuid for card in old}
    return found + [f"GPU {_shown(card.name)}: none → {card.uuid}" for card in left if card.uuid not in known]


def _count(gpus: tuple[Gpu, ...] | None) -> str:
    return "unknown" if gpus is None else str(len(gpus))


def _programs(old: tuple[Program, ...] | None, new: tuple[Program, ...] | None) -> list[str]:
    if old is None or new is None:
        return [f"program: {_names(old)} → {_names(new)}"]
    waiting = list(old)
    found: list[str] = []
    for program in sorted(new, key=lambda each: (each not in waiting, each.exe or "", each.argv or ())):
        before = next((each for each in waiting if each == program), None)
        before = before or next((each for each in waiting if each.exe is not None and each.exe == program.exe), None)
        before = before or (waiting[0] if waiting else None)
        if before is None:
            found.append(f"program: none → {_name(program)}")
            continue
        waiting.remove(before)
        found += _program(before, program)
    return found


def _program(old: Program, new: Program) -> list[str]:
    found = _item("program", old.exe, new.exe) or _content(old.exe, old.exe_sha256, new.exe_sha256)
    if old.script != new.script:
        found.append(f"script: {old.script or 'none'} → {new.script or 'none'}")
    elif old.script is not None:
        found += _content(old.script, old.script_sha256, new.script_sha256)
    if old.argv is None or old.argv != new.argv:
        found.append(f"program's arguments: {_arguments(old.argv)} → {_arguments(new.argv)}")
    return found


def _content(file: str | None, old: str | None, new: str | None) -> list[str]:
    """Digests are compared whole and shown short."""
    if old is not None and old == new:
        return []
    return [f"sha256 of {file}: {_shown(old)[:SHOWN_SHA]} → {_shown(new)[:SHOWN_SHA]}"]


def _arguments(argv: tuple[str, ...] | None) -> str:
    return "unknown" if argv is None else " ".join(argv) or "none"


def _name(program: Program) -> str:
    return " ".join(program.argv) if program.argv else _shown(program.exe)


def _names(programs: tuple[Program, ...] | None) -> str:
    return "unknown" if programs is None else ", ".join(map(_name, programs)) or "not running"
