"""What a certificate is bound to: this machine's hardware and system, and the protected program's files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.clock import boottime_s
from nodes.file_digests import sha256_of, unhashed_bytes
from nodes.hardware import gpus, hardware
from nodes.identity import stat_fields
from nodes.program_script import Script, script_of
from policies.certificate import Fingerprint, Program
from policies.version import VERSION

__all__ = ["Replaced", "bytes_to_hash", "read_fingerprint", "replaced_scripts"]

# From a process's start to its interpreter's having read the script, on a busy machine, and the grain of file times.
START_TAKES_S = 2.0


def read_fingerprint(processes: Sequence[Mapping[str, Any]] | None, *, wait: bool = False) -> Fingerprint:
    """This node and the program that these processes (``{pid, start_ticks, exe, argv}``) run. Reads whole files: call it in a thread.

    None: which processes are the program cannot be told. One that has ended meanwhile is none of them. ``wait``: for the GPUs'
    driver, where their list has changed and it is being asked (see ``gpus``).

    The executable is read from the process itself, so it is what runs, whatever lies under its path by now or in this mount
    namespace. Where it is an interpreter the script is the argument that names its file, as that process would find it; None where
    it runs no file. A script that was written to since its process read it says nothing of what runs. What cannot be read or
    told is None, which is not "the same".
    """
    programs = {}
    booted_s = _booted_s()
    for process in processes or ():
        exe = process.get("exe")
        argv = None if process.get("argv") is None else tuple(process["argv"])
        running = None if exe is None else f"/proc/{process['pid']}/exe"
        script = script_of(process)
        stale = script is not None and _touched(process, script, booted_s) is True
        program = Program(
            exe=exe,
            exe_sha256=sha256_of(running),
            script=None if script is None else script.name,
            script_sha256=None if script is None or stale else sha256_of(script.path),
            argv=argv,
        )
        if not _ended(process):
            programs[repr(program)] = program
    found = None if processes is None else tuple(programs[key] for key in sorted(programs))
    return Fingerprint(**hardware(), gpus=gpus(wait=wait), agent_version=VERSION, program=found)


def bytes_to_hash(processes: Sequence[Mapping[str, Any]] | None) -> int:
    """How much ``read_fingerprint`` would have to read now: bytes of files whose content was not hashed yet."""
    total = 0
    for process in processes or ():
        script = script_of(process)
        paths = [f"/proc/{process['pid']}/exe" if process.get("exe") else None, None if script is None else script.path]
        total += sum(unhashed_bytes(path) for path in paths if path is not None)
    return total


@dataclass(frozen=True, slots=True)
class Replaced:
    """A script that is not, or may not be, what its process read at its start. ``certain``: its content was written since."""

    path: str
    pid: int
    certain: bool


def replaced_scripts(processes: Sequence[Mapping[str, Any]]) -> list[Replaced]:
    """Scripts of these processes that were touched after they had started: of what runs there their digests say nothing.

    By the file's times: a file that was put in place with the times of another shows by its change time alone, which also
    moves when nothing but its mode or name was changed.
    """
    found = []
    booted_s = _booted_s()
    for process in processes:
        script = script_of(process)
        certain = None if script is None else _touched(process, script, booted_s)
        if script is not None and certain is not None:
            found.append(Replaced(script.name, process["pid"], certain))
    return found


def _booted_s() -> float:
    return time.time() - boottime_s()


def _touched(process: Mapping[str, Any], script: Script, booted_s: float) -> bool | None:
    """Whether the script was touched after the process had read it: True by its content's time, False by its change time alone."""
    ticks = process.get("start_ticks")
    if ticks is None or script.path is None:
        return None
    try:
        stat = os.stat(script.path)
    except OSError:
        return None
    read_s = booted_s + ticks / os.sysconf("SC_CLK_TCK") + START_TAKES_S
    if max(stat.st_mtime, stat.st_ctime) <= read_s:
        return None
    return bool(read_s < stat.st_mtime <= time.time())


def _ended(process: Mapping[str, Any]) -> bool:
    """Whether it certainly runs no more, so that what was read under its pid says nothing."""
    ticks = process.get("start_ticks")
    try:
        now = stat_fields(process["pid"])
    except OSError:
        return False
    gone = now is None or (now[0] in "ZX" and int(now[17]) <= 1)  # of threads that outlive the first one it is no end
    return gone or (now is not None and ticks is not None and int(now[19]) != ticks)
