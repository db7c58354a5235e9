"""The documents between agent and runner: spec in, result or failure out, events on the way."""

from __future__ import annotations

import json
import os
from typing import Any

VERSION = "0.2.0"


class BadSpec(ValueError):
    """A spec that can never succeed."""


class Failed(RuntimeError):
    """The attempt ends with a failure document. ``fault``: job, host, transient, or None where it may be anybody's."""

    def __init__(self, reason: str, detail: str, *, fault: str | None, code: int) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.fault, self.code = reason, detail, fault, code


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


def fail(workdir: str, reason: str, detail: str, *, fault: str | None, code: int) -> int:
    document: dict[str, Any] = {"reason": reason, "detail": detail, "retryable": code != 2}
    if fault is not None:
        document["fault"] = fault
    replace(os.path.join(workdir, "failure.json"), document)
    return code


def succeed(path: str, payload: dict[str, Any], effective: dict[str, Any], provenance: dict[str, Any]) -> int:
    document = {
        "envelope": 1,
        "schema": "llmserve/result@1",
        "module_version": VERSION,
        "protocol": 1,
        "effective": effective,
        "provenance": provenance,
        "artifacts": [],
        "payload": payload,
    }
    replace(path, document)
    return 0


class Events:
    """One JSON object a line; nothing at all without a path."""

    def __init__(self, path: str | None) -> None:
        self._fd = -1 if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, kind: str, **fields: Any) -> None:
        if self._fd >= 0:
            # one call a line: the duty's reports come into the same file from another thread
            text = json.dumps({"type": kind, **fields}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            while text:
                text = text[os.write(self._fd, text) :]
