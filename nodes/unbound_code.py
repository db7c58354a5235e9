"""What of a protected program a certificate cannot name by content: said plainly, and never left out without a word.

A certificate names the executable of a process, its arguments, and the script where it is an interpreter. That is not the program
where the process only starts another one, where what it runs cannot be told, or where what it loads lies elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodes.program_script import (
    PYTHON_INLINE,
    PYTHONS,
    STANDARD_INPUT,
    Script,
    argv_of,
    interpreter,
    script_of,
    stands_in,
)

__all__ = ["CODE", "Unbound", "unbound_code"]

CODE = "CERT_NOT_BOUND"
# They start another process and wait for it.
LAUNCHERS = (
    "uv", "uvx", "cargo", "go", "make", "just", "mise", "docker", "podman", "sudo", "su", "doas", "timeout", "time", "strace",
    "ltrace", "gdb", "perf", "rr", "nsys", "ncu", "mpirun", "mpiexec", "orterun", "prterun", "srun", "systemd-run", "flatpak",
    "snap", "script", "watch", "parallel", "xargs", "tini", "dumb-init", "bwrap", "unshare", "flock",
)  # fmt: skip
# Where packages are installed, whose own files load others of theirs.
PACKAGES = ("/site-packages/", "/dist-packages/", "/node_modules/")
CODE_ENDINGS = (
    ".py", ".pyc", ".pyz", ".ipynb", ".sh", ".bash", ".js", ".mjs", ".cjs", ".ts", ".tsx", ".jsx", ".rb", ".pl", ".php", ".lua",
    ".jl", ".R", ".r", ".ps1", ".dll", ".exe", ".jar", ".so", ".wasm", ".tcl", ".scm", ".m",
)  # fmt: skip
# The file that an installer writes for a command of a package: it loads the package and calls one function.
COMMAND = re.compile(rb"^\s*(sys\.exit|raise SystemExit)\(", re.MULTILINE)
COMMAND_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Unbound:
    """One thing that no certificate binds: of which process, what and why, and what to do about it."""

    pid: int
    why: str
    remedy: str

    @property
    def words(self) -> str:
        return f"{CODE}: process {self.pid} {self.why}; {self.remedy}"

    @property
    def kept(self) -> str:
        """As a certificate says it: the program is another process by then."""
        return f"it {self.why}; {self.remedy}"


def unbound_code(processes: Sequence[Mapping[str, Any]]) -> list[Unbound]:
    """What of these programs (``{pid, exe, argv}``) is not bound by content; the same of several processes once."""
    found: dict[tuple[str, str], Unbound] = {}
    for process in processes:
        for each in _of(process):
            found.setdefault((each.why, each.remedy), each)
    return list(found.values())


def _of(process: Mapping[str, Any]) -> list[Unbound]:
    pid, exe, known = int(process["pid"]), process.get("exe"), interpreter(process)
    script = script_of(process)
    if known is None:
        launcher = Path(exe).name if exe else ""
        if launcher in LAUNCHERS:
            why = f"is {launcher}, which starts another program: a certificate names {launcher} and its arguments, not what it starts"
            return [Unbound(pid, why, "have the rule match the process that it starts, by argv_regex or its own exe")]
        return _given(process, pid, argv_of(process)[1:], script)
    kind, arguments = known
    if script is None:
        return _without_a_file(pid, kind, arguments)
    if script.path is None:
        if script.name == STANDARD_INPUT:
            what = "its standard input, or has written another title over its arguments: they name no file"
        else:
            what = f"{script.name}, which is not in its working directory"
        why = f"runs {what}, so what it runs cannot be told and no certificate can name it"
        return [Unbound(pid, why, "start it with its script's whole path")]
    found = []
    if any(place in script.name for place in PACKAGES) or (kind in PYTHONS and _is_command(script)):
        why = f"runs {script.name}, a command of a package: a certificate names that file and the arguments, not what it loads and runs"
        found.append(Unbound(pid, why, "measure anew when that changes, or start the program's own file"))
    return found + _given(process, pid, arguments, script)


def _without_a_file(pid: int, kind: str, arguments: Sequence[str]) -> list[Unbound]:
    measure = "measure anew when those change"
    if kind == "java":
        why = "runs a class of its class path: a certificate names the interpreter and the arguments, not the files of the class path"
        return [Unbound(pid, why, measure)]
    if kind in PYTHONS and any(map(PYTHON_INLINE.fullmatch, arguments)):
        why = "runs a module or a line of code (-m, -c): a certificate names the interpreter and the arguments, not the module's files"
        return [Unbound(pid, why, measure)]
    return []  # a line of code stands in the arguments, which are bound


def _given(process: Mapping[str, Any], pid: int, arguments: Sequence[str], script: Script | None) -> list[Unbound]:
    """Files of code that something else is given: it may be what it runs."""
    named = [each for each in arguments if each.endswith(CODE_ENDINGS) and not each.startswith("-")]
    at = stands_in(pid) if named else None
    if at is None:
        return []
    files = [
        each
        for each in named
        if os.path.isfile(whole := at[0] + os.path.join(at[1], each)) and not (script and _same(script, whole))
    ]
    if not files:
        return []
    by = script.name if script is not None else process.get("exe")
    why = f"gives {', '.join(files)} to {by}: a certificate names that by its path, not by its content"
    return [Unbound(pid, why, "measure anew when it changes, or start the program's own file")]


def _same(script: Script, whole: str) -> bool:
    try:
        return script.path is not None and os.path.samefile(script.path, whole)
    except OSError:
        return False


def _is_command(script: Script) -> bool:
    if script.path is None or script.path.endswith(".py"):
        return False
    try:
        with open(script.path, "rb") as file:
            content = file.read(COMMAND_BYTES_MAX + 1)
    except OSError:
        return False
    return len(content) <= COMMAND_BYTES_MAX and COMMAND.search(content) is not None
