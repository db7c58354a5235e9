"""What a certificate is bound to: this machine's hardware and system, and the protected program's files."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

__all__ = ["hardware", "program_files", "sha256_of"]

INTERPRETERS = ("python", "node", "ruby", "perl", "bash", "sh", "dash", "zsh", "java", "julia", "Rscript", "lua", "php")
CHUNK_BYTES = 1 << 20


def _is_interpreter(exe: str) -> bool:
    name = Path(exe).name
    return any(name == known or (name.startswith(known) and name[len(known) :].strip("0123456789.") == "") for known in INTERPRETERS)


def program_files(processes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``{exe, script, argv}`` of each distinct program among the matched processes that no matched process started.

    Where the executable is an interpreter the script is the first argument that names a file (relative to the process's
    working directory); None where there is none that can be told.
    """
    found: dict[str, dict[str, Any]] = {}
    for process in processes:
        exe, argv = process.get("exe"), list(process.get("argv") or ())
        script = None
        if exe and _is_interpreter(exe):
            script = _script(process, argv)
        facts = {"exe": exe, "script": script, "argv": argv}
        found[repr(facts)] = facts
    return [found[key] for key in sorted(found)]


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


def sha256_of(path: str | None) -> str | None:
    """Hex digest of a file's content; None: unknown (not readable), which is the same as nothing."""
    if path is None:
        return None
    try:
        stat = os.stat(path)
        return _digest(path, stat.st_mtime_ns, stat.st_size, stat.st_ino)
    except OSError:
        return None


@lru_cache(maxsize=64)
def _digest(path: str, mtime_ns: int, size_bytes: int, inode: int) -> str:
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


def _gpus() -> tuple[dict[str, Any], ...]:
    """Name, UUID, memory and driver of each NVIDIA GPU; empty where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            try:
                memory: int | None = int(pynvml.nvmlDeviceGetMemoryInfo(device).total)
            except pynvml.NVMLError:
                memory = None
            found.append(
                {
                    "name": str(pynvml.nvmlDeviceGetName(device)),
                    "uuid": str(pynvml.nvmlDeviceGetUUID(device)),
                    "memory_bytes": memory,
                    "driver": driver,
                }
            )
        return tuple(found)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


@lru_cache(maxsize=1)
def hardware() -> dict[str, Any]:
    """Facts that do not change while the machine runs (memory in GiB, rounded: firmware holes vary by a page or two)."""
    name, major = _os_name()
    return {
        "cpu_model": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "gpus": _gpus(),
        "os_name": name,
        "os_major": major,
        "kernel": platform.release(),
    }
