"""What the tests of jobs share: a node's home with the foreign module in it, and waiting for conditions."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nodes.jobs import Attempt, JobManager
from nodes.modules import ModuleStore

FOREIGN = Path(__file__).with_name("foreign_module")
PATIENCE_S = 90.0


def foreign(place: Path, capabilities: Iterable[str], **changes: str) -> Path:
    """A copy of the foreign module with these capabilities; ``changes`` replace ``key = …`` lines of its manifest."""
    bundle = place / "stranger"
    shutil.copytree(FOREIGN, bundle, ignore=shutil.ignore_patterns("__pycache__"))
    manifest = bundle / "oarbank-module.toml"
    text = manifest.read_text()
    for key, value in {"capabilities": json.dumps(sorted(capabilities)), **changes}.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", lambda _, key=key, value=value: f"{key} = {value}", text)
        assert count == 1, key
    manifest.write_text(text)
    return bundle


class Rig:
    """A JobManager as the agent has one, with its journal in a list."""

    def __init__(self, home: Path, builtin: Path | None = None, **options: Any) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.journal: list[tuple[str, dict[str, Any]]] = []
        self.modules = ModuleStore(home, builtin or home / "none")
        self.db = sqlite3.connect(home / "journal.sqlite")
        self.jobs = JobManager(
            home, self.db, self.modules, lambda code, data: self.journal.append((code, data)), **options
        )

    @classmethod
    def with_foreign(cls, place: Path, capabilities: Iterable[str], **changes: str) -> Rig:
        rig = cls(place / "node")
        state = rig.modules.add(foreign(place, capabilities, **changes))
        assert state.state == "ready", state.why
        return rig

    def start(self, payload: dict[str, Any], **options: Any) -> Attempt:
        return self.jobs.start(self.jobs.submit("stranger", None, payload).job, **options)

    def until(self, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """Tick until the condition holds; what it answered."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            self.jobs.tick(time.monotonic())
            answer = condition()
            if answer:
                return answer
            time.sleep(0.02)
        raise AssertionError(f"did not come true in {patience_s:g} s; journal: {self.journal[-5:]}")

    def run(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Start a job and tick until its first attempt has ended; the job's record."""
        attempt = self.start(payload)
        self.until(lambda: not self.jobs.attempts())
        return self.jobs.show(attempt.job_id)

    def pids(self, attempt: Attempt) -> list[int]:
        """The attempt's processes without the guardian: launcher, runner and what is below."""
        return [who.pid for who in self.jobs.tree(attempt.attempt_id)][1:]

    def codes(self) -> list[str]:
        return [code for code, _ in self.journal]

    def seen(self) -> list[dict[str, Any]]:
        """Control documents that the foreign runner applied."""
        path = self.home / "modules" / "stranger" / "data" / "seen.ndjson"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        self.jobs.shutdown(time.monotonic())
        assert self.jobs.drain(PATIENCE_S)
        self.db.close()


def wait_for(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        answer = condition()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"did not come true in {patience_s:g} s")


def state_of(pid: int) -> str:
    """State letter; "gone" where there is no such process (or only its zombie). A thread that outlives the main thread gives its own."""
    letter, threads = _state(Path(f"/proc/{pid}"))
    if letter in "ZX" and threads > 1:
        letter = next((each for task in _tasks(pid) if (each := _state(task)[0]) not in "ZX"), letter)
    return "gone" if letter in "ZX" else letter


def headless(pid: int) -> bool:
    """Whether its main thread has ended and another runs on."""
    letter, threads = _state(Path(f"/proc/{pid}"))
    return letter == "Z" and threads > 1


def _state(place: Path) -> tuple[str, int]:
    """State letter and number of threads of a process or thread; X and 0 where there is none."""
    try:
        raw = (place / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    fields = raw[raw.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[17])


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def cpu_ticks(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        try:
            raw = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = raw[raw.rindex(b")") + 2 :].split()
        total += sum(int(field) for field in fields[11:15])
    return total


def carriers(attempt_id: str) -> list[int]:
    """Live pids whose environment names the attempt."""
    mark = f"OARBANK_ATTEMPT_ID={attempt_id}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and state_of(int(name)) != "gone":
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environ:
                found.append(int(name))
    return found
