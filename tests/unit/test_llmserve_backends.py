"""The llmserve runner's adapters to llama.cpp and MLX, with both stood in for."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.llmserve_rig import Clock, Ctl, Duty, load, on_llama_cpp

pytestmark = pytest.mark.usefixtures("bundle")


def test_llama_cpps_chat_template_refuses_one_prompt_and_not_the_runner() -> None:
    """Templates are programs of whoever made the model. llama.cpp is stood in for; the code around it is the real one."""

    class Formatter:
        def __init__(self, template: str, **_: str) -> None:
            if template == "broken":
                raise SyntaxError("unexpected end of template")

        def __call__(self, messages: list[dict[str, str]]) -> Any:
            if messages[0]["role"] == "system":
                raise ValueError("System role not supported")
            return types.SimpleNamespace(prompt="<" + messages[0]["content"] + ">")

    names = {
        "llama_model_chat_template": lambda model, name: model,
        "llama_vocab_bos": lambda _: -1,
        "llama_vocab_eos": lambda _: 0,
        "llama_vocab_get_text": lambda *_: b"\xff",
    }
    with on_llama_cpp(Formatter, **names) as module:
        refused = load("batching").BadPrompt
        texts: list[str] = []

        def backend(template: bytes) -> Any:
            made = module.LlamaBackend.__new__(module.LlamaBackend)
            made._model, made._vocab, made._template_why = template, 0, ""
            made._add_bos, made.context, made._need = True, 99, 1
            made._tokens = lambda text, **_: texts.append(text) or [1]
            made._format = made._chat_format()
            return made

        asked = [{"messages": [{"role": role, "content": "hi"}]} for role in ("user", "system")]
        user, system, raw = load("prompts").parse({"prompts": [*asked, {"prompt": "hi", "raw": True}]}).prompts
        good, broken = backend(b"fine"), backend(b"broken")
        good.encode(user)
        broken.encode(raw)
        assert texts == ["<hi>", "hi"]
        with pytest.raises(refused, match="System role not supported"):
            good.encode(system)
        with pytest.raises(refused, match=r"unexpected end of template.*--raw"):
            broken.encode(user)


def test_mlx_is_driven_a_prompt_at_a_turn_through_its_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX runs on Apple silicon only: its calls are stood in for, the code around them is the real one."""
    seen: list[tuple[str, Any]] = []

    class Array(list):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            return self if key is None else super().__getitem__(key)

    class Core(types.ModuleType):
        array = staticmethod(Array)
        random = types.SimpleNamespace(seed=lambda seed: seen.append(("seed", seed)))
        metal = types.SimpleNamespace(device_info=lambda: {"memory_size": 1000})

        @staticmethod
        def set_memory_limit(size: int) -> None:
            seen.append(("memory limit", size))

        @staticmethod
        def eval(what: Any) -> None:
            return

        @staticmethod
        def synchronize() -> None:
            seen.append(("synchronize", None))

    class Model:
        args = types.SimpleNamespace(max_position_embeddings=64)

        def __call__(self, tokens: Any, cache: Any) -> None:
            seen.append(("read", len(tokens)))

    class Detokenizer:
        """As that of mlx_lm: text comes when it is whole; here each token is a byte."""

        def __init__(self) -> None:
            self.held, self.text, self.told = b"", "", 0

        def add_token(self, token: int) -> None:
            self.held += bytes([token])
            with contextlib.suppress(UnicodeDecodeError):
                self.text, self.held = self.text + self.held.decode(), b""

        def finalize(self) -> None:
            self.text, self.held = self.text + self.held.decode("utf-8", "replace"), b""

        @property
        def last_segment(self) -> str:
            before, self.told = self.told, len(self.text)
            return self.text[before:]

    class Tokenizer:
        chat_template = "x"
        eos_token_ids = (0,)

        def apply_chat_template(self, turns: Any, add_generation_prompt: bool) -> list[int]:
            if turns[0]["role"] == "system":
                raise ValueError("System role not supported")
            return [ord(character) for character in turns[0]["content"]]

        @property
        def detokenizer(self) -> Detokenizer:
            return Detokenizer()

    def generate_step(prompt: Any, model: Any, **options: Any) -> Iterator[tuple[int, None]]:
        assert len(prompt) == 1
        assert options["prefill_step_size"] == 2048
        yield from ((byte, None) for byte in itertools.cycle("z\u20ac".encode()))

    def module(name: str, **names: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        for key, value in names.items():
            setattr(made, key, value)
        return made

    core = Core("mlx.core")
    stand_ins = {
        "mlx": module("mlx", core=core),
        "mlx.core": core,
        "mlx_lm": module("mlx_lm", load=lambda path: (Model(), Tokenizer())),
        "mlx_lm.generate": module("mlx_lm.generate", generate_step=generate_step),
        "mlx_lm.models": module("mlx_lm.models"),
        "mlx_lm.models.cache": module("mlx_lm.models.cache", make_prompt_cache=lambda model: []),
        "mlx_lm.sample_utils": module("mlx_lm.sample_utils", make_sampler=lambda **options: options),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    request = load("prompts").parse(
        {
            "prompts": [
                "x" * 20,
                {"id": "1", "prompt": "y" * 8, "max_tokens": 4},
                "q" * 70,
                {"id": "3", "messages": [{"role": "system", "content": "be brief"}]},
            ],
            "max_tokens": 3,
            "model": "m",
            "backend": "mlx",
        }
    )
    backend = load("backend_mlx").MlxBackend(request, "m")
    clock, done = Clock(), []
    batch = load("batching").Batch(backend, Ctl(), Duty(clock), 1e9, done.append, clock=clock)
    batch.run(request.prompts)
    assert {one.prompt.id: one.text for one in done} == {"0": "z\ufffd", "1": "z\u20ac", "2": "", "3": ""}
    codes = {one.prompt.id: one.error["code"] for one in done if one.error}
    assert codes == {"2": "too_long", "3": "bad_prompt"}
    assert ("memory limit", 600) in seen
    assert max(size for what, size in seen if what == "read") < 20, "a prompt is read in pieces"
    assert json.dumps([what for what, _ in seen]).count("synchronize") >= 6
