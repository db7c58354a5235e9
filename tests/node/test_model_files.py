"""What identifies a model's file: another one under the same name is another model."""

from __future__ import annotations

import time
from pathlib import Path

from nodes.agent.core import Agent
from nodes.model_files import PARTS_MAX, model_file
from policies.certificate import FILE_UNKNOWN
from tests.node.jobs_rig import foreign, wait_for


def test_a_file_that_is_replaced_under_its_name_is_another_one(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    file = models / "small.gguf"
    file.write_bytes(b"GGUF1")
    first = model_file(tmp_path, "small.gguf")
    assert first is not None
    assert first == model_file(tmp_path, "small.gguf")
    (tmp_path / "other").write_bytes(b"GGUF2")
    (tmp_path / "other").rename(file)
    second = model_file(tmp_path, "small.gguf")
    assert second not in (None, first)
    file.unlink()
    file.symlink_to(tmp_path / "linked")
    assert model_file(tmp_path, "small.gguf") is None
    (tmp_path / "linked").write_bytes(b"GGUF23")
    assert (model_file(tmp_path, "small.gguf") or "").startswith("6 bytes")


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mlx"
    folder.mkdir(parents=True)
    assert model_file(tmp_path, "mlx") is None
    (folder / "a.safetensors").write_bytes(b"12")
    first = model_file(tmp_path, "mlx")
    (folder / "b.safetensors").write_bytes(b"34")
    assert model_file(tmp_path, "mlx") not in (None, first)


def test_what_is_no_name_of_a_file_there_has_none(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "real.gguf").write_bytes(b"x")
    for name in (None, "", "..", "../secret", "a/b", "stub"):
        assert model_file(tmp_path, name) is None


def test_a_folder_is_what_lies_in_its_subfolders_too(tmp_path: Path) -> None:
    """A model as hubs lay it out: ``snapshots/<commit>/`` of links to ``blobs/``."""
    folder = tmp_path / "models" / "hub"
    (folder / "blobs").mkdir(parents=True)
    (folder / "snapshots" / "c0").mkdir(parents=True)
    (folder / "snapshots" / "c0" / "up").symlink_to(folder)
    blob = folder / "blobs" / "b1"
    blob.write_bytes(b"12")
    (folder / "snapshots" / "c0" / "a.safetensors").symlink_to(blob)
    first = model_file(tmp_path, "hub")
    assert first not in (None, FILE_UNKNOWN)
    assert model_file(tmp_path, "hub") == first
    blob.write_bytes(b"123")
    assert model_file(tmp_path, "hub") not in (None, FILE_UNKNOWN, first)


def test_a_folder_of_too_many_parts_is_not_known(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "wide" / "deep"
    folder.mkdir(parents=True)
    for number in range(PARTS_MAX - 1):
        (folder / f"{number}").touch()
    assert model_file(tmp_path, "wide") not in (None, FILE_UNKNOWN)
    (folder / "one more").touch()
    assert model_file(tmp_path, "wide") == FILE_UNKNOWN


def test_an_adopted_attempt_is_of_the_file_that_it_was_started_with(tmp_path: Path) -> None:
    """The process goes on with what it loaded, whatever has the model's name by now."""
    agent = Agent(tmp_path / "home", "local", tmp_path / "none")
    state = agent.modules.add(foreign(tmp_path, ["freeze_ok"]))
    file = state.data / "models" / "small.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF1")
    first = model_file(state.data, file.name)
    assert first is not None
    agent.start()
    agent.jobs.submit("stranger", None, {"do": "work", "model": file.name})
    wait_for(lambda: agent.tick() or agent.jobs.attempts())
    (name,) = [attempt.attempt_id for attempt in agent.jobs.attempts()]
    for kept, before in ((first, first), (FILE_UNKNOWN, None)):
        file.with_name("new").write_bytes(b"GGUF22")
        file.with_name("new").rename(file)
        if before is None:  # a row of an agent that did not keep it
            agent.jobs.registry.change_attempt(name, model_file=None)
        agent.hub.close()
        agent.journal.close()
        agent = Agent(tmp_path / "home", "local", tmp_path / "none")
        agent.start()
        (attempt,) = agent.jobs.attempts()
        assert (attempt.attempt_id, attempt.adopted) == (name, True)
        assert agent.units.of_attempt(attempt).model_file == kept
    agent.jobs.stop(name, "the test is over", requeue=False, fault=False)
    wait_for(lambda: agent.jobs.tick(time.monotonic()) or not agent.jobs.attempts())
    agent.hub.close()
    agent.journal.close()
