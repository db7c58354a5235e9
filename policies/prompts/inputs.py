"""Reading prompts: a JSON list, JSON lines, or OpenAI's batch format. Bad lines are listed, never passed over.

A line is a text, an object ``{"prompt": …}`` or ``{"messages": […]}`` with options of its own, or a request
``{"custom_id", "method": "POST", "url": "/v1/chat/completions", "body"}``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from policies.json_text import parse_json

__all__ = ["BadLine", "Item", "Parsed", "digest_of", "parse_list", "parse_text"]

PROMPT_BYTES_MAX = 256 << 10
ROLES = ("system", "developer", "user", "assistant", "tool")
CHAT_URL = "/v1/chat/completions"
Format = Literal["plain", "openai"]

_OWN = {"max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "raw"}
_BODY = {
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "n",
    "stream",
    "user",
}
_REQUEST = {"custom_id", "method", "url", "body"}
# what clients write although it asks for nothing; so does a null, whatever its name
_NOTHING: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logprobs": (False,),
    "store": (False,),
    "response_format": ({"type": "text"},),
}


@dataclass(frozen=True, slots=True)
class Item:
    """A prompt as it is kept: ``body`` is ``{prompt | messages, …options}`` for the runner."""

    body: dict[str, Any]
    custom_id: str | None = None


@dataclass(frozen=True, slots=True)
class BadLine:
    """``line`` counts from 1; in a list it is the entry's number."""

    line: int
    why: str

    def __post_init__(self) -> None:
        # a line may be bad by half a character, and the reason names what it holds: it can be printed all the same
        object.__setattr__(self, "why", self.why.encode("utf-8", "backslashreplace").decode())


@dataclass(frozen=True, slots=True)
class Parsed:
    format: Format
    items: list[Item]
    bad: list[BadLine]
    models: list[str] = field(default_factory=list)
    """Models that requests name, each once."""


class _Bad(ValueError):
    pass


def parse_text(text: str) -> Parsed:
    """A file's text: a JSON list where it begins with ``[``, else a JSON value a line."""
    if text.lstrip("\ufeff \t\r\n").startswith("["):
        try:
            entries = parse_json(text.lstrip("\ufeff"))
        except ValueError as error:
            return Parsed("plain", [], [BadLine(getattr(error, "lineno", 1), f"this is no JSON: {error}")])
        return _parse(enumerate(entries, 1))
    return _parse(_lines(text.lstrip("\ufeff")))


def parse_list(prompts: Iterable[Any]) -> Parsed:
    """Prompts that are JSON values already."""
    return _parse(enumerate(prompts, 1))


def digest_of(options: Mapping[str, Any], items: Iterable[Item]) -> str:
    """The same for the same prompts with the same options, whatever the file was called and how it was laid out."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True, default=list).encode())
    for item in items:
        digest.update(json.dumps([item.custom_id, item.body], sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _lines(text: str) -> Iterable[tuple[int, Any]]:
    # only these end a line: JSON may hold the other characters that str.splitlines takes for ends
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if line.strip():
            try:
                yield number, parse_json(line)
            except ValueError as error:
                yield number, _Bad(f"this is no JSON: {error}")


def _parse(entries: Iterable[tuple[int, Any]]) -> Parsed:
    items: list[Item] = []
    bad: list[BadLine] = []
    models: dict[str, None] = {}
    seen: set[str] = set()
    style: Format | None = None
    for number, entry in entries:
        try:
            if isinstance(entry, _Bad):
                raise entry
            mine: Format = "openai" if isinstance(entry, dict) and ("url" in entry or "body" in entry) else "plain"
            style = style or mine
            if mine != style:
                raise _Bad("a file holds either prompts or batch requests, and this line is of the other kind")
            item = _request(entry, models) if mine == "openai" else _plain(entry)
            if item.custom_id is not None and item.custom_id in seen:
                raise _Bad(f"custom_id {item.custom_id!r} is there twice")
            if not _is_text(item):
                raise _Bad("it holds half a character (a surrogate alone) or, in its id, a NUL")
            if len(json.dumps(item.body)) > PROMPT_BYTES_MAX:
                raise _Bad(f"the prompt has more than {PROMPT_BYTES_MAX} bytes, as JSON with its other letters escaped")
        except _Bad as error:
            bad.append(BadLine(number, str(error)))
            continue
        if item.custom_id is not None:
            seen.add(item.custom_id)
        items.append(item)
    return Parsed(style or "plain", items, bad, list(models))


def _is_text(item: Item) -> bool:
    """JSON can write what no text can hold: it could be neither given to a model nor written into a file of results."""
    try:
        json.dumps([item.body, item.custom_id], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in (item.custom_id or "")


def _plain(entry: Any) -> Item:
    if isinstance(entry, str):
        if not entry:
            raise _Bad("the prompt is empty")
        return Item({"prompt": entry})
    if not isinstance(entry, dict):
        raise _Bad("it is neither a text nor an object")
    others = sorted(set(entry) - _OWN - {"prompt", "messages", "id", "custom_id"})
    if others:
        raise _Bad(f"it has {', '.join(others)}; a prompt may have prompt or messages, id, {', '.join(sorted(_OWN))}")
    if ("prompt" in entry) == ("messages" in entry):
        raise _Bad("it needs either prompt or messages")
    body = _options({name: entry[name] for name in _OWN if entry.get(name) is not None})
    if "messages" in entry:
        body["messages"] = _messages(entry["messages"])
    elif not isinstance(entry["prompt"], str) or not entry["prompt"]:
        raise _Bad("prompt is a text that is not empty")
    else:
        body["prompt"] = entry["prompt"]
    name = entry.get("id") if entry.get("custom_id") is None else entry["custom_id"]
    whole = isinstance(name, int) and not isinstance(name, bool)
    return Item(body, None if name is None else _custom_id(str(name) if whole else name))


def _request(entry: dict[str, Any], models: dict[str, None]) -> Item:
    name = _custom_id(entry.get("custom_id"))
    if beside := sorted(set(entry) - _REQUEST):
        raise _Bad(f"it has {', '.join(beside)} beside body; a request has {', '.join(sorted(_REQUEST))}")
    if entry.get("method", "POST") != "POST":
        raise _Bad(f"method is {entry['method']!r}, not POST")
    if entry.get("url") != CHAT_URL:
        raise _Bad(f"url is {entry.get('url')!r}; {CHAT_URL} can be served")
    asked = entry.get("body")
    if not isinstance(asked, dict):
        raise _Bad("body is no object")
    others = sorted(key for key in set(asked) - _BODY if not _asks_nothing(key, asked[key]))
    if others:
        raise _Bad(f"body has {', '.join(others)}, which cannot be served")
    if asked.get("n") not in (None, 1) or asked.get("stream"):
        raise _Bad("one answer a request, and no stream")
    tokens = asked.get("max_completion_tokens")
    tokens = asked.get("max_tokens") if tokens is None else tokens
    own = {"max_tokens": tokens} | {name: asked.get(name) for name in ("temperature", "top_p", "seed", "stop")}
    body = _options({name: value for name, value in own.items() if value is not None})
    body["messages"] = _messages(asked.get("messages"))
    model = asked.get("model")
    if model is not None:
        if not isinstance(model, str):
            raise _Bad("model is a text")
        models[model] = None
    return Item(body, name)


def _asks_nothing(key: str, value: Any) -> bool:
    return value is None or value in _NOTHING.get(key, ())


def _custom_id(name: Any) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= 500:
        raise _Bad("custom_id is a text of 1 to 500 characters")
    return name


def _messages(raw: Any) -> list[dict[str, str]]:
    if not isinstance(raw, list) or not raw:
        raise _Bad("messages is a list that is not empty")
    return [_message(turn) for turn in raw]


def _message(turn: Any) -> dict[str, str]:
    role = turn.get("role") if isinstance(turn, dict) else None
    if role not in ROLES:
        raise _Bad(f"a message's role is one of {', '.join(ROLES)}")
    others = sorted(key for key in set(turn) - {"role", "content"} if turn[key] not in (None, [], {}))
    if others:
        raise _Bad(f"a message has {', '.join(others)}, which cannot be given to the model")
    content = turn.get("content")
    if isinstance(content, list) and content and all(map(_is_text_part, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise _Bad("a message's content is a text, or a list of parts of the type text")
    return {"role": "system" if role == "developer" else role, "content": content}


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _options(own: dict[str, Any]) -> dict[str, Any]:
    """Checked here too, so that a bad line is named before anything starts."""
    for name, least, most in (("max_tokens", 1, 1_000_000), ("top_k", 0, 1_000_000), ("seed", 0, 2**32 - 2)):
        value = own.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most):
            raise _Bad(f"{name} is a whole number from {least} to {most}")
    for name, highest in (("temperature", 10.0), ("top_p", 1.0)):
        value = own.get(name)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value <= highest
        if value is not None and not fits:
            raise _Bad(f"{name} is a number from 0 to {highest:g}")
    stop = own.get("stop")
    stops = [stop] if isinstance(stop, str) else stop
    if stop is not None and not (
        isinstance(stops, list) and len(stops) <= 16 and all(isinstance(one, str) and one for one in stops)
    ):
        raise _Bad("stop is a text, or a list of at most 16")
    if not isinstance(own.get("raw", False), bool):
        raise _Bad("raw is true or false")
    return own
