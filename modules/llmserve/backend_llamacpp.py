"""Backend ``llamacpp``: llama.cpp through its low-level batch interface, a sequence a prompt.

One ``step`` is one ``llama_decode``: a token of each sequence that generates and, in what room is left, a piece of the prompts
that are still being read. The beginning that all prompts share is evaluated once, in a sequence of its own, whose cells the others
then share. No context shift: a sequence has room for its prompt and all it may generate, or it is not started.
"""

from __future__ import annotations

import ctypes
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import llama_cpp as lib
import models
from batching import BadPrompt
from gguf import BadModel, read_header
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from prompts import Prompt, Request, Sampling

UNIT_MAX = 512
CELLS = 256
GPU_LAYERS_ALL = 999
PIECE_BYTES = 256


class BackendFailed(RuntimeError):
    """llama.cpp refused a step; the attempt cannot go on, another one may."""


@lib.llama_log_callback
def _quiet(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """Its log would go to the runner's standard error, a line a tensor."""


class LlamaBackend:
    """See ``batching.Backend``.

    Args:
        request: its longest prompt, once ``encode`` has seen them, is what the context is made for.
        path: the GGUF file.
        threads: CPU threads; layers go to the GPU where this build of llama.cpp has one.
        point: called between the parts of the load.
    """

    name = "llamacpp"
    unit_max = UNIT_MAX

    def __init__(self, request: Request, path: str, threads: int, point: Callable[[], None] = lambda: None) -> None:
        lib.llama_log_set(_quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self.device = "gpu" if lib.llama_supports_gpu_offload() else "cpu"
        self.width = request.width
        self._threads = threads
        self._header = read_header(path)
        self._model = load(path, point)
        point()
        self._vocab = lib.llama_model_get_vocab(self._model)
        trained = lib.llama_model_n_ctx_train(self._model)
        self.context = min(trained, request.context or trained)
        self._add_bos = lib.llama_vocab_get_add_bos(self._vocab)
        self._template_why = ""
        self._format = self._chat_format()
        self._ctx: Any = None
        self._need = CELLS
        self._shared: list[int] = []
        self._prefix_read = 0
        # the slots in the order they began: those that began first are served first
        self._slots: OrderedDict[int, _Slot] = OrderedDict()

    # -- text -----------------------------------------------------------------------------------------------------------

    def _chat_format(self) -> Jinja2ChatFormatter | None:
        template = lib.llama_model_chat_template(self._model, None)
        if not template:
            return None
        bos, eos = (lib.llama_vocab_bos(self._vocab), lib.llama_vocab_eos(self._vocab))
        texts = [
            (lib.llama_vocab_get_text(self._vocab, one) or b"").decode("utf-8", "replace") if one >= 0 else ""
            for one in (bos, eos)
        ]
        try:
            return Jinja2ChatFormatter(template.decode("utf-8", "replace"), bos_token=texts[0], eos_token=texts[1])
        except Exception as error:  # a template is a program of whoever made the model: raw prompts need none
            self._template_why = f"the model's chat template cannot be read ({error}); raw prompts need none (--raw)"
            return None

    def encode(self, prompt: Prompt) -> list[int]:
        """Tokens of the prompt; chat messages through the model's own template, or joined where it has none."""
        if prompt.text is not None:
            tokens = self._tokens(prompt.text, special=False, add_bos=self._add_bos)
        elif self._template_why:
            raise BadPrompt(self._template_why)
        elif self._format is not None:
            # the template writes the beginning itself
            tokens = self._tokens(self._templated(self._format, prompt), special=True, add_bos=False)
        else:
            text = "\n".join(content for _, content in prompt.messages)
            tokens = self._tokens(text, special=False, add_bos=self._add_bos)
        room = len(tokens) + prompt.max_tokens
        if room <= self.context:
            self._need = max(self._need, -(-room // CELLS) * CELLS)
        return tokens

    @staticmethod
    def _templated(form: Jinja2ChatFormatter, prompt: Prompt) -> str:
        turns: Any = [{"role": role, "content": content} for role, content in prompt.messages]
        try:
            return str(form(messages=turns).prompt)
        except Exception as error:  # many refuse a role, or turns that do not alternate
            raise BadPrompt(f"the model's chat template refuses it: {error}") from error

    def _tokens(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        raw = text.encode("utf-8", "replace")
        room = len(raw) + 8
        found = (lib.llama_token * room)()
        count = lib.llama_tokenize(self._vocab, raw, len(raw), found, room, add_bos, special)
        if count < 0:
            raise BadPrompt(f"its {len(raw)} bytes cannot be made into tokens ({count})")
        return list(found[:count])

    def piece(self, slot: int, token: int) -> bytes:
        return self._piece(token)

    def rest(self, slot: int) -> bytes:
        return b""

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019 - one backend a process
    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(PIECE_BYTES)
        size = lib.llama_token_to_piece(self._vocab, token, buffer, PIECE_BYTES, 0, False)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = lib.llama_token_to_piece(self._vocab, token, buffer, -size, 0, False)
        return buffer.raw[: max(0, size)]

    def ends(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    # -- sequences ------------------------------------------------------------------------------------------------------

    def start(self, slot: int, tokens: list[int], sampling: Sampling) -> None:
        self._slots[slot] = _Slot(tokens, _sampler(sampling))

    def stop(self, slot: int) -> None:
        gone = self._slots.pop(slot, None)
        if gone is not None:
            lib.llama_sampler_free(gone.sampler)
            if self._ctx is not None:
                lib.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def step(self, limit: int) -> tuple[int, list[tuple[int, int]]]:
        limit = min(limit, UNIT_MAX)
        if self._prefix_read < len(self._shared):
            return self._read_prefix(limit), []
        wanted = self._share_out(limit)
        held = 0
        asked: list[tuple[int, int]] = []
        for slot, count in wanted:
            state = self._slots[slot]
            last = state.at + count == len(state.tokens)
            for number in range(count):
                self._put(held, state.tokens[state.at + number], state.at + number, slot, last and number == count - 1)
                held += 1
            state.at += count
            if last:
                asked.append((slot, held - 1))
        self._decode(held)
        news = []
        for slot, row in asked:
            state = self._slots[slot]
            token = lib.llama_sampler_sample(state.sampler, self._ctx, row)
            state.tokens.append(token)
            news.append((slot, token))
        return held, news

    def _share_out(self, limit: int) -> list[tuple[int, int]]:
        """Slots and how many of their unread tokens this step takes: one each, then what is left to the longest-waiting."""
        wanted: dict[int, int] = {}
        for slot, state in self._slots.items():
            if len(wanted) == limit:
                break
            if not state.begun:
                state.begun = True
                if self._shared:
                    lib.llama_memory_seq_cp(self._memory, self._prefix_slot, slot, -1, -1)
                    state.at = len(self._shared)
            wanted[slot] = 1
        left = limit - len(wanted)
        for slot in wanted:
            state = self._slots[slot]
            more = min(left, len(state.tokens) - state.at - 1)
            wanted[slot] += more
            left -= more
        return list(wanted.items())

    def _read_prefix(self, limit: int) -> int:
        piece = self._shared[self._prefix_read : self._prefix_read + limit]
        for number, token in enumerate(piece):
            self._put(number, token, self._prefix_read + number, self._prefix_slot, False)
        self._decode(len(piece))
        self._prefix_read += len(piece)
        return len(piece)

    # -- llama.cpp ------------------------------------------------------------------------------------------------------

    def open(self, shared: list[int]) -> None:
        """The context, for as many cells as the prompts of this job can come to need; fewer sequences where memory is short.

        Raises:
            NoRoom: there is not the memory for one.
        """
        self._shared = shared
        while self.width > 1 and not models.has_room(self._header, self._cells(self.width)):
            self.width -= 1
        models.check_room(self._header, self._cells(self.width))
        self._prefix_slot = self.width
        sequences = self.width + (1 if shared else 0)
        params = lib.llama_context_default_params()
        params.n_ctx = self._cells(self.width)
        # sequences that share cells must lie in one buffer; those that share none are quicker each in its own
        params.kv_unified = bool(shared)
        params.n_seq_max = sequences
        params.n_batch = params.n_ubatch = UNIT_MAX
        params.n_threads = params.n_threads_batch = self._threads
        params.no_perf = True
        self._ctx = lib.llama_init_from_model(self._model, params)
        if not self._ctx:
            raise MemoryError(f"no context for {self.width} sequences of {self._need} tokens")
        self._memory = lib.llama_get_memory(self._ctx)
        self._batch = lib.llama_batch_init(UNIT_MAX, 0, 1)

    def _cells(self, width: int) -> int:
        if not self._shared:
            return self._need * width
        own = self._need - len(self._shared)
        return -(-(len(self._shared) + width * own) // CELLS) * CELLS

    def _put(self, row: int, token: int, position: int, sequence: int, logits: bool) -> None:
        batch = self._batch
        batch.token[row] = token
        batch.pos[row] = position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence
        batch.logits[row] = logits

    def _decode(self, rows: int) -> None:
        self._batch.n_tokens = rows
        code = lib.llama_decode(self._ctx, self._batch)
        if code != 0:
            raise BackendFailed(f"llama_decode gave {code} for {rows} tokens")
        # a unit ends when the device has finished it
        lib.llama_synchronize(self._ctx)

    def close(self) -> None:
        for slot in list(self._slots):
            self.stop(slot)
        if self._ctx is not None:
            lib.llama_batch_free(self._batch)
            lib.llama_free(self._ctx)
            self._ctx = None
        lib.llama_model_free(self._model)


class _Slot:
    """A sequence: its tokens, read up to ``at``; generated ones are added and read with the next step."""

    __slots__ = ("at", "begun", "sampler", "tokens")

    def __init__(self, tokens: list[int], sampler: Any) -> None:
        self.tokens = list(tokens)
        self.sampler = sampler
        self.at = 0
        self.begun = False


def load(path: str, point: Callable[[], None] = lambda: None) -> Any:
    """The model. ``point`` is called as each of its tensors has been looked at; what it raises ends the load.

    Raises:
        BadModel: llama.cpp does not take the file.
    """
    raised: list[BaseException] = []

    @lib.llama_progress_callback
    def told(_share: float, _data: ctypes.c_void_p) -> bool:
        try:
            point()
        except BaseException as error:  # it cannot go through the library's own frames
            raised.append(error)
        return not raised

    params = lib.llama_model_default_params()
    params.n_gpu_layers = GPU_LAYERS_ALL if lib.llama_supports_gpu_offload() else 0
    params.progress_callback = told
    model = lib.llama_model_load_from_file(path.encode(), params)
    if raised:
        if model:
            lib.llama_model_free(model)
        raise raised[0]
    if not model:
        raise BadModel("llama.cpp does not load it")
    return model


def _sampler(sampling: Sampling) -> Any:
    params = lib.llama_sampler_chain_default_params()
    params.no_perf = True
    chain = lib.llama_sampler_chain_init(params)
    if sampling.temperature <= 0.0:
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
        return chain
    if sampling.top_k > 0:
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(sampling.top_k))
    if sampling.top_p < 1.0:
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_p(sampling.top_p, 1))
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(sampling.temperature))
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(sampling.seed))
    return chain
