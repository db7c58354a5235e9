"""Backend ``mlx``: Apple silicon, through ``mlx_lm``. Prompts take turns, a generation step each; prefill goes in pieces.

Everything that is called of MLX stands in ``_Mlx``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from batching import BadPrompt
from gguf import BadModel
from prompts import Prompt, Request, Sampling

PREFILL_STEP = 2048
MEMORY_SHARE = 0.6


class _Mlx:
    """The calls of ``mlx.core`` and ``mlx_lm`` that are used."""

    def __init__(self) -> None:
        import mlx.core as core
        from mlx_lm import load
        from mlx_lm.generate import generate_step
        from mlx_lm.models.cache import make_prompt_cache
        from mlx_lm.sample_utils import make_sampler

        self.core, self.load, self.generate_step = core, load, generate_step
        self.make_prompt_cache, self.make_sampler = make_prompt_cache, make_sampler

    def limit_memory(self) -> None:
        """A memory limit, and never a wired one: wired memory is memory that the protected program cannot have."""
        device = self.core.metal.device_info() if hasattr(self.core, "metal") else {}
        size = device.get("memory_size")
        if size:
            self.core.set_memory_limit(int(size * MEMORY_SHARE))

    def read(self, model: Any, tokens: list[int], cache: Any) -> None:
        model(self.core.array(tokens)[None], cache=cache)
        self.core.eval([layer.state for layer in cache])
        self.core.synchronize()

    def next(self, steps: Iterator[Any]) -> int:
        token, _ = next(steps)
        self.core.synchronize()
        return int(token)


class MlxBackend:
    """See ``batching.Backend``."""

    name = "mlx"
    device = "gpu"
    unit_max = PREFILL_STEP

    def __init__(self, request: Request, path: str) -> None:
        self._mlx = _Mlx()
        self._mlx.limit_memory()
        try:
            self._model, self._tokenizer = self._mlx.load(path)
        except (OSError, ValueError, KeyError) as error:
            raise BadModel(f"mlx_lm does not load it: {error}") from error
        trained = getattr(getattr(self._model, "args", None), "max_position_embeddings", None) or PREFILL_STEP
        self.context = min(trained, request.context or trained)
        self.width = request.width
        self._slots: OrderedDict[int, _Slot] = OrderedDict()

    def encode(self, prompt: Prompt) -> list[int]:
        if prompt.text is not None:
            return list(self._tokenizer.encode(prompt.text))
        turns = [{"role": role, "content": content} for role, content in prompt.messages]
        if getattr(self._tokenizer, "chat_template", None):
            try:
                return list(self._tokenizer.apply_chat_template(turns, add_generation_prompt=True))
            except Exception as error:  # many templates refuse a role, or turns that do not alternate
                raise BadPrompt(f"the model's chat template refuses it: {error}") from error
        return list(self._tokenizer.encode("\n".join(content for _, content in prompt.messages)))

    def open(self, shared: list[int]) -> None:
        """Caches of MLX are one a prompt: each reads the beginning itself."""

    def start(self, slot: int, tokens: list[int], sampling: Sampling) -> None:
        cache = self._mlx.make_prompt_cache(self._model)
        self._slots[slot] = _Slot(list(tokens), cache, sampling, self._tokenizer.detokenizer)

    def step(self, limit: int) -> tuple[int, list[tuple[int, int]]]:
        """One prompt's turn: a piece of its prefill, or one token."""
        slot, state = next(iter(self._slots.items()))
        self._slots.move_to_end(slot)
        if len(state.unread) > 1:
            piece = state.unread[: min(limit, PREFILL_STEP, len(state.unread) - 1)]
            del state.unread[: len(piece)]
            self._mlx.read(self._model, piece, state.cache)
            return len(piece), []
        if state.steps is None:
            state.steps = self._generation(state)
        return 1, [(slot, self._mlx.next(state.steps))]

    def _generation(self, state: _Slot) -> Iterator[Any]:
        sampling = state.sampling
        sampler = self._mlx.make_sampler(temp=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k)
        if sampling.temperature > 0.0:
            self._mlx.core.random.seed(sampling.seed)
        steps: Iterator[Any] = self._mlx.generate_step(
            self._mlx.core.array(state.unread),
            self._model,
            max_tokens=-1,
            sampler=sampler,
            prompt_cache=state.cache,
            prefill_step_size=PREFILL_STEP,
        )
        return steps

    def piece(self, slot: int, token: int) -> bytes:
        """Through a detokenizer of the sequence's own: a token alone may be half a character, or lose its space."""
        text = self._slots[slot].text
        text.add_token(token)
        return str(text.last_segment).encode()

    def rest(self, slot: int) -> bytes:
        text = self._slots[slot].text
        text.finalize()
        return str(text.last_segment).encode()

    def ends(self, token: int) -> bool:
        return token in self._tokenizer.eos_token_ids

    def stop(self, slot: int) -> None:
        self._slots.pop(slot, None)

    def close(self) -> None:
        self._slots.clear()


class _Slot:
    __slots__ = ("cache", "sampling", "steps", "text", "unread")

    def __init__(self, unread: list[int], cache: Any, sampling: Sampling, text: Any) -> None:
        self.unread, self.cache, self.sampling, self.text = unread, cache, sampling, text
        self.steps: Iterator[Any] | None = None
