"""What a certificate is bound to: this machine's hardware and system, and the protected program's files."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from nodes.clock import boottime_s
from nodes.identity import stat_fields
from nodes.meters.nvml_probe import nvidia_present, probe_now
from policies.certificate import Fingerprint, Gpu, Program
from policies.version import VERSION

__all__ = ["Replaced", "bytes_to_hash", "read_fingerprint", "replaced_scripts", "unbound_code"]

INTERPRETERS = (
    "python", "pypy", "node", "deno", "bun", "ruby", "perl", "bash", "sh", "dash", "zsh", "ksh", "java", "julia", "Rscript", "R",
    "lua", "php",
)  # fmt: skip
PYTHONS, SHELLS = ("python", "pypy"), ("bash", "sh", "dash", "zsh", "ksh")
# What may follow Python's version in the name of another build of it: python3.13t, python3.12-dbg, python3.7m.
BUILDS = ("", "t", "d", "td", "m", "dm", "-dbg")
# Options after which the code stands in the arguments themselves, or is a module that the interpreter finds.
PYTHON_INLINE = re.compile(r"-[bBdEiIOPqsSuvx]*[cm].*")
SHELL_INLINE = re.compile(r"-[A-Za-z]*c")
OTHER_INLINE = re.compile(r"-[ailnpwW0]*[eE]|--eval(=.*)?|--print")
INLINE = {
    **dict.fromkeys(PYTHONS, PYTHON_INLINE),
    **dict.fromkeys(SHELLS, SHELL_INLINE),
    "java": re.compile(r"-m|--module(=.*)?"),
    "lua": re.compile(r"(?!)"),
}
# Options whose value is the next argument: what follows them is not the script. An option too few leaves a script unknown, one too
# many would leave it unseen.
_PYTHON_TAKES = ("-W", "-X", "--check-hash-based-pycs")
_SHELL_TAKES = ("-o", "-O", "+o", "+O", "--rcfile", "--init-file")
TAKES = {
    **dict.fromkeys(PYTHONS, _PYTHON_TAKES),
    **dict.fromkeys(SHELLS, _SHELL_TAKES),
    "node": (
        "-r", "--require", "--import", "--loader", "--experimental-loader", "--env-file", "--env-file-if-exists", "-C",
        "--conditions", "--title", "--watch-path",
    ),
    "deno": ("-c", "--config", "--import", "--import-map", "--preload", "--cert", "--location", "--seed"),
    "bun": ("-r", "--preload", "--require", "--import", "--env-file", "--cwd", "--tsconfig-override", "--conditions"),
    "ruby": ("-r", "-I", "-E", "-C", "-X"),
    "perl": ("-I",),
    "java": (
        "-cp", "-classpath", "--class-path", "-p", "--module-path", "--upgrade-module-path", "--add-modules", "--add-opens",
        "--add-exports", "--add-reads", "--enable-native-access",
    ),
    "julia": (
        "-L", "--load", "-J", "--sysimage", "-p", "--procs", "-t", "--threads", "-C", "--cpu-target", "-H", "--home",
        "--machine-file", "--startup-file",
    ),
    "lua": ("-l", "-e"),
    "php": ("-c", "-d", "-z", "-S", "-t"),
}  # fmt: skip
SUBCOMMANDS = {"deno": ("run", "serve", "test"), "bun": ("run", "test")}
STANDARD_INPUT = "-"
CHUNK_BYTES = 1 << 16
DIGESTS_KEPT = 64
LINKS_AT_MOST = 40
# From a process's start to its interpreter's having read the script, on a busy machine, and the grain of file times.
START_TAKES_S = 2.0


def _interpreter(exe: str) -> str | None:
    """Which of the interpreters it is, whatever its version; None: it is none."""
    name = Path(exe).name
    return next(
        (
            known
            for known in INTERPRETERS
            if name.startswith(known)
            and name[len(known) :].lstrip("0123456789.") in (BUILDS if known in PYTHONS else ("",))
        ),
        None,
    )


def read_fingerprint(processes: Sequence[Mapping[str, Any]] | None) -> Fingerprint:
    """This node and the program that these processes (``{pid, start_ticks, exe, argv}``) run. Reads whole files: call it in a thread.

    None: which processes are the program cannot be told. One that has ended meanwhile is none of them.

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
        script = _script(process, exe, argv)
        stale = script is not None and _touched(process, script, booted_s) is True
        program = Program(
            exe=exe,
            exe_sha256=_sha256(running),
            script=None if script is None else script.name,
            script_sha256=None if script is None or stale else _sha256(script.path),
            argv=argv,
        )
        if not _ended(process):
            programs[repr(program)] = program
    found = None if processes is None else tuple(programs[key] for key in sorted(programs))
    return Fingerprint(**_hardware(), gpus=_gpus(), agent_version=VERSION, program=found)


def bytes_to_hash(processes: Sequence[Mapping[str, Any]] | None) -> int:
    """How much ``read_fingerprint`` would have to read now: bytes of files whose content was not hashed yet."""
    total = 0
    for process in processes or ():
        exe, argv = process.get("exe"), process.get("argv")
        script = _script(process, exe, argv)
        paths = [f"/proc/{process['pid']}/exe" if exe else None, None if script is None else script.path]
        for key in (_key(path) for path in paths if path is not None):
            total += key.size if key is not None and key not in _digests else 0
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
        script = _script(process, process.get("exe"), process.get("argv"))
        certain = None if script is None else _touched(process, script, booted_s)
        if script is not None and certain is not None:
            found.append(Replaced(script.name, process["pid"], certain))
    return found


def unbound_code(processes: Sequence[Mapping[str, Any]]) -> list[str]:
    """What of these programs a certificate cannot name by content, in words: its interpreter cannot vouch for it."""
    found: list[str] = []
    inline = False
    for process in processes:
        exe, argv, pid = process.get("exe"), process.get("argv"), process["pid"]
        kind = _interpreter(exe) if exe and argv else None
        if kind is None:
            continue
        script = _script(process, exe, argv)
        if script is not None and script.path is None:
            what = (
                "its standard input"
                if script.name == STANDARD_INPUT
                else f"{script.name}, which is not in its working directory"
            )
            found.append(
                f"process {pid} runs {what}, so what it runs cannot be told and no certificate can name it: "
                "start it with its script's whole path"
            )
        elif script is None and kind == "java":
            found.append(
                f"process {pid} runs a class of its class path: a certificate names the interpreter and the arguments, not the files "
                "of the class path; measure anew when those change"
            )
        elif script is None and not inline and kind in PYTHONS and any(map(PYTHON_INLINE.fullmatch, (argv or ())[1:])):
            inline = True
            found.append(
                f"process {pid} runs a module or a line of code (-m, -c): a certificate names the interpreter and the arguments, not "
                "the module's files; measure anew when those change"
            )
    return found


def _booted_s() -> float:
    return time.time() - boottime_s()


def _touched(process: Mapping[str, Any], script: _Script, booted_s: float) -> bool | None:
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


# -- files as the process sees them


@dataclass(frozen=True, slots=True)
class _Script:
    """``name``: its path as the process sees it; ``path``: where this process finds the same file, None where it does not."""

    name: str
    path: str | None


def _script(process: Mapping[str, Any], exe: str | None, argv: Sequence[str] | None) -> _Script | None:
    """The file that an interpreter runs; None: it is no interpreter, or it runs no file."""
    kind = _interpreter(exe) if exe and argv else None
    at = None if kind is None else _stands_in(process["pid"])
    if kind is None or argv is None or at is None:
        return None  # of a process whose place cannot be read its executable cannot be either
    inline = INLINE.get(kind, OTHER_INLINE)
    takes, option = TAKES.get(kind, ()), ("-", "+") if kind in SHELLS else "-"
    value = False
    for argument in argv[1:]:
        if value:
            value = False
        elif argument == "-":
            return _Script(STANDARD_INPUT, None)
        elif kind == "R" and argument.startswith("--file="):
            return _found(*at, argument.removeprefix("--file=")) or _Script(argument, None)
        elif argument in takes:
            value = True
        elif argument.startswith(option):
            if inline.fullmatch(argument):
                return None
        elif argument not in SUBCOMMANDS.get(kind, ()):
            # What follows are the script's own arguments, which may name files too.
            script = _found(*at, argument)
            is_class = script is None and kind == "java" and "-jar" not in argv  # which it finds by itself
            return None if is_class else script or _Script(argument, None)
    return None


def _found(root: str, cwd: str, argument: str) -> _Script | None:
    for path in (argument, os.path.join(argument, "__main__.py")):
        name = _resolved(root, os.path.join(cwd, path))
        if name is not None and os.path.isfile(root + name):
            return _Script(name, root + name)
    return None


def _stands_in(pid: int) -> tuple[str, str] | None:
    """(its root as a path of ours, "" where it has ours; its working directory in that root); None: it cannot be told."""
    where = f"/proc/{pid}"
    try:
        own_root, cwd = os.readlink(f"{where}/root"), os.readlink(f"{where}/cwd")
        if _same(f"{where}/root", "/") and _same(f"{where}/ns/mnt", "/proc/self/ns/mnt"):
            return "", cwd
        if own_root != "/":  # a root within ours: what links of /proc say begins at ours
            cwd = cwd.removeprefix(own_root) or "/"
        return (f"{where}/root", cwd) if _same(f"{where}/root{cwd}", f"{where}/cwd") else None
    except OSError:
        return None


def _same(one: str, other: str) -> bool:
    return os.path.samestat(os.stat(one), os.stat(other))


def _resolved(root: str, path: str) -> str | None:
    """``path`` without links, each of which leads where it does in ``root``; None: they lead in a ring."""
    found: list[str] = []
    left, links = path.split("/")[::-1], LINKS_AT_MOST
    while left:
        part = left.pop()
        if part == "..":
            del found[-1:]
        elif part not in ("", "."):
            try:
                target = os.readlink("/".join((root, *found, part)))
            except (OSError, ValueError):  # no link, or nothing at all
                found.append(part)
                continue
            links -= 1
            if links < 0:
                return None
            if target.startswith("/"):
                found = []
            left += target.split("/")[::-1]
    return "/" + "/".join(found)


def _ended(process: Mapping[str, Any]) -> bool:
    """Whether it certainly runs no more, so that what was read under its pid says nothing."""
    ticks = process.get("start_ticks")
    try:
        now = stat_fields(process["pid"])
    except OSError:
        return False
    gone = now is None or (now[0] in "ZX" and int(now[17]) <= 1)  # of threads that outlive the first one it is no end
    return gone or (now is not None and ticks is not None and int(now[19]) != ticks)


# -- what is in them


class _Key(NamedTuple):
    """A file's content, as long as none of these changes. The change time is set by nobody but the kernel."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> _Key:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


_digests: dict[_Key, str] = {}


def _key(path: str) -> _Key | None:
    try:
        return _Key.of(os.stat(path))
    except OSError:
        return None


def _sha256(path: str | None) -> str | None:
    """Hex digest of a file's content; None: unknown (not readable, or written to meanwhile), which is the same as nothing."""
    key = None if path is None else _key(path)
    if path is None or key is None:
        return None
    try:
        return _digests[key]
    except KeyError:
        pass
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            key, content = _Key.of(os.fstat(file.fileno())), hashlib.sha256()
            while chunk := file.read(CHUNK_BYTES):
                content.update(chunk)
            if _Key.of(os.fstat(file.fileno())) != key:
                return None
    except OSError:
        return None
    while len(_digests) >= DIGESTS_KEPT:
        _digests.pop(next(iter(_digests)), None)
    _digests[key] = found = content.hexdigest()
    return found


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


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
