"""The script that a process's interpreter runs, found as that process would find it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies.json_text import parse_json

__all__ = ["PYTHONS", "PYTHON_INLINE", "STANDARD_INPUT", "Script", "argv_of", "interpreter", "script_of", "stands_in"]

INTERPRETERS = (
    "python", "pypy", "node", "deno", "bun", "ruby", "perl", "bash", "sh", "dash", "zsh", "ksh", "java", "julia", "Rscript", "R",
    "lua", "luajit", "php", "ash", "dotnet", "mono",
)  # fmt: skip
PYTHONS, SHELLS = ("python", "pypy"), ("bash", "sh", "dash", "zsh", "ksh", "ash")
# One executable that is many programs: which one its first argument says.
MANY = ("busybox", "toybox")
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
    "luajit": ("-l", "-e"),
    "php": ("-c", "-d", "-z", "-S", "-t"),
    "dotnet": (
        "--fx-version", "--additionalprobingpath", "--additional-deps", "--depsfile", "--runtimeconfig", "--roll-forward",
    ),
}  # fmt: skip
SUBCOMMANDS = {"deno": ("run", "serve", "test"), "bun": ("run", "test"), "dotnet": ("exec",)}
# What an interpreter tries beside the name that it is given, in its order.
_BESIDE = {
    "node": (".js", ".json", ".node"),
    "bun": (".tsx", ".jsx", ".ts", ".mjs", ".cjs", ".js", ".json"),
}
STANDARD_INPUT = "-"
LINKS_AT_MOST = 40
PACKAGE_BYTES_MAX = 1 << 20


def interpreter(process: Mapping[str, Any]) -> tuple[str, Sequence[str]] | None:
    """Which of the interpreters ``{exe, argv}`` is, whatever its version, and what it was given; None: it is none."""
    exe, argv = process.get("exe"), process.get("argv")
    if not exe or not argv:
        return None
    if Path(exe).name.startswith(MANY):
        whole = argv[1:] if Path(argv[0]).name.startswith(MANY) else argv
        name = Path(whole[0]).name.lstrip("-") if whole else ""
        return ("sh", whole[1:]) if name in (*SHELLS, "hush") else None
    kind = _kind(Path(exe).name)
    return None if kind is None else (kind, argv[1:])


def _kind(name: str) -> str | None:
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
    known = interpreter(process)
    if known is None:
        return _beside_its_host(process)
    (kind, arguments), at = known, stands_in(process["pid"])
    if at is None:
        return None  # of a process whose place cannot be read its executable cannot be either
    inline = INLINE.get(kind, OTHER_INLINE)
    takes, option = TAKES.get(kind, ()), ("-", "+") if kind in SHELLS else "-"
    value = False
    for argument in arguments:
        if value:
            value = False
        elif argument == "-":
            return Script(STANDARD_INPUT, None)
        elif kind == "R" and argument.startswith("--file="):
            return _found(*at, argument.removeprefix("--file="), kind) or Script(argument, None)
        elif argument in takes:
            value = True
        elif argument.startswith(option):
            if inline.fullmatch(argument):
                return None
        elif argument and argument not in SUBCOMMANDS.get(kind, ()):
            # What follows are the script's own arguments, which may name files too.
            script = _found(*at, argument, kind)
            is_class = script is None and kind == "java" and "-jar" not in argv_of(process)  # which it finds by itself
            return None if is_class else script or Script(argument, None)
    # Nothing that names a file: it is read from its input, or the process has written another title over its arguments.
    return None if kind.startswith("lua") and "-e" in arguments else Script(STANDARD_INPUT, None)


def argv_of(process: Mapping[str, Any]) -> Sequence[str]:
    return process.get("argv") or ()


def _beside_its_host(process: Mapping[str, Any]) -> Script | None:
    """Of a .NET program's own executable, which only loads what lies beside it. Most programs are none: that costs one look."""
    exe, pid = process.get("exe"), process["pid"]
    if not exe or not os.path.isfile(f"/proc/{pid}/root{exe}.dll") or (at := stands_in(pid)) is None:
        return None
    beside = f"{exe}.dll"
    return Script(beside, at[0] + beside) if os.path.isfile(at[0] + beside) else None


def _found(root: str, cwd: str, argument: str, kind: str) -> Script | None:
    for path in (argument, *_instead(root, os.path.join(cwd, argument), argument, kind)):
        name = _resolved(root, os.path.join(cwd, path))
        if name is not None and os.path.isfile(root + name):
            return Script(name, root + name)
    return None


def _instead(root: str, whole: str, argument: str, kind: str) -> Iterator[str]:
    """What the interpreter tries where there is no file of that name."""
    if kind not in _BESIDE:
        yield os.path.join(argument, "__main__.py")
        return
    endings = _BESIDE[kind]
    yield from (argument + ending for ending in endings)
    named = _main_of_package(root + (_resolved(root, whole) or whole))
    if named is not None:
        main = os.path.join(argument, named)
        yield main
        yield from (main + ending for ending in endings)
        yield from (os.path.join(main, f"index{ending}") for ending in endings)
    yield from (os.path.join(argument, f"index{ending}") for ending in endings)


def _main_of_package(folder: str) -> str | None:
    try:
        with open(os.path.join(folder, "package.json"), "rb") as file:
            package = parse_json(file.read(PACKAGE_BYTES_MAX))
    except (OSError, ValueError):
        return None
    main = package.get("main") if isinstance(package, dict) else None
    return main if isinstance(main, str) and main and "\0" not in main else None


def stands_in(pid: int) -> tuple[str, str] | None:
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
