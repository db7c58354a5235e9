from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.nvml.rig import Clock, Driver, FakeProc, build


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """The real pynvml on the stand-in: loaded before it, under the name that pynvml asks the loader for."""
    import pynvml

    state = tmp_path / "nvml"
    monkeypatch.setenv("NVML_STAND_IN", str(state))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stand_in.parent))
    made = Driver(stand_in, state)
    made.say("init 0")
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield made
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")
