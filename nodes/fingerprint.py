"""What a certificate is bound to: this machine's hardware and system, and the protected program's files."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from nodes.meters.nvml_probe import nvidia_present, probe_now
from policies.certificate import Fingerprint, Gpu, Program
from policies.version import VERSION

__all__ = ["bytes_to_hash", "read_fingerprint"]

INTERPRETERS = ("python", "node", "ruby", "perl", "bash", "sh", "dash", "zsh", "java", "julia", "Rscript", "lua", "php")
CHUNK_BYTES = 1 << 16
DIGESTS_KEPT = 64


def _is_interpreter(exe: str) -> bool:
    name = Path(exe).name
    return any(
        name == known or (name.startswith(known) and name[len(known) :].strip("0123456789.") == "")
        for known in INTERPRETERS
    )


def read_fingerprint(processes: Sequence[Mapping[str, Any]] | None) -> Fingerprint:
    """This node and the program that these processes (``{pid, exe, argv}``) run. Reads whole files: call it in a thread.

    None: which processes are the program cannot be told.

    Where the executable is an interpreter the script is the first argument that names a file (relative to the process's
    working directory); None where none can be told. What cannot be read is None, which is not "the same".
    """
    programs = {}
    for process in processes or ():
        exe = process.get("exe")
        argv = None if process.get("argv") is None else tuple(process["argv"])
        script = _script(process, argv) if exe and argv and _is_interpreter(exe) else None
        program = Program(exe=exe, exe_sha256=_sha256(exe), script=script, script_sha256=_sha256(script), argv=argv)
        programs[repr(program)] = program
    found = None if processes is None else tuple(programs[key] for key in sorted(programs))
    return Fingerprint(**_hardware(), gpus=_gpus(), agent_version=VERSION, program=found)


def _script(process: Mapping[str, Any], argv: Sequence[str]) -> str | None:
    try:
        cwd = Path(os.readlink(f"/proc/{process['pid']}/cwd"))
    except OSError:
        cwd = Path("/")
    for argument in argv[1:]:
        if argument in ("-c", "-m"):
            return None
        if not argument.startswith("-") and (cwd / argument).is_file():
            return str((cwd / argument).resolve())
    return None


def bytes_to_hash(processes: Sequence[Mapping[str, Any]] | None) -> int:
    """How much ``read_fingerprint`` would have to read now: bytes of files whose content was not hashed yet."""
    total = 0
    for process in processes or ():
        exe, argv = process.get("exe"), process.get("argv")
        paths = [exe, _script(process, argv) if exe and argv and _is_interpreter(exe) else None]
        for key in (_key(path) for path in paths if path is not None):
            total += key[2] if key is not None and key not in _digests else 0
    return total


FileKey = tuple[str, int, int, int]
_digests: dict[FileKey, str] = {}


def _key(path: str) -> FileKey | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return path, stat.st_mtime_ns, stat.st_size, stat.st_ino


def _sha256(path: str | None) -> str | None:
    """Hex digest of a file's content; None: unknown (not readable), which is the same as nothing."""
    key = None if path is None else _key(path)
    if key is None:
        return None
    try:
        if key not in _digests:
            found = _digest(key[0])
            while len(_digests) >= DIGESTS_KEPT:
                _digests.pop(next(iter(_digests)), None)
            _digests[key] = found
        return _digests[key]
    except (OSError, KeyError):
        return None


def _digest(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _os_name() -> tuple[str, str]:
    try:
        facts = platform.freedesktop_os_release()
        return facts.get("ID", platform.system()), facts.get("VERSION_ID", "").partition(".")[0]
    except OSError:
        return platform.system(), platform.release().partition(".")[0]


_known_gpus: list[tuple[Gpu, ...]] = []


def _gpus() -> tuple[Gpu, ...] | None:
    """Name, UUID, memory and driver of each NVIDIA GPU; () where there is no driver, None where it cannot be asked.

    Asked in a child process, once it has answered never again: a driver that is replaced while the machine runs
    serves what runs already, and the next agent finds it.
    """
    if _known_gpus:
        return _known_gpus[0]
    if not nvidia_present():
        return ()
    inventory = probe_now()
    if inventory.why is not None:
        return () if inventory.library_missing else None
    found = tuple(
        Gpu(name=each.name, uuid=each.uuid, memory_bytes=each.memory_bytes, driver=inventory.driver)
        for each in inventory.devices
    )
    _known_gpus.append(found)
    return found


@lru_cache(maxsize=1)
def _hardware() -> dict[str, Any]:
    """Facts that do not change while the machine runs (memory in GiB, rounded: firmware holes vary by a page or two)."""
    name, major = _os_name()
    return {
        "cpu_model": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30), 1),
        "os_name": name,
        "os_major": major,
        "kernel": platform.release(),
    }
