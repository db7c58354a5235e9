"""The script that a process's interpreter runs, found as that process would find it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PYTHONS", "PYTHON_INLINE", "STANDARD_INPUT", "Script", "interpreter", "script_of"]

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
LINKS_AT_MOST = 40


def interpreter(exe: str) -> str | None:
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


@dataclass(frozen=True, slots=True)
class Script:
    """``name``: its path as the process sees it; ``path``: where this process finds the same file, None where it does not."""

    name: str
    path: str | None


def script_of(process: Mapping[str, Any]) -> Script | None:
    """The file that the interpreter ``{pid, exe, argv}`` runs; None: it is no interpreter, or it runs no file."""
    exe, argv = process.get("exe"), process.get("argv")
    kind = interpreter(exe) if exe and argv else None
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
            return Script(STANDARD_INPUT, None)
        elif kind == "R" and argument.startswith("--file="):
            return _found(*at, argument.removeprefix("--file=")) or Script(argument, None)
        elif argument in takes:
            value = True
        elif argument.startswith(option):
            if inline.fullmatch(argument):
                return None
        elif argument not in SUBCOMMANDS.get(kind, ()):
            # What follows are the script's own arguments, which may name files too.
            script = _found(*at, argument)
            is_class = script is None and kind == "java" and "-jar" not in argv  # which it finds by itself
            return None if is_class else script or Script(argument, None)
    return None


def _found(root: str, cwd: str, argument: str) -> Script | None:
    for path in (argument, os.path.join(argument, "__main__.py")):
        name = _resolved(root, os.path.join(cwd, path))
        if name is not None and os.path.isfile(root + name):
            return Script(name, root + name)
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
