"""The spawn registry: jobs and attempts in the node's ``journal.sqlite``.

An attempt's row is committed before its launcher is started, and the launcher starts no runner before its own identity stands in
that row, so there is never a process that is not in here.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from nodes.clock import utc_iso
from nodes.identity import ProcessId, boot_id
from policies.certificate import FILE_UNKNOWN
from policies.jobs import JobState

__all__ = ["EVERY", "AttemptRow", "Job", "Registry", "model_of"]

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS jobs (
        job INTEGER PRIMARY KEY AUTOINCREMENT, module TEXT NOT NULL, short TEXT NOT NULL, stage TEXT NOT NULL,
        payload TEXT NOT NULL, timeout_s REAL, max_attempts INTEGER NOT NULL, feed_of TEXT,
        state TEXT NOT NULL, outcome TEXT, code TEXT, reason TEXT, remedy TEXT, attempt TEXT,
        attempts INTEGER NOT NULL DEFAULT 0, counted INTEGER NOT NULL DEFAULT 0, soft_retries INTEGER NOT NULL DEFAULT 0,
        queued_at TEXT NOT NULL, started_at TEXT, ended_at TEXT, result TEXT, failure TEXT, key TEXT)""",
    """CREATE TABLE IF NOT EXISTS attempts (
        attempt TEXT PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs(job), number INTEGER NOT NULL, bundle TEXT NOT NULL,
        capabilities TEXT NOT NULL, cores REAL NOT NULL, mem_gb REAL NOT NULL, stop_grace_s REAL NOT NULL,
        boot_id TEXT NOT NULL, launcher_pid INTEGER, launcher_ticks INTEGER, runner_pid INTEGER, runner_ticks INTEGER,
        duty REAL, stop TEXT, started_at TEXT NOT NULL, ended_at TEXT, exit_code INTEGER, exit_signal INTEGER,
        ended_by TEXT, verdict TEXT, cpu_s REAL, ran_s REAL NOT NULL DEFAULT 0, events TEXT, cgroup TEXT, tree TEXT,
        model_file TEXT)""",
    "CREATE INDEX IF NOT EXISTS attempts_open ON attempts(job) WHERE ended_at IS NULL",
    "CREATE INDEX IF NOT EXISTS jobs_open ON jobs(state) WHERE state <> 'ended'",
    "CREATE INDEX IF NOT EXISTS jobs_fed ON jobs(feed_of) WHERE feed_of IS NOT NULL",
)


EVERY = -1
"""As a limit: none."""
_LIGHT = (
    "job, module, short, stage, NULL AS payload, timeout_s, max_attempts, feed_of, state, outcome, code, reason, remedy, "
    "attempt, attempts, counted, soft_retries, queued_at, started_at, ended_at, NULL AS result, NULL AS failure, key"
)


@dataclass(frozen=True, slots=True)
class Job:
    """A job's row. ``payload``, ``result`` and ``failure`` are JSON values; times are ISO 8601 UTC."""

    job: int
    module: str
    short: str
    stage: str
    payload: Any
    timeout_s: float | None
    max_attempts: int
    feed_of: str | None
    state: JobState
    outcome: str | None
    code: str | None
    reason: str | None
    remedy: str | None
    attempt: str | None
    attempts: int
    counted: int
    soft_retries: int
    queued_at: str
    started_at: str | None
    ended_at: str | None
    result: Any
    failure: Any
    key: str | None = None
    model: str | None = None
    """What the payload names as its model."""

    def as_dict(self) -> dict[str, Any]:
        """The record of the socket's ``job_list``; ``share`` and ``duty`` belong to a live attempt."""
        names = "job key module stage state outcome code reason remedy attempt attempts feed_of queued_at started_at ended_at"
        return {**{name: getattr(self, name) for name in names.split()}, "share": None, "duty": None}


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt's row as the restarted agent finds it."""

    attempt: str
    job: int
    number: int
    bundle: str
    capabilities: frozenset[str]
    cores: float
    mem_gb: float
    stop_grace_s: float
    launcher: ProcessId | None
    runner: ProcessId | None
    boot_id: str
    duty: float | None
    stop: dict[str, Any] | None
    ran_s: float
    cgroup: str | None
    tree: dict[int, int]
    """Pid -> start ticks of what was below the launcher when it was last looked at."""


class Registry:
    """Rows in, rows out. Each method that changes something is one committed transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._waiting: dict[int, Job] | None = None
        with self._transaction():
            for statement in _SCHEMA:
                self._db.execute(statement)
            there = {row[1] for row in self._db.execute("PRAGMA table_info(attempts)")}
            for column in sorted({"cgroup", "tree", "model_file"} - there):
                self._db.execute(f"ALTER TABLE attempts ADD COLUMN {column} TEXT")
            if "key" not in [row[1] for row in self._db.execute("PRAGMA table_info(jobs)")]:
                self._db.execute("ALTER TABLE jobs ADD COLUMN key TEXT")
            self._db.execute("CREATE UNIQUE INDEX IF NOT EXISTS jobs_key ON jobs(key) WHERE key IS NOT NULL")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, on a connection that commits each statement by itself as on one that does not."""
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            yield

    def _rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        cursor = self._db.cursor()
        cursor.row_factory = sqlite3.Row
        return list(cursor.execute(statement, values))

    def _change(self, table: str, key: str, value: Any, change: Mapping[str, Any]) -> None:
        names = ", ".join(f"{name} = ?" for name in change)
        with self._transaction():
            self._db.execute(f"UPDATE {table} SET {names} WHERE {key} = ?", (*change.values(), value))

    # -- jobs -----------------------------------------------------------------------------------------------------------

    def add_job(
        self,
        module: str,
        short: str,
        stage: str,
        payload: Any,
        timeout_s: float | None,
        max_attempts: int,
        feed_of: str | None,
        key: str | None = None,
    ) -> Job:
        with self._transaction():
            cursor = self._db.execute(
                "INSERT INTO jobs (module, short, stage, payload, timeout_s, max_attempts, feed_of, key, state, queued_at, "
                "code, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'waiting', ?, 'JOB_QUEUED', 'it was not judged yet')",
                (module, short, stage, json.dumps(payload), timeout_s, max_attempts, feed_of, key, utc_iso()),
            )
        found = self.job(int(cursor.lastrowid or 0))
        assert found is not None
        self._keep(found)
        return found

    def job(self, job: int) -> Job | None:
        rows = self._rows("SELECT * FROM jobs WHERE job = ?", (job,))
        return _job(rows[0]) if rows else None

    def job_of_key(self, key: str) -> Job | None:
        rows = self._rows("SELECT * FROM jobs WHERE key = ?", (key,))
        return _job(rows[0]) if rows else None

    def jobs(self, state: str | None = None, limit: int = 1000) -> list[Job]:
        """Newest first (``EVERY``: all of them), without workloads, by the state in its row: a running job is "running" there
        also while it is held or stopping. Payload, result and failure are left out (None), as a list shows none of them."""
        where, values = ("AND state = ?", (state, limit)) if state else ("", (limit,))
        query = f"SELECT {_LIGHT} FROM jobs WHERE stage NOT LIKE 'service:%' {where} ORDER BY job DESC LIMIT ?"
        return [_job(row) for row in self._rows(query, values)]

    def feeds(self, run: str, limit: int) -> list[Job]:
        """Jobs that feed a run, newest first, as light as in ``jobs``."""
        rows = self._rows(f"SELECT {_LIGHT} FROM jobs WHERE feed_of = ? ORDER BY job DESC LIMIT ?", (run, limit))
        return [_job(row) for row in rows]

    def workloads(self) -> list[Job]:
        """Those that are started, oldest first."""
        query = "SELECT * FROM jobs WHERE state <> 'ended' AND stage LIKE 'service:%' ORDER BY job"
        return [_job(row) for row in self._rows(query)]

    def waiting(self) -> list[Job]:
        """Oldest first, without their payloads. Read once and then kept: they are gone through at each tick, and may be thousands."""
        return [kept for _, kept in sorted(self._kept().items())]

    def waits(self, job: int) -> bool:
        return job in self._kept()

    def _kept(self) -> dict[int, Job]:
        if self._waiting is None:
            rows = self._rows("SELECT * FROM jobs WHERE state = 'waiting'")
            self._waiting = {row["job"]: replace(_job(row), payload=None) for row in rows}
        return self._waiting

    def _keep(self, job: Job | None) -> None:
        """Its row has changed."""
        if job is not None and self._waiting is not None:
            self._waiting.pop(job.job, None)
            if job.state == "waiting":
                self._waiting[job.job] = replace(job, payload=None)

    def note_waiting(self, notes: Iterable[tuple[int, str | None, str | None, str | None]]) -> None:
        """(job, code, reason, remedy) of jobs that wait, in one transaction."""
        notes = [note for note in notes if self.waits(note[0])]
        with self._transaction():
            self._db.executemany(
                "UPDATE jobs SET code = ?, reason = ?, remedy = ? WHERE job = ?",
                [(code, reason, remedy, job) for job, code, reason, remedy in notes],
            )
        kept = self._kept()
        kept.update({job: replace(kept[job], code=code, reason=why, remedy=remedy) for job, code, why, remedy in notes})

    def open_jobs(self) -> list[Job]:
        """Those that have not ended, oldest first."""
        return [_job(row) for row in self._rows("SELECT * FROM jobs WHERE state != 'ended' ORDER BY job")]

    def change_job(self, job: int, **change: Any) -> None:
        self._change("jobs", "job", job, change)
        self._keep(self.job(job))

    # -- attempts -------------------------------------------------------------------------------------------------------

    def add_attempt(self, row: Mapping[str, Any]) -> None:
        """Before any process of the attempt exists; the job's state changes in the same transaction."""
        with self._transaction():
            names = ", ".join(row)
            marks = ", ".join("?" for _ in row)
            self._db.execute(f"INSERT INTO attempts ({names}) VALUES ({marks})", tuple(row.values()))
            self._db.execute(
                "UPDATE jobs SET state = 'running', attempt = ?, attempts = attempts + 1, started_at = ?, reason = NULL, "
                "code = NULL WHERE job = ?",
                (row["attempt"], row["started_at"], row["job"]),
            )
        self._keep(self.job(row["job"]))

    def change_attempt(self, attempt: str, **change: Any) -> None:
        self._change("attempts", "attempt", attempt, change)

    def bundle_of(self, attempt: str) -> str | None:
        """The bundle folder an attempt was started from."""
        rows = self._rows("SELECT bundle FROM attempts WHERE attempt = ?", (attempt,))
        return str(rows[0]["bundle"]) if rows else None

    def digest_of(self, attempt: str) -> str | None:
        """Of the bundle that it was started from; None: not known."""
        bundle = self.bundle_of(attempt)
        return None if bundle is None else Path(bundle).name

    def model_file_of(self, attempt: str) -> str | None:
        """What identified its model's file when it was started; None: it had none. ``FILE_UNKNOWN``: that was not kept."""
        rows = self._rows("SELECT model_file FROM attempts WHERE attempt = ?", (attempt,))
        kept = rows[0]["model_file"] if rows else None
        return FILE_UNKNOWN if kept is None else kept or None

    def open_attempts(self) -> list[AttemptRow]:
        return [_attempt(row) for row in self._rows("SELECT * FROM attempts WHERE ended_at IS NULL ORDER BY rowid")]

    def attempts_of(self, job: int) -> list[dict[str, Any]]:
        """All attempts of a job as plain records, oldest first."""
        rows = self._rows("SELECT * FROM attempts WHERE job = ? ORDER BY rowid", (job,))
        found = []
        for row in rows:
            record = dict(row)
            record["events"] = json.loads(record["events"]) if record["events"] else []
            record["stop"] = json.loads(record["stop"]) if record["stop"] else None
            record["capabilities"] = json.loads(record["capabilities"])
            found.append(record)
        return found

    def end_attempt(
        self, attempt: str, job: int, attempt_change: Mapping[str, Any], job_change: Mapping[str, Any]
    ) -> None:
        """Attempt and job in one transaction: a crash leaves both as before or both as after."""
        with self._transaction():
            for table, key, value, change in (
                ("attempts", "attempt", attempt, attempt_change),
                ("jobs", "job", job, job_change),
            ):
                names = ", ".join(f"{name} = ?" for name in change)
                self._db.execute(f"UPDATE {table} SET {names} WHERE {key} = ?", (*change.values(), value))
        self._keep(self.job(job))


@lru_cache(maxsize=16)
def _parsed(text: str) -> Any:
    """A waiting job is looked at several times a tick, and its payload may be hundreds of prompts; nobody changes what comes back."""
    return json.loads(text)


def _job(row: sqlite3.Row) -> Job:
    values = {name: row[name] for name in row.keys()}  # noqa: SIM118 - a Row iterates over values
    values["payload"] = _parsed(values["payload"]) if values["payload"] is not None else None
    for name in ("result", "failure"):
        values[name] = json.loads(values[name]) if values[name] is not None else None
    return Job(**values, model=model_of(values["payload"]))


def model_of(payload: Any) -> str | None:
    """The model that a job's payload names; None where it names none."""
    model = payload.get("model") if isinstance(payload, dict) else None
    return model if isinstance(model, str) and model else None


def _attempt(row: sqlite3.Row) -> AttemptRow:
    def who(name: str) -> ProcessId | None:
        if row[f"{name}_pid"] is None:
            return None
        return ProcessId(row[f"{name}_pid"], row[f"{name}_ticks"], row["boot_id"])

    return AttemptRow(
        attempt=row["attempt"],
        job=row["job"],
        number=row["number"],
        bundle=row["bundle"],
        capabilities=frozenset(json.loads(row["capabilities"])),
        cores=row["cores"],
        mem_gb=row["mem_gb"],
        stop_grace_s=row["stop_grace_s"],
        launcher=who("launcher"),
        runner=who("runner"),
        boot_id=row["boot_id"] or boot_id(),
        duty=row["duty"],
        stop=json.loads(row["stop"]) if row["stop"] else None,
        ran_s=row["ran_s"],
        cgroup=row["cgroup"],
        tree={int(pid): ticks for pid, ticks in json.loads(row["tree"] or "{}").items()},
    )
