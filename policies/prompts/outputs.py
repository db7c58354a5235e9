"""Results as lines: an object a prompt, or OpenAI's batch output where the batch came in that format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

__all__ = ["result_lines"]

# what OpenAI calls the same things
_FINISH = {"stop": "stop", "length": "length", "wall": "length"}


def result_lines(batch: str, model: str, style: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One JSON text a prompt, in the batch's order.

    Args:
        rows: ``{number, custom_id, state: open|done|failed, body, answer, finished_at}``.
    """
    for row in rows:
        made = _openai(batch, model, row) if style == "openai" else _plain(row)
        yield json.dumps(made, ensure_ascii=False)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    answer = row["answer"] or {}
    found: dict[str, Any] = {"number": row["number"]}
    if row["custom_id"] is not None:
        found["id"] = row["custom_id"]
    found["state"] = row["state"]
    if "prompt" in row["body"]:
        found["prompt"] = row["body"]["prompt"]
    for name in ("text", "finish", "prompt_tokens", "tokens"):
        found[name] = answer.get(name)
    found["error"] = answer.get("error")
    return found


def _openai(batch: str, model: str, row: Mapping[str, Any]) -> dict[str, Any]:
    name = hashlib.sha256(f"{batch}/{row['number']}".encode()).hexdigest()[:24]
    answer = row["answer"] or {}
    found: dict[str, Any] = {"id": f"batch_req_{name}", "custom_id": row["custom_id"], "response": None, "error": None}
    if row["state"] != "done":
        missing = {"code": "not_finished", "message": "the prompt was not finished"}
        found["error"] = answer.get("error") or missing
        return found
    used, made = answer.get("prompt_tokens") or 0, answer.get("tokens") or 0
    when = row.get("finished_at")
    found["response"] = {
        "status_code": 200,
        "request_id": f"req_{name}",
        "body": {
            "id": f"chatcmpl-{name}",
            "object": "chat.completion",
            "created": int(datetime.fromisoformat(when).timestamp()) if when else 0,
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": answer.get("text", "")},
                    "finish_reason": _FINISH.get(str(answer.get("finish")), "stop"),
                    "logprobs": None,
                }
            ],
            "usage": {"prompt_tokens": used, "completion_tokens": made, "total_tokens": used + made},
        },
    }
    return found
