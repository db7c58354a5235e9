"""What the ``batch`` stage is asked: prompts, how each is sampled, and with what. Checked whole before anything is loaded."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from envelope import BadSpec

BACKENDS = ("auto", "mlx", "llamacpp", "stub")
ROLES = ("system", "user", "assistant", "tool")
PROMPTS_MAX = 100_000
TOKENS_MAX = 1_000_000
WIDTH_MAX = 64
WIDTH = 16
# A prompt that has generated for this long, time held left out, ends with what it has.
WALL_S = 900.0
_MODEL = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,199}$")


@dataclass(frozen=True, slots=True)
class Sampling:
    """``temperature`` 0 takes the likeliest token each time; ``top_k`` 0 and ``top_p`` 1 leave nothing out."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """``messages`` go through the model's chat template; a ``text`` is read as it is."""

    id: str
    text: str | None
    messages: tuple[tuple[str, str], ...]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A checked payload."""

    prompts: tuple[Prompt, ...]
    model: str
    backend: str
    width: int
    context: int | None
    wall_s: float


def parse(payload: Any) -> Request:
    """The payload of a ``batch`` job.

    ``prompts`` is a list of texts or of objects ``{id?, prompt | messages, raw?}`` that may carry their own ``max_tokens``,
    ``temperature``, ``top_p``, ``top_k``, ``seed`` and ``stop``; beside it stand those of all prompts, ``model``, ``backend``,
    ``width`` (sequences decoded together, at most), ``context`` and ``wall_s``.

    Raises:
        BadSpec: naming the key.
    """
    if not isinstance(payload, dict):
        raise BadSpec("the payload is no object")
    known = {"prompts", "model", "backend", "width", "context", "wall_s", *_OPTIONS}
    _no_others(payload, known, "the payload")
    raw = payload.get("prompts")
    if not isinstance(raw, list) or not 1 <= len(raw) <= PROMPTS_MAX:
        raise BadSpec(f"prompts is a list of 1 to {PROMPTS_MAX} prompts")
    backend = payload.get("backend", "auto")
    if backend not in BACKENDS:
        raise BadSpec(f"backend is one of {', '.join(BACKENDS)}, not {backend!r}")
    model = payload.get("model", "")
    if not isinstance(model, str) or (model and (not _MODEL.fullmatch(model) or ".." in model)):
        raise BadSpec(f"model {model!r} is no plain file name in the module's models folder")
    if not model and backend in ("mlx", "llamacpp"):
        raise BadSpec(f"backend {backend} needs a model")
    width = _whole(payload.get("width", WIDTH), "width", 1, WIDTH_MAX)
    context = payload.get("context")
    if context is not None:
        context = _whole(context, "context", 16, TOKENS_MAX)
    wall_s = _number(payload.get("wall_s", WALL_S), "wall_s", 0.1, 86400.0)
    prompts = tuple(_prompt(item, number, payload) for number, item in enumerate(raw))
    name, times = Counter(prompt.id for prompt in prompts).most_common(1)[0]
    if times > 1:
        raise BadSpec(f"prompts: the id {name!r} is there more than once")
    return Request(prompts, model, backend, width, context, wall_s)


_OPTIONS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "raw")


def _prompt(item: Any, number: int, payload: dict[str, Any]) -> Prompt:
    where = f"prompts[{number}]"
    own = {"prompt": item} if isinstance(item, str) else item
    if not isinstance(own, dict):
        raise BadSpec(f"{where} is neither a text nor an object")
    _no_others(own, {"id", "prompt", "messages", *_OPTIONS}, where)
    options = {name: payload[name] for name in _OPTIONS if name in payload}
    options.update({name: own[name] for name in _OPTIONS if name in own})
    key = own.get("id", str(number))
    if not isinstance(key, str) or not 1 <= len(key) <= 512 or not _is_whole(key):
        raise BadSpec(f"{where}: id is a text of 1 to 512 characters")
    text, messages = own.get("prompt"), own.get("messages")
    if (text is None) == (messages is None):
        raise BadSpec(f"{where}: either prompt or messages")
    if text is not None and (not isinstance(text, str) or not text):
        raise BadSpec(f"{where}: prompt is a text that is not empty")
    turns = () if messages is None else _messages(messages, where)
    raw = options.get("raw", False)
    if not isinstance(raw, bool):
        raise BadSpec(f"{where}: raw is true or false")
    if text is not None and not raw:
        text, turns = None, (("user", text),)
    seed = options.get("seed")
    return Prompt(
        id=key,
        text=text,
        messages=turns,
        max_tokens=_whole(options.get("max_tokens", 128), f"{where}: max_tokens", 1, TOKENS_MAX),
        sampling=Sampling(
            temperature=_number(options.get("temperature", 0.0), f"{where}: temperature", 0.0, 10.0),
            top_p=_number(options.get("top_p", 1.0), f"{where}: top_p", 0.0, 1.0),
            top_k=_whole(options.get("top_k", 0), f"{where}: top_k", 0, 1_000_000),
            # the same prompt of the same batch is drawn the same way in another attempt
            seed=zlib.crc32(key.encode()) if seed is None else _whole(seed, f"{where}: seed", 0, 2**32 - 2),
        ),
        stop=_stops(options.get("stop"), where),
    )


def _is_whole(text: str) -> bool:
    """JSON can write half a character (a surrogate alone), which no file of results can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _messages(raw: Any, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(raw, list) or not raw:
        raise BadSpec(f"{where}: messages is a list that is not empty")
    turns = []
    for turn in raw:
        role, content = (turn.get("role"), turn.get("content")) if isinstance(turn, dict) else (None, None)
        if role not in ROLES or not isinstance(content, str):
            raise BadSpec(f"{where}: a message is {{role, content}} with a role of {', '.join(ROLES)} and a text")
        turns.append((role, content))
    return tuple(turns)


def _stops(raw: Any, where: str) -> tuple[str, ...]:
    if raw is None:
        return ()
    found = [raw] if isinstance(raw, str) else raw
    if not isinstance(found, list) or len(found) > 16 or not all(isinstance(one, str) and one for one in found):
        raise BadSpec(f"{where}: stop is a text, or a list of at most 16")
    return tuple(found)


def _no_others(raw: dict[str, Any], known: set[str], where: str) -> None:
    others = sorted(set(raw) - known)
    if others:
        raise BadSpec(f"{where} has {', '.join(others)}; allowed are {', '.join(sorted(known))}")


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadSpec(f"{name} is a whole number from {least} to {most}")
    return value


def _number(value: Any, name: str, least: float, most: float) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise BadSpec(f"{name} is a number from {least:g} to {most:g}")
    return float(value)
