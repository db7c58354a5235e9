from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.nvml.rig import Clock, Driver, FakeProc, build


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on a real device run only where they are asked for (``-m gpu``)."""
    if "gpu" in str(config.getoption("-m")):
        return
    real = [item for item in items if item.get_closest_marker("gpu")]
    if real:
        config.hook.pytest_deselected(items=real)
        items[:] = [item for item in items if item not in real]


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
