"""Stage ``selftest``: prompts through the stand-in model, one duty unit a token, the same texts on every machine."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from envelope import BadSpec, Events
from standin import StandIn

from cotenant.sdk.control import Control
from cotenant.sdk.duty import Duty

PROMPTS_MAX = 10_000_000
TOKENS_MAX = 100_000
# of a run with very many prompts only the first texts are kept; the digest is over all of them
TEXTS_KEPT = 1000
PROGRESS_EVERY_S = 1.0


def run(ctl: Control, payload: Any, events_path: str | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Result payload, effective settings, provenance.

    Payload: ``prompts`` (a list of texts, or how many numbered ones), ``max_tokens`` for each, ``seed`` of the weights.
    """
    prompts, tokens, seed = _checked(payload)
    count = prompts if isinstance(prompts, int) else len(prompts)
    events = Events(events_path)
    duty = Duty(ctl, events=events_path, device="cpu")
    model = StandIn(seed)
    digest = hashlib.sha256()
    texts: list[str] = []
    ctl.phase("work")
    told = time.monotonic()
    try:
        for number in range(count):
            prompt = f"prompt {number}" if isinstance(prompts, int) else prompts[number]
            text = _complete(ctl, duty, model, prompt, tokens)
            digest.update(f"{len(text)}:{text}".encode())
            if len(texts) < TEXTS_KEPT:
                texts.append(text)
            now = time.monotonic()
            if number in (0, count - 1) or now - told >= PROGRESS_EVERY_S:
                told = now
                events.write("progress", done=number + 1, total=count, tokens=tokens, busy_s=round(duty.busy_s, 3))
    finally:
        duty.close()
    result = {"texts": texts, "prompts": count, "tokens": count * tokens, "digest": "sha256:" + digest.hexdigest()}
    effective = {"prompts": count, "max_tokens": tokens, "seed": seed}
    return result, effective, {"model": "stand-in", "backend": "python"}


def _complete(ctl: Control, duty: Duty, model: StandIn, prompt: str, tokens: int) -> str:
    model.reset()
    for character in prompt:
        ctl.safe_point()
        with duty.unit():
            model.read(character)
    text = []
    for _ in range(tokens):
        ctl.safe_point()
        with duty.unit():
            text.append(model.step())
    return "".join(text)


def _checked(payload: Any) -> tuple[int | list[str], int, int]:
    if not isinstance(payload, dict):
        raise BadSpec("the payload is no object")
    unknown = sorted(set(payload) - {"prompts", "max_tokens", "seed"})
    if unknown:
        raise BadSpec(f"the payload has {', '.join(unknown)}; allowed are prompts, max_tokens, seed")
    prompts = payload.get("prompts", 4)
    whole = _whole(prompts) and 1 <= prompts <= PROMPTS_MAX
    texts = isinstance(prompts, list) and bool(prompts) and all(isinstance(prompt, str) for prompt in prompts)
    if not whole and not texts:
        raise BadSpec(f"prompts is a list of texts, or a number from 1 to {PROMPTS_MAX}")
    tokens = payload.get("max_tokens", 16)
    if not _whole(tokens) or not 1 <= tokens <= TOKENS_MAX:
        raise BadSpec(f"max_tokens is a number from 1 to {TOKENS_MAX}")
    seed = payload.get("seed", 0)
    if not _whole(seed):
        raise BadSpec("seed is a whole number")
    return prompts, tokens, seed


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
