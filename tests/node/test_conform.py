"""The conformance kit on modules that keep their promises, with a competitor pinned to each core, and on modules that break one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.conform import Check, conform
from cotenant.conform.newmodule import new_module
from tests.cli_runner import Cli, cli, home
from tests.node.broken_modules import BROKEN, Broken, make

__all__ = ["cli", "home"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def competitors() -> Iterator[None]:
    """A loop pinned to each core."""
    loops = []
    for core in sorted(os.sched_getaffinity(0)):
        code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile os.getppid() == {os.getpid()}:\n  sum(range(100000))"
        loops.append(subprocess.Popen([sys.executable, "-c", code]))
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def failed(checks: list[Check]) -> list[str]:
    return [check.line() for check in checks if check.verdict == "FAIL"]


@pytest.mark.usefixtures("competitors")
def test_the_reference_module_passes_with_a_competitor_on_each_core() -> None:
    checks = list(conform(ROOT / "modules" / "llmserve"))
    assert not failed(checks)
    passed = {check.name.partition(" ")[0] for check in checks if check.verdict == "ok"}
    assert passed >= {
        "manifest", "meter", "doctor", "golden", "golden-again", "pause", "resume", "stop-acknowledged", "stop-exit",
        "writes", "detach", "doctor-truth", "duty-reported", "duty-honest",
    }  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: one.name.replace(" ", "-"))
def test_a_broken_promise_fails_by_its_own_check_and_no_other(broken: Broken, tmp_path: Path) -> None:
    checks = list(conform(make(broken, tmp_path / "broken"), broken.parts))
    names = {check.name.partition(" ")[0] for check in checks if check.verdict == "FAIL"}
    hidden = [check for check in checks if check.verdict == "skip" and "too little to show" in check.said]
    if hidden and names == broken.fails - {check.name.partition(" ")[0] for check in hidden}:
        pytest.skip(hidden[0].said)
    assert names == broken.fails, [check.line() for check in checks]


def test_a_new_module_passes_and_the_command_says_so(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "Render Farm"
    made = cli("sdk", "new", str(folder))
    assert made.code == 0, made.err
    said = cli("sdk", "conform", str(folder))
    lines = said.out.splitlines()
    assert said.code == 0, said.out
    assert lines[0].startswith("ok    manifest: dev.example.render-farm 0.1.0")
    assert lines[-1].endswith("passed, 0 failed, 0 skipped") or "this host gives" in said.out


def test_a_failure_is_exit_code_1_and_a_bad_folder_2(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "bad"
    new_module(folder)
    (folder / "oarbank-module.toml").write_text("manifest = 1\n")
    said = cli("sdk", "conform", str(folder))
    assert said.code == 1
    assert said.out.splitlines()[-1] == "0 passed, 1 failed, 1 skipped"
    said = cli("sdk", "conform", str(folder), "--json")
    assert (said.code, said.json["data"]["checks"][0]["verdict"]) == (1, "FAIL")
    for bad in (tmp_path / "nowhere", tmp_path):
        assert cli("sdk", "conform", str(bad)).code == 2
    assert cli("sdk", "new", str(folder)).code == 2
    assert cli("sdk", "new", str(tmp_path / "n"), "--id", "Not An Id").code == 2
