"""The stand-in driver, built once a session, and a fake /proc tree: what the meters' tests stand on."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stand_in.c")
SONAME = "libnvidia-ml.so.1"
MIB = 1 << 20
INITIAL = "pid:[4026531836]"


def build(folder: Path, *flags: str) -> Path:
    """The stand-in as a library of the driver's name; skips, saying why, where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang): the NVML meter is not tested; apt install gcc")
    out = folder / SONAME
    built = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", f"-Wl,-soname,{SONAME}", *flags, "-o", str(out), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return out


class Driver:
    """The stand-in's state. ``say`` replaces it whole."""

    def __init__(self, library: Path, state: Path) -> None:
        self.library, self.state = library, state
        self._handle = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)

    def say(self, *lines: str) -> None:
        # written beside and moved: a call never reads half of it
        beside = self.state.with_suffix(".new")
        beside.write_text("\n".join(lines) + "\n")
        os.replace(beside, self.state)

    def calls(self, kind: str) -> int:
        return int(ctypes.c_ulong.in_dll(self._handle, f"stand_in_{kind}").value)


class Clock:
    """Monotonic seconds and the wall clock in microseconds, both moved by hand."""

    def __init__(self, start_us: int = 1_800_000_000_000_000) -> None:
        self.now_s, self.start_us = 1000.0, start_us

    def wall_us(self) -> int:
        return self.start_us + round((self.now_s - 1000.0) * 1e6)

    def at_us(self, second: float) -> int:
        """The stamp of ``second`` after the start."""
        return self.start_us + round(second * 1e6)

    def go(self, second: float) -> float:
        self.now_s = 1000.0 + second
        return self.now_s


class FakeProc:
    """A /proc tree with what the meters read."""

    def __init__(self, root: Path, namespace: str = INITIAL) -> None:
        self.root = root
        (root / "self/ns").mkdir(parents=True)
        os.symlink(namespace, root / "self/ns/pid")
        (root / "self/status").write_text("NSpid:\t1\n")

    def add(self, pid: int, name: str = "program", nspid: Iterable[int] | None = None) -> Path:
        folder = self.root / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(name[:15] + "\n")
        (folder / "cmdline").write_bytes(f"/usr/bin/{name}".encode() + b"\0")
        chain = " ".join(str(each) for each in (nspid or [pid]))
        (folder / "status").write_text(f"Name:\t{name}\nNSpid:\t{chain}\n")
        return folder


def run_python(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, timeout=60
    )
