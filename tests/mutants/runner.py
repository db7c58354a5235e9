"""Run a mutant: the edit in a copy of the tree, the named tests on it, and what they said."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from compileall import compile_dir
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Literal

__all__ = ["Mutant", "Outcome", "Tree", "run"]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600.0
TESTS_FAILED = 1


@dataclass(frozen=True)
class Mutant:
    """``tests``: pytest node ids, the fastest first. ``quick``: part of CI's set."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    quick: bool = False


@dataclass(frozen=True)
class Outcome:
    """``killed``: the tests went red. ``survived``: they stayed green. ``broken``: they could not run, which proves nothing."""

    mutant: str
    state: Literal["killed", "survived", "broken"]
    said: str


class Tree:
    """A copy of the working tree: everything that git knows or would add. ``close`` ends the process that tests in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self._nursery: subprocess.Popen[str] | None = None
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            source, target = ROOT / name, folder / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        # Compiled once, and believed only where the hash of the source fits: by time and size an edit could go unseen.
        compile_dir(folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    def imports_itself(self) -> bool:
        """Whether Python started here imports the copy, not an installed tree."""
        code = "import policies, nodes, cotenant; print(policies.__path__[0], nodes.__path__[0], cotenant.__path__[0])"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.root, env=self._env(), capture_output=True, text=True, check=True
        )
        root = str(self.root.resolve())
        return all(os.path.realpath(path).startswith(root + os.sep) for path in done.stdout.split())

    def test(self, tests: Iterable[str]) -> tuple[int, str]:
        """pytest's exit code and the end of what it said; stops at the first failure. -1: no answer in time."""
        nursery = self._nursery or self._begun()
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(json.dumps(["-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]) + "\n")
        nursery.stdin.flush()
        if not select.select([nursery.stdout], [], [], LIMIT_S)[0]:
            self.close()
            return -1, f"no answer within {LIMIT_S:.0f} s"
        line = nursery.stdout.readline()
        if not line:
            self.close()
            return -1, "the process that runs the tests has ended"
        code, said = json.loads(line)
        return code, " | ".join(said.strip().splitlines()[-3:])

    def close(self) -> None:
        if self._nursery is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._nursery.pid, signal.SIGKILL)  # not collected yet: the number is still its own
            self._nursery.communicate()
            self._nursery = None

    def _begun(self) -> subprocess.Popen[str]:
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.nursery"],
            cwd=self.root,
            env=self._env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self._nursery

    def _env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.root)}


def run(tree: Tree, mutant: Mutant) -> Outcome:
    """Apply the edit, test, and take it back."""
    path = tree.root / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.before) != 1:
        return Outcome(
            mutant.name, "broken", f"{mutant.file} holds the text {text.count(mutant.before)} times, not once"
        )
    changed = text.replace(mutant.before, mutant.after)
    try:
        ast.parse(changed)
    except SyntaxError as error:
        return Outcome(mutant.name, "broken", f"the edit is no Python: {error}")
    path.write_text(changed, encoding="utf-8")
    try:
        code, said = tree.test(mutant.tests)
    finally:
        path.write_text(text, encoding="utf-8")
    if code == TESTS_FAILED:
        return Outcome(mutant.name, "killed", said)
    return Outcome(mutant.name, "survived" if code == 0 else "broken", said)
