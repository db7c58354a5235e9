"""llama.cpp's low-level batch, driven directly: what a batch costs without a product around it.

Run with the interpreter of an environment that has llama-cpp-python: ``python _llama_direct.py MODEL WIDTH MAX_TOKENS PROMPTS.json``.
A sequence a prompt, the next prompt in as soon as one has finished, whole prompts read at once, greedy. Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections import deque
from typing import Any

import llama_cpp as lib

N_BATCH = 512


@lib.llama_log_callback
def quiet(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    return


def main(path: str, width: int, max_tokens: int, prompts: list[str]) -> dict[str, Any]:
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    vocab = lib.llama_model_get_vocab(model)
    queue = deque(tokens_of(vocab, prompt) for prompt in prompts)
    need = -(-(max(map(len, queue)) + max_tokens) // 256) * 256
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.kv_unified = need * width, width, False
    params.n_batch = params.n_ubatch = N_BATCH
    params.n_threads = params.n_threads_batch = 1
    ctx = lib.llama_init_from_model(model, params)
    memory = lib.llama_get_memory(ctx)
    batch = lib.llama_batch_init(N_BATCH, 0, 1)
    sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_greedy())
    live: dict[int, list[int]] = {}  # slot -> [position, token to read, generated]
    made = first = 0.0
    wall_s, cpu_s = time.monotonic(), time.process_time()
    while queue or live:
        for slot in range(width):
            if slot not in live and queue:
                tokens = queue.popleft()
                for row, token in enumerate(tokens):
                    put(batch, row, token, row, slot, row == len(tokens) - 1)
                decode(ctx, batch, len(tokens))
                live[slot] = [len(tokens), lib.llama_sampler_sample(sampler, ctx, len(tokens) - 1), 1]
                made += 1
                first = first or time.monotonic() - wall_s
        for slot in [slot for slot, (_, token, count) in live.items() if done(vocab, token, count, max_tokens)]:
            del live[slot]
            lib.llama_memory_seq_rm(memory, slot, -1, -1)
        rows = list(live)
        for row, slot in enumerate(rows):
            put(batch, row, live[slot][1], live[slot][0], slot, True)
        if rows:
            decode(ctx, batch, len(rows))
        for row, slot in enumerate(rows):
            live[slot] = [live[slot][0] + 1, lib.llama_sampler_sample(sampler, ctx, row), live[slot][2] + 1]
            made += 1
    wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
    return {"tokens": made, "wall_s": wall_s, "busy_s": cpu_s, "first_s": first}


def done(vocab: Any, token: int, count: int, most: int) -> bool:
    return count >= most or bool(lib.llama_vocab_is_eog(vocab, token))


def tokens_of(vocab: Any, prompt: str) -> list[int]:
    raw = prompt.encode()
    room = (lib.llama_token * (len(raw) + 8))()
    count = lib.llama_tokenize(vocab, raw, len(raw), room, len(room), True, True)
    return list(room[:count])


def put(batch: Any, row: int, token: int, position: int, slot: int, logits: bool) -> None:
    batch.token[row], batch.pos[row], batch.logits[row] = token, position, logits
    batch.n_seq_id[row] = 1
    batch.seq_id[row][0] = slot


def decode(ctx: Any, batch: Any, rows: int) -> None:
    batch.n_tokens = rows
    if lib.llama_decode(ctx, batch) != 0:
        raise RuntimeError("llama_decode failed")


if __name__ == "__main__":
    with open(sys.argv[4], encoding="utf-8") as file:
        asked = json.load(file)
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), asked)))
