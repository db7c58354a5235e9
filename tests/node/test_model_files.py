"""What identifies a model's file: another one under the same name is another model."""

from __future__ import annotations

from pathlib import Path

from nodes.model_files import model_file


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
