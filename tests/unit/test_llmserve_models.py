"""Model files of the llmserve runner: heads that are whole or refused, the memory they need, the child that tries one."""

from __future__ import annotations

import struct
import types
from pathlib import Path
from typing import Any

import pytest

from tests.unit.llmserve_rig import Clock, Ctl, Duty, load

pytestmark = pytest.mark.usefixtures("bundle")


def gguf(keys: list[tuple[str, int, bytes]], tensors: int = 1, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    head = magic + struct.pack("<IQQ", version, tensors, len(keys))
    for name, kind, value in keys:
        head += text(name) + struct.pack("<I", kind) + value
    for number in range(tensors):
        head += text(f"t{number}") + struct.pack("<IQIQ", 1, 4, 0, 0)
    return head + b"\0" * (-len(head) % 32) + b"\0" * 16


ARCHITECTURE = ("general.architecture", 8, struct.pack("<Q", 5) + b"llama")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no GGUF"),
        (b"PK\x03\x04zip", "no GGUF"),
        (b"GGUF\x03", "truncated"),
        ((b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + b"\0" * 37)[:37], "no name"),
        (gguf([ARCHITECTURE], version=1), "version"),
        (gguf([ARCHITECTURE], tensors=0), "0 tensors"),
        (gguf([("x", 99, b"")]), "unknown type"),
        (gguf([("x", 8, struct.pack("<Q", 1 << 60))]), "bytes long"),
        (gguf([("x", 9, struct.pack("<IQ", 10, 1 << 23))]), "truncated"),
        (gguf([("x", 9, struct.pack("<IQQ", 8, 1, 1 << 60))]), "bytes long"),
        (gguf([("x", 9, struct.pack("<IQQ", 8, 2, 3) + b"abc" + struct.pack("<Q", 1 << 20))]), "truncated"),
        (gguf([ARCHITECTURE, ARCHITECTURE]), "twice"),
        (gguf([]), "0 keys"),
        (gguf([("x", 4, b"\1\0\0\0")]), "architecture"),
        (gguf([ARCHITECTURE])[:-12], "truncated"),
    ],
)
def test_case_099_a_file_that_is_no_whole_model_is_refused_with_the_reason(
    tmp_path: Path, data: bytes, why: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    module = load("gguf")
    with pytest.raises(module.BadModel, match=why):
        module.read_header(str(path))


def test_a_whole_head_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    numbers = {"block_count": 2, "attention.head_count": 4, "embedding_length": 64, "context_length": 512}
    words = struct.pack("<IQ", 8, 3) + b"".join(struct.pack("<Q", len(word)) + word for word in (b"a", b"", b"bcd"))
    keys = [ARCHITECTURE, ("tokenizer.ggml.tokens", 9, words)]
    keys += [(f"llama.{name}", 4, struct.pack("<I", value)) for name, value in numbers.items()]
    path.write_bytes(gguf(keys))
    header = load("gguf").read_header(str(path))
    assert (header.architecture, header.context, header.layers) == ("llama", 512, 2)
    assert header.kv_bytes_per_token == 2 * 2 * 2 * 64
    assert header.bytes == path.stat().st_size


@pytest.mark.parametrize(
    ("max_tokens", "context", "waits"),
    [
        ([1_000_000, 20], None, False),
        ([1_000_000], None, False),
        ([512], None, False),
        ([300], 256, False),
        ([300], None, True),
        ([300, 400], 500, True),
    ],
)
def test_an_answer_that_cannot_fit_the_context_makes_no_job_wait_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_tokens: list[int], context: int | None, waits: bool
) -> None:
    """The prompts are refused as too long once the model is loaded; the weights and 250 tokens of cache have room."""
    path = tmp_path / "m.gguf"
    numbers = {"block_count": 2, "attention.head_count": 4, "embedding_length": 64, "context_length": 512}
    keys = [ARCHITECTURE, *((f"llama.{name}", 4, struct.pack("<I", value)) for name, value in numbers.items())]
    path.write_bytes(gguf(keys))
    batch, models = load("batch"), load("models")
    free = models.need_bytes(models.read_header(str(path)), 250)
    monkeypatch.setattr(models, "free_bytes", lambda: free)
    monkeypatch.setattr(models, "probe", lambda path, pieces: None)
    monkeypatch.setattr(batch, "open_backend", lambda *_: "loaded")
    asked: dict[str, Any] = {"prompts": [{"prompt": "a", "max_tokens": most} for most in max_tokens], "model": "m.gguf"}
    request = load("prompts").parse(asked | ({} if context is None else {"context": context}))
    ctl = types.SimpleNamespace(safe_point=lambda: None, workdir=str(tmp_path), threads=None, gpu_duty=None)
    pieces = load("loading").Pieces(ctl, Duty(Clock()))
    if waits:
        with pytest.raises(load("envelope").Failed, match="GiB are free"):
            batch._loaded(pieces, "llamacpp", request, str(path))
    else:
        assert batch._loaded(pieces, "llamacpp", request, str(path)) == "loaded"


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("import os; os.abort()", "BadModel", "signal 6"),
        ("print('no tensors'); raise SystemExit(2)", "BadModel", "no tensors"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "OSError", "-9"),
        ("raise SystemExit(0)", "", ""),
    ],
)
def test_case_099_what_kills_the_child_that_loads_a_model_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: str, words: str
) -> None:
    models = load("models")
    monkeypatch.setenv("OARBANK_MODULE_DATA", str(tmp_path))
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "m.gguf"
    path.write_bytes(b"x")
    monkeypatch.setattr(models, "__file__", str(tmp_path / "models.py"))
    (tmp_path / "probe.py").write_text(script)
    pieces = load("loading").Pieces(Ctl(), Duty(Clock()))
    if not kind:
        models.probe(path, pieces)
        (tmp_path / "probe.py").write_text("raise SystemExit(2)")
        models.probe(path, pieces)  # a file that was loaded once is not tried again
        path.write_bytes(b"other")
        with pytest.raises(models.BadModel):
            models.probe(path, pieces)
        return
    with pytest.raises(models.BadModel if kind == "BadModel" else OSError, match=words):
        models.probe(path, pieces)
