"""Files and parameters on a command line: prompts, models, blocks, what a run is asked to do."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from cotenant.cli.blocks_file import read_blocks
from policies import statistics
from policies.harness.schedule import NextBlock, longest_s, most_blocks, next_action, run_looks
from policies.harness.spec import RunSpec
from policies.prompts.inputs import digest_of, parse_text
from policies.refusal import Refused
from tests.fuzz.targets.shapes import Target, altered, mutated, mutated_bytes
from tests.unit.llmserve_rig import importable, load

__all__ = ["FILES"]

# -- prompts -------------------------------------------------------------------------------------------------------------

_PLAIN = {"prompt": "why", "id": 7, "max_tokens": 5, "temperature": 0.5, "stop": ["\n"], "raw": False}
_REQUEST = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "why"}]}],
        "max_completion_tokens": 5,
        "top_p": 1,
        "seed": 0,
        "stop": None,
    },
}


@contextlib.contextmanager
def prompt_files() -> Iterator[Callable[[str], None]]:
    def check(text: str) -> None:
        found = parse_text(text)
        assert all(bad.why and bad.line >= 1 for bad in found.bad), "every bad line is named with its reason"
        for item in found.items:
            assert set(item.body) & {"prompt", "messages"}
            assert item.custom_id is None or 1 <= len(item.custom_id) <= 500
        assert len(digest_of({}, found.items)) == 64

    yield check


# -- models --------------------------------------------------------------------------------------------------------------


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _model(version: int = 3) -> bytes:
    keys = [
        _text("general.architecture") + struct.pack("<I", 8) + _text("llama"),
        _text("general.name") + struct.pack("<I", 8) + _text("tiny"),
        _text("general.alignment") + struct.pack("<II", 4, 32),
        _text("llama.context_length") + struct.pack("<II", 4, 2048),
        _text("llama.block_count") + struct.pack("<II", 4, 2),
        _text("llama.attention.head_count") + struct.pack("<II", 4, 4),
        _text("llama.embedding_length") + struct.pack("<II", 4, 64),
        _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("b"),
        _text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<ff", 0.0, 1.0),
    ]
    tensors = [_text("a") + struct.pack("<IQQIQ", 2, 4, 8, 0, 0), _text("b") + struct.pack("<IQIQ", 1, 32, 2, 128)]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys + tensors)
    return head + b"\0" * (-len(head) % 32) + b"\0" * 160


_MODEL_NAMES = [
    "tiny.gguf",
    "../tiny.gguf",
    "/etc/passwd",
    "",
    ".",
    "a/b",
    "\0",
    "é",
    "x" * 300,
    ".checked.json",
    "a\n",
]


@contextlib.contextmanager
def models() -> Iterator[Callable[[tuple[bytes, str]], None]]:
    data = os.environ.get("OARBANK_MODULE_DATA")
    with importable(), tempfile.TemporaryDirectory() as folder:
        gguf, found_models, asked, envelope = map(load, ("gguf", "models", "prompts", "envelope"))
        os.environ["OARBANK_MODULE_DATA"] = folder
        (Path(folder) / "models").mkdir()
        path = Path(folder) / "models/tiny.gguf"

        def check(found: tuple[bytes, str]) -> None:
            content, name = found
            path.write_bytes(content)
            with contextlib.suppress(gguf.BadModel):
                header = gguf.read_header(str(path))
                assert header.architecture
                assert header.bytes == len(content)
            for row in found_models.listed():
                assert row["ok"] or row["why"]
            with contextlib.suppress(envelope.BadSpec):
                request = asked.parse({"prompts": ["why"], "model": name, "backend": "llamacpp"})
                with contextlib.suppress(gguf.BadModel):
                    assert found_models.find(request.model, "llamacpp").resolve().parent == path.parent.resolve()

        try:
            yield check
        finally:
            os.environ.pop("OARBANK_MODULE_DATA")
            if data is not None:
                os.environ["OARBANK_MODULE_DATA"] = data


# -- runs ----------------------------------------------------------------------------------------------------------------

_SPEC: dict[str, Any] = {
    "node": "local",
    "rule": "trainer",
    "work": "gpu",
    "duty": 0.3,
    "blocks": 12,
    "window_s": 300.0,
    "washout_s": 60.0,
    "margin": 0.02,
    "off": "paused",
    "max_hours": 8.0,
    "first_look": 8,
    "feed": None,
    "kind": "ab",
    "accept_timed_source": False,
    "seed": 0,
}
# Each numbers alone, where a limit of floats or a product of two may lie.
_NUMBERS = st.sampled_from(["duty", "blocks", "window_s", "washout_s", "margin", "max_hours", "first_look", "seed"])
_EXTREMES = st.sampled_from([0, -1, 1e-320, 1e-9, 1e18, 1e307, 1.7e308, 10**30, 10**400, -(10**400), 5e-324])
_specs = st.builds(
    lambda changes: json.dumps({**_SPEC, **changes}), st.dictionaries(_NUMBERS, _EXTREMES, max_size=3)
) | altered([_SPEC, {"node": "n", "rule": "r"}])


@contextlib.contextmanager
def specs() -> Iterator[Callable[[str], None]]:
    def check(text: str) -> None:
        raw = None
        with contextlib.suppress(ValueError, RecursionError):
            raw = json.loads(text)
        if not isinstance(raw, dict):
            return
        try:
            spec = RunSpec.model_validate(raw).checked()
        except (ValidationError, Refused):
            return
        looks = run_looks(spec)
        assert looks
        assert looks[-1] <= most_blocks(spec)
        action = next_action(spec, [], {}, 0.0, longest_s(spec))
        assert isinstance(action, NextBlock), "a run that may be started begins with a block"

    yield check


_BLOCKS = {
    "blocks": [["on_first", 9.94, 10.0], ["off_first", 9.9, 10.1]] * 5,
    "margin": 0.02,
    "n_max": 40,
    "first_look": 8,
}
_ROWS = {
    "spec": _SPEC,
    "blocks": [{"order": "on_first", "state": "counted", "on": {"rate": 9.9}, "off": {"rate": 10.0}}] * 9,
}
_CSV = "# a note\norder,on,off,state\non_first,9.9,10.0,counted\noff_first,9.8,10.1,left_out\n" * 3


@contextlib.contextmanager
def blocks_files() -> Iterator[Callable[[str], None]]:
    def check(text: str) -> None:
        status, said = statistics.main(text.encode("utf-8", "surrogatepass"))
        assert said
        assert status in (0, 2)
        with contextlib.suppress(Refused):
            found = read_blocks(text, "blocks")
            with contextlib.suppress(ValueError):
                statistics.decide(found.blocks, found.margin or 0.02, found.n_max or 40, found.first_look or 8)

    yield check


FILES = {
    "prompts": Target(
        altered([["why", _PLAIN], _PLAIN, _REQUEST, [_REQUEST, _REQUEST]])
        | mutated([json.dumps(_PLAIN) + "\n" + json.dumps("why") + "\n", json.dumps(_REQUEST) + "\n"]),
        prompt_files,
    ),
    "models": Target(
        st.tuples(mutated_bytes([_model(), _model(2)]), st.sampled_from(_MODEL_NAMES) | st.text(max_size=8)), models
    ),
    "specs": Target(_specs, specs),
    "blocks": Target(
        altered([_BLOCKS, _BLOCKS["blocks"], _ROWS, {"data": {"record": _ROWS}}]) | mutated([_CSV]), blocks_files
    ),
}
