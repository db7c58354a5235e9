"""What lies on disk for one attempt, and how a runner's environment is built from nothing.

``jobs/<attempt>/`` holds what is between agent and launcher (``launch.json``, the FIFO ``alive``, ``exit.json``, logs); its
``work`` folder is the runner's ``<W>`` of ``runner-protocol.md``. All of it is 0700 and is deleted once the result is recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nodes.identity import ProcessId
from nodes.jobs.clearing import remove_tree
from nodes.jobs.runnerfiles import open_regular, read_document, write_document
from policies.jobs import Failure, parse_failure
from policies.manifest import RUNNER_PROTOCOL

__all__ = [
    "AttemptDir",
    "Outcome",
    "canonical",
    "limits",
    "newest_lines",
    "platform_name",
    "runner_environment",
    "spec_document",
    "told_process",
]

RESULT_BYTES_MAX = 64 << 20
EVENTS_KEPT_BYTES = 64 << 10
EVENTS_KEPT_LINES = 200
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def platform_name() -> str:
    """``linux-amd64`` and kin."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"


def canonical(document: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, no escapes beyond what JSON needs."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def told_process(root: Path, name: str, attempt_id: str) -> tuple[ProcessId, dict[str, Any]] | None:
    """The process that ``launcher.json`` or ``runner.json`` of this attempt names, and the document.

    None where there is none, or it is of another attempt or damaged: fleet work may have written to it.
    """
    told = read_document(root / f"{name}.json")
    if told is None or told.get("attempt_id") != attempt_id:
        return None
    try:
        return ProcessId.from_dict(told), told
    except (KeyError, TypeError, ValueError):
        return None


def newest_lines(path: Path, limit_bytes: int = EVENTS_KEPT_BYTES, limit_lines: int = EVENTS_KEPT_LINES) -> list[str]:
    """The newest whole lines of a file, oldest first; empty where it cannot be read."""
    opened = open_regular(path)
    if opened is None:
        return []
    with opened as file:
        try:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit_bytes))
            data = file.read(limit_bytes)
        except OSError:
            return []
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.split(b"\n")[:-1]
    if size > limit_bytes:
        lines = lines[1:]  # its beginning is cut off
    return [line.decode("utf-8", "replace") for line in lines[-limit_lines:]]


def runner_environment(
    *,
    short: str,
    module_data: Path,
    tmp: Path,
    settings: Path,
    search: str,
    work: Path | None = None,
    attempt_id: str | None = None,
    device: Mapping[str, str] | None = None,
    module_env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Every variable a runner sees. ``work`` and ``attempt_id`` are absent for a doctor, which has neither."""
    env = {
        "OARBANK_TMP": str(tmp),
        "TMPDIR": str(tmp),
        "OARBANK_MODULE_DATA": str(module_data),
        "OARBANK_PLATFORM": platform_name(),
        "OARBANK_MODULE": short,
        "OARBANK_PROTOCOL": str(RUNNER_PROTOCOL),
        "OARBANK_SETTINGS_FILE": str(settings),
        "PATH": search,
        "HOME": str(module_data),
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
    }
    if work is not None:
        env["OARBANK_WORKDIR"] = str(work)
    if attempt_id is not None:
        env["OARBANK_ATTEMPT_ID"] = attempt_id
    env.update(device or {})
    for name, value in (module_env or {}).items():
        env.setdefault(name, value)
    return env


def spec_document(
    *,
    short: str,
    module_id: str,
    module_version: str,
    stage: str,
    payload: Any,
    resources: Mapping[str, float],
    timeout_s: float | None,
) -> dict[str, Any]:
    """The spec envelope. The job key is the sha256 of the canonical JSON of what decides the result."""
    deciding = {"module_id": module_id, "module_version": module_version, "stage": stage, "payload": payload}
    return {
        "envelope": 1,
        "schema": f"{short}/spec@1",
        "module_id": module_id,
        "module_version": module_version,
        "job_key": hashlib.sha256(canonical(deciding).encode()).hexdigest(),
        "stage": stage,
        "protocol": RUNNER_PROTOCOL,
        "resources": dict(resources),
        "timeout_s": timeout_s,
        "platform": platform_name(),
        "payload": payload,
    }


def limits(duty: float | None, threads: int | None) -> dict[str, float]:
    """The limits of a control document, only those that are set."""
    found: dict[str, float] = {}
    if duty is not None:
        found["gpu_duty"] = duty
    if threads is not None:
        found["threads"] = threads
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a runner left in its work directory."""

    state: Literal["ok", "missing", "invalid"]
    why: str
    result: dict[str, Any] | None
    failure: Failure | None
    failure_document: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """The folder of one attempt."""

    root: Path

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def control(self) -> Path:
        return self.work / "control.json"

    @property
    def fifo(self) -> Path:
        return self.root / "alive"

    def make(self, spec: Mapping[str, Any], control: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Fresh, with everything a runner may read in place before it starts."""
        for folder in (self.root, self.work, self.tmp):
            folder.mkdir(parents=True, mode=0o700)
        write_document(self.root / "settings.json", settings)
        write_document(self.work / "spec.json", spec)
        self.write_control(control)
        os.mkfifo(self.fifo, 0o600)

    def write_control(self, document: Mapping[str, Any]) -> int:
        """When it was written (ns, by the file system's clock)."""
        return write_document(self.control, document)

    def control_ns(self) -> int:
        """When the document on disk was written, by the file system's clock; 0: that cannot be read."""
        try:
            return os.stat(self.control, follow_symlinks=False).st_mtime_ns
        except OSError:
            return 0

    def last_seq(self) -> int:
        """Of the document on disk: the launcher may have written a newer one than the agent remembers."""
        seq = (read_document(self.control) or {}).get("seq")
        return seq if isinstance(seq, int) else 0

    def outcome(self, short: str) -> Outcome:
        """Result and failure documents, checked."""
        failure_document = read_document(self.work / "failure.json")
        failure = parse_failure(failure_document)
        path = self.work / "result.json"
        if not os.path.lexists(path):
            return Outcome("missing", "no result.json", None, failure, failure_document)
        result = read_document(path, RESULT_BYTES_MAX)
        why = "no JSON object in a regular file" if result is None else self._result_fault(result, short)
        return Outcome("invalid" if why else "ok", why, None if why else result, failure, failure_document)

    def _result_fault(self, result: Mapping[str, Any], short: str) -> str:
        schema = result.get("schema")
        if not isinstance(schema, str) or not schema.startswith(f"{short}/result@"):
            return f"schema is {schema!r}, not {short}/result@N"
        if "payload" not in result:
            return "no payload"
        artifacts = result.get("artifacts", [])
        if not isinstance(artifacts, list):
            return "artifacts is no list"
        for artifact in artifacts:
            files = artifact.get("files") if isinstance(artifact, dict) else None
            if not isinstance(files, list):
                return "an artifact without a list of files"
            for file in files:
                why = self._path_fault(file.get("local", file.get("path")) if isinstance(file, dict) else None)
                if why:
                    return why
        return ""

    def _path_fault(self, path: object) -> str:
        if not isinstance(path, str) or not path:
            return "an artifact file without a path"
        parts = path.split("/")
        if path.startswith("/") or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
            return f"artifact path {path!r} is not relative and plain"
        full = self.work / path
        try:
            if not full.resolve().is_relative_to(self.work.resolve()):
                return f"artifact path {path!r} leads out of the work directory"
            if not full.is_file():
                return f"artifact {path!r} is not there"
        except (OSError, RuntimeError) as error:  # a ring of links is a RuntimeError
            return f"artifact path {path[:100]!r}: {getattr(error, 'strerror', None) or error}"
        return ""

    def remove(self) -> None:
        remove_tree(self.root)
