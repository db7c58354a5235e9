"""A start of the llmserve runner goes in pieces, each a unit of the duty: imports, the file, the child, the load."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from tests.node.agent_rig import own_ticks
from tests.unit.llmserve_rig import Clock, Ctl, Duty, Stop, load, on_llama_cpp

pytestmark = pytest.mark.usefixtures("bundle")
BURN = "while True: pass"


def pieces(ctl: Ctl | None = None) -> tuple[Any, Clock, Duty]:
    clock = Clock()
    duty = Duty(clock)
    return load("loading").Pieces(ctl or Ctl(), duty, clock=clock), clock, duty


@pytest.mark.parametrize(("duty", "longest"), [(None, 0.12), (0.5, 0.12), (0.05, 0.06), (0.001, 0.03)])
def test_a_load_rests_wherever_it_can_and_a_piece_fits_the_dutys_share_of_a_second(
    duty: float | None, longest: float
) -> None:
    cut, clock, units = pieces(Ctl(duty))
    with cut.gated() as point:
        for _ in range(100):
            clock.now += 0.01
            point()
    assert sum(units.units) == pytest.approx(1.0)
    assert max(units.units) <= longest
    assert cut.worst_s == max(units.units)


def test_a_stop_ends_a_load_in_its_middle() -> None:
    cut, clock, units = pieces(Ctl(stop_after=3))

    def load_it() -> None:
        with cut.gated() as point:
            for _ in range(100):
                clock.now += 0.05
                point()

    with pytest.raises(Stop):
        load_it()
    assert sum(units.units) < 1.0, "most of it was not done any more"


@pytest.mark.parametrize("stop_after", [None, 3])
def test_llama_cpp_loads_in_pieces_and_a_stop_goes_through_it(stop_after: int | None) -> None:
    """llama.cpp is stood in for: it says how far it is between tensors, and gives nothing once it is told to end."""
    told: list[bool] = []
    freed: list[Any] = []
    cut, clock, units = pieces(Ctl(stop_after=stop_after))

    def load_from_file(path: bytes, params: Any) -> Any:
        for tensor in range(100):
            clock.now += 0.03
            told.append(params.progress_callback(tensor / 100.0, None))
            if not told[-1]:
                return None
        return "model"

    names = {
        "llama_progress_callback": lambda function: function,
        "llama_model_default_params": types.SimpleNamespace,
        "llama_supports_gpu_offload": lambda: False,
        "llama_model_load_from_file": load_from_file,
        "llama_model_free": freed.append,
    }
    with on_llama_cpp(object, **names) as module:
        if stop_after is None:
            with cut.gated() as point:
                assert module.load("m.gguf", point) == "model"
            assert len(units.units) > 20
            assert max(units.units) < 0.15
        else:
            with pytest.raises(Stop), cut.gated() as point:
                module.load("m.gguf", point)
            assert told[-1] is False
            assert len(told) < 20
    assert freed == []


def test_a_file_is_read_whole_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loading = load("loading")
    monkeypatch.setattr(loading, "READ_BYTES", 10)
    cut, clock, units = pieces(Ctl(0.05))

    def slow() -> float:
        clock.now += 0.02
        return clock.now

    monkeypatch.setattr(cut, "clock", slow)
    folder = tmp_path / "mlx"
    folder.mkdir()
    for name, size in (("a.safetensors", 95), ("config.json", 5)):
        (folder / name).write_bytes(b"x" * size)
    (folder / "nested").mkdir()
    loading.read_ahead(folder, cut)
    assert len(units.units) > 5, "a piece ends when its time is over, not with the file"
    with pytest.raises(OSError, match="none"):
        loading.read_ahead(tmp_path / "none.gguf", cut)


def test_a_child_that_tries_a_model_rests_between_pieces() -> None:
    """Whatever it does: it knows nothing of the duty, so it is stopped."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", BURN])
    used: list[int] = []

    def rest() -> None:
        # the stop itself takes a moment where the processor is wanted by others
        time.sleep(0.05)
        before = own_ticks(child.pid)
        time.sleep(0.15)
        used.append(own_ticks(child.pid) - before)

    cut = load("loading").Pieces(Ctl(), Duty(time.monotonic, between=rest))
    try:
        with pytest.raises(OSError, match=r"took longer than 0\.3 s"):
            load("loading").wait_in_pieces(child, cut, 0.3)
        assert own_ticks(child.pid) > 0, "in its pieces it ran"
        assert len(used) >= 3
        assert max(used) <= 1
    finally:
        child.kill()
        child.wait()


def test_a_child_that_rests_when_a_stop_comes_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = load("models")
    monkeypatch.setenv("OARBANK_MODULE_DATA", str(tmp_path))
    monkeypatch.setattr(models, "__file__", str(tmp_path / "models.py"))
    (tmp_path / "probe.py").write_text(BURN)
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "m.gguf"
    path.write_bytes(b"x")
    made: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(models.subprocess, "Popen", Kept)
    with pytest.raises(Stop):
        models.probe(path, load("loading").Pieces(Ctl(stop_after=2), Duty(time.monotonic)))
    assert [child.returncode for child in made] == [-signal.SIGKILL]


def test_a_backend_that_cannot_be_imported_is_said_and_what_it_may_do_without_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = load("loading")
    (tmp_path / "whole_backend.py").write_text("")
    (tmp_path / "broken_backend.py").write_text("raise FileNotFoundError('libllama.so')")
    monkeypatch.syspath_prepend(tmp_path)
    parts = {"whole": ("no_such_part", "whole_backend"), "broken": ("whole_backend", "broken_backend")}
    monkeypatch.setattr(loading, "IMPORTS", parts)
    cut, _, units = pieces()
    loading.import_backend("whole", cut)
    assert len(units.units) == 2, "each import is a piece"
    with pytest.raises(loading.DoesNotLoad, match="backend broken does not load: FileNotFoundError: libllama"):
        loading.import_backend("broken", cut)
    loading.import_backend("stub", cut)
