"""What the pages for module authors show is run as it stands there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.conform import conform
from nodes.bundles import python_environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "authors"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall((PAGES / page).read_text(encoding="utf-8")) if kind == language]


def test_every_block_is_one_that_a_test_takes() -> None:
    kinds = {(path.name, kind) for path in PAGES.glob("*.md") for kind, _ in FENCE.findall(path.read_text("utf-8"))}
    assert kinds == {
        ("write-a-runner.md", "sh"), ("write-a-runner.md", "toml"), ("write-a-runner.md", "python"), ("write-a-runner.md", "json"),
        ("prove-it.md", "sh"), ("prove-it.md", "json"), ("share-a-device.md", "sh"), ("share-a-device.md", "python"),
    }  # fmt: skip
    counts = [len(blocks(*of)) for of in (("write-a-runner.md", "python"), ("share-a-device.md", "python"))]
    assert counts == [2, 2]


def test_the_module_of_the_pages_conforms(tmp_path: Path) -> None:
    bundle = tmp_path / "sums"
    (bundle / "goldens").mkdir(parents=True)
    (bundle / "oarbank-module.toml").write_text(blocks("write-a-runner.md", "toml")[0])
    (bundle / "runner.py").write_text(blocks("write-a-runner.md", "python")[0])
    (bundle / "goldens" / "sum.json").write_text(blocks("write-a-runner.md", "json")[0])
    (bundle / "conformance.json").write_text(blocks("prove-it.md", "json")[0])
    checks = list(conform(bundle))
    assert not [check.line() for check in checks if check.verdict == "FAIL"]
    assert sum(check.verdict == "ok" for check in checks) >= 14
    page = (PAGES / "prove-it.md").read_text(encoding="utf-8")
    for name in {check.name.partition(" ")[0] for check in checks}:
        assert f"`{name}`" in page, "each check is explained"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter that a module gets."""
    return python_environment(tmp_path_factory.mktemp("env"))


def test_units_in_a_coroutine(python: Path, tmp_path: Path) -> None:
    subprocess.run(
        [python, "-I", "-c", blocks("write-a-runner.md", "python")[1]], cwd=tmp_path, check=True, timeout=120
    )


@pytest.fixture(params=[0, 1], ids=["server", "own-units"])
def workload(request: pytest.FixtureRequest, python: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "control.json").write_text(json.dumps({"seq": 1, "gpu_duty": 0.25}))
    env = {"OARBANK_WORKDIR": str(tmp_path), "OARBANK_MODULE": "server", "PATH": os.environ["PATH"]}
    code = blocks("share-a-device.md", "python")[request.param]
    child = subprocess.Popen(
        [python, "-I", "-c", code],
        cwd=tmp_path,
        env=env,
        preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    )
    yield child
    child.kill()
    child.wait()


def test_a_workload_is_stopped_by_its_document(workload: subprocess.Popen[bytes], tmp_path: Path) -> None:
    deadline = time.monotonic() + 120
    while not _children(workload.pid):
        assert workload.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if (tmp_path / "rate").exists():
        assert (tmp_path / "rate").read_text() == "0.250"
    (tmp_path / "new").write_text(json.dumps({"seq": 2, "stop": True}))
    (tmp_path / "new").replace(tmp_path / "control.json")
    workload.send_signal(signal.SIGUSR1)
    assert workload.wait(120) == 75


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or [
            child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []


def test_the_runner_needs_nothing_but_the_sdk(python: Path) -> None:
    """The page says that nothing else can be imported."""
    done = subprocess.run([python, "-I", "-c", "import pydantic"], capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
