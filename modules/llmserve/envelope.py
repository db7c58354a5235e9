"""The documents between agent and runner: spec in, result or failure out, events on the way."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

VERSION = "0.1.0"


class BadSpec(ValueError):
    """A spec that can never succeed."""


def read_spec(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            spec = json.load(file)
    except (OSError, ValueError) as error:
        raise BadSpec(f"the spec cannot be read: {error}") from None
    if not isinstance(spec, dict) or not isinstance(spec.get("stage"), str):
        raise BadSpec("the spec is no envelope with a stage")
    return spec


def replace(path: str, document: dict[str, Any]) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(document, file, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def fail(workdir: str, reason: str, detail: str, *, fault: str, code: int) -> int:
    replace(
        os.path.join(workdir, "failure.json"),
        {"reason": reason, "detail": detail, "fault": fault, "retryable": code != 2},
    )
    return code


@dataclass
class Envelope:
    spec: dict[str, Any]
    payload: dict[str, Any]
    effective: dict[str, Any]

    def write(self, path: str) -> None:
        replace(
            path,
            {
                "envelope": 1,
                "schema": "llmserve/result@1",
                "module_version": VERSION,
                "protocol": 1,
                "effective": self.effective,
                "provenance": {"model": "stand-in", "backend": "python"},
                "artifacts": [],
                "payload": self.payload,
            },
        )


class Events:
    """One JSON object a line; nothing at all without a path."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def write(self, kind: str, **fields: Any) -> None:
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"type": kind, **fields}, ensure_ascii=False) + "\n")
