"""The node's journal: one SQLite file that holds the timeline and everything else the agent must not forget.

The timeline is append-only with sequence numbers. ``write`` never raises for a full or broken disk: protection goes on,
the loss is counted, and said as soon as writing works again (code ``JOURNAL_LOST``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nodes.clock import monotonic_s, utc_iso, utc_now
from nodes.identity import boot_id
from nodes.journal_numbers import Why, go_on_after
from policies.codes import CODES
from policies.json_text import parse_json
from policies.plain_text import plain, plain_json

__all__ = ["Journal"]

log = logging.getLogger(__name__)

SET_ASIDE_FACT = "journal_set_aside"
BEGUN_FACT = "journal_begun"
# What is made in a node's home after its journal, and by its agent alone.
_LATER = ("key", "key.broken", "jobs", "block.reserve")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS timeline (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL, boot_id TEXT NOT NULL, mono_s REAL NOT NULL,
    code TEXT NOT NULL, severity TEXT NOT NULL, message TEXT NOT NULL, data TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS sections (
    version INTEGER PRIMARY KEY, text TEXT NOT NULL, digest TEXT NOT NULL, set_at TEXT NOT NULL, set_by TEXT NOT NULL,
    scope TEXT NOT NULL DEFAULT 'node'
);
CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY, started_at TEXT NOT NULL, state TEXT NOT NULL, record TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS blocks (
    run TEXT NOT NULL, number INTEGER NOT NULL, row TEXT NOT NULL, PRIMARY KEY (run, number)
);
CREATE TABLE IF NOT EXISTS certificates (
    certificate TEXT PRIMARY KEY, run TEXT NOT NULL, row TEXT NOT NULL, revoked TEXT
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

_Entry = tuple[str, str, float, str, str, str, str]
_INSERT = "INSERT INTO timeline (at, boot_id, mono_s, code, severity, message, data) VALUES (?,?,?,?,?,?,?)"
# Made once: ``json.dumps`` with these options makes one each time.
_encode = json.JSONEncoder(default=str, allow_nan=False).encode


class Journal:
    """Opened by the agent alone (it holds ``agent.lock``). Not for use from several threads.

    A file that is no database any more (all NULs after a power cut, emptied, overwritten) is set aside under another name and
    a new one begun; ``set_aside`` then names it. One that is gone from a node's home that was in use is as lost. After either
    ``was_lost`` holds for good, and ``section_lost`` says that what was protected is not known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        self._reported_lost = 0
        self._waiting: list[_Entry] | None = None
        self.certificates_changed = 0  # counts, so that what was made of the certificates can be kept until they change
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.set_aside: Path | None = None
        in_use = _was_in_use(path)
        if in_use and _size_bytes(path) == 0:
            # before SQLite sees it, which deletes the -wal file of an empty database
            self.set_aside = _put_aside(path)
        try:
            self.db = _opened(path)
        except sqlite3.OperationalError:
            raise  # locked, no space, no permission: nothing is wrong with what is in it
        except sqlite3.DatabaseError:
            self.set_aside = _put_aside(path)
            self.db = _opened(path)
        self._jump: Why | None = self._after_boot()
        blank = self._is_blank()
        if self.set_aside is not None or (in_use and blank):
            kept_as = None if self.set_aside is None else str(self.set_aside)
            self.set_fact(SET_ASIDE_FACT, {"kept_as": kept_as, "at": utc_iso()}, durably=True)
            self._jump = "lost"
            self.write("JOURNAL_SET_ASIDE", {"kept_as": kept_as})
        elif blank:
            # On the disk before anything else is made in the node's home: no start after this one finds that in use and the
            # journal blank, unless the journal was lost.
            self.set_fact(BEGUN_FACT, utc_iso(), durably=True)

    def _after_boot(self) -> Why | None:
        """Entries of an earlier boot may have been followed by some that were lost with the power."""
        newest = self.db.execute("SELECT boot_id FROM timeline ORDER BY seq DESC LIMIT 1").fetchone()
        return None if newest is None or newest["boot_id"] == boot_id() else "boot"

    def number_anew(self, why: Why) -> None:
        """The next entry's number is one that no entry ever had, whatever this file forgot."""
        self._jump = why

    def _take_jump(self, why: Why) -> None:
        """On the disk before any entry with a higher number is: else the next boot would go on at the same one. Raises
        ``sqlite3.Error``.
        """
        mine = not self.db.in_transaction
        with self._durably() if mine else contextlib.nullcontext(), self._transaction():
            last = self.last_seq()
            after = go_on_after(last, why, utc_now())
            self.db.execute("DELETE FROM sqlite_sequence WHERE name = 'timeline'")
            self.db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('timeline', ?)", (after,))
            code = CODES["JOURNAL_NUMBERS"]
            said = json.dumps({"after": last, "next": after + 1, "why": why})
            self._append((utc_iso(), boot_id(), monotonic_s(), code.name, code.severity, code.meaning, said))
        if mine:  # else it may be undone with the caller's transaction, and is taken once more
            self._jump = None

    def _is_blank(self) -> bool:
        tables = ("timeline", "sections", "runs", "certificates", "facts")
        return not any(self.db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in tables)

    def write(self, code: str, data: Mapping[str, Any] | None = None, message: str = "") -> int | None:
        """Append one entry; its sequence number, or None: it could not be written (counted in ``lost``), or waits for the
        end of ``together``.
        """
        known = CODES[code]
        text = plain_json(_encode(data or {}))
        said = plain(message) if message else known.meaning
        entry = (utc_iso(), boot_id(), monotonic_s(), code, known.severity, said, text)
        if self._waiting is not None:
            self._waiting.append(entry)
            return None
        return self._keep([entry])

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Entries written inside are stamped at once and kept in one transaction at the end, also when that is an error."""
        if self._waiting is not None:
            yield
            return
        self._waiting = []
        try:
            yield
        finally:
            waiting, self._waiting = self._waiting, None
            if waiting:
                self._keep(waiting)

    def _keep(self, entries: list[_Entry]) -> int | None:
        """Append in one transaction; the last one's sequence number, or None when all of them were lost."""
        try:
            if self._jump is not None:
                self._take_jump(self._jump)
            if len(entries) == 1 and self.lost == self._reported_lost:
                return self._append(entries[0])  # a transaction of its own
            with self._transaction():
                if self.lost > self._reported_lost:
                    lost = CODES["JOURNAL_LOST"]
                    said = json.dumps({"lost": self.lost})
                    self._append((*entries[0][:3], lost.name, lost.severity, lost.meaning, said))
                self.db.executemany(_INSERT, entries)
                seq = self.db.execute("SELECT last_insert_rowid()").fetchone()[0]
            self._reported_lost = self.lost
            return int(seq)
        except sqlite3.Error as error:
            before, self.lost = self.lost, self.lost + len(entries)
            if before == 0 or len(str(before)) < len(str(self.lost)) or before // 1000 < self.lost // 1000:
                log.error("journal: %d entries lost, the last one %s %s: %s", self.lost, *entries[-1][3::3], error)
            return None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if self.db.in_transaction:  # the caller's own: kept or lost with it
            yield
            return
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    def _append(self, entry: _Entry) -> int:
        return int(self.db.execute(_INSERT, entry).lastrowid or 0)

    def entries(
        self, after_seq: int = 0, limit: int = 500, code: str | None = None, before_seq: int | None = None
    ) -> list[dict[str, Any]]:
        """In order: the first after a number, or the last before one. Numbers may lie far apart (``nodes.journal_numbers``)."""
        where, args, order = "seq > ?", [after_seq], "ASC"
        if before_seq is not None:
            where, args, order = where + " AND seq < ?", [*args, before_seq], "DESC"
        if code:
            where, args = where + " AND code GLOB ?", [*args, code]  # type: ignore[list-item]
        select = f"SELECT * FROM timeline WHERE {where} ORDER BY seq {order} LIMIT ?"
        rows = self.db.execute(select, (*args, limit)).fetchall()
        return [{**dict(row), "data": json.loads(row["data"])} for row in (rows if order == "ASC" else rows[::-1])]

    def newest_data(self, code: str, limit: int) -> list[dict[str, Any]]:
        """Data of the newest entries with a code, newest first."""
        rows = self.db.execute("SELECT data FROM timeline WHERE code = ? ORDER BY seq DESC LIMIT ?", (code, limit))
        return [json.loads(row["data"]) for row in rows]

    def last_seq(self) -> int:
        return int(self.db.execute("SELECT coalesce(max(seq), 0) FROM timeline").fetchone()[0])

    @contextlib.contextmanager
    def _durably(self) -> Iterator[None]:
        """What is written inside is on the disk when it ends, power cut or not (entries otherwise survive kill -9 alone)."""
        self.db.execute("PRAGMA synchronous=FULL")
        try:
            yield
        finally:
            self.db.execute("PRAGMA synchronous=NORMAL")

    @property
    def was_lost(self) -> bool:
        """An earlier file was set aside or is gone, whatever was set since. One that a version noted (as a text) which asked
        for the node's section alone is over: what was set and measured since stands.
        """
        return isinstance(self.fact(SET_ASIDE_FACT), dict)

    def section_lost(self, scope: str = "node") -> bool:
        """An earlier file was lost, and none of that scope was set since: what its owner protects is not known."""
        lost = self.fact(SET_ASIDE_FACT) is not None if scope == "node" else self.was_lost
        return lost and self.newest_section(scope) is None

    # -- sections ---------------------------------------------------------------------------------------------------

    def newest_section(self, scope: str = "node") -> dict[str, Any] | None:
        row = self.db.execute(
            "SELECT * FROM sections WHERE scope = ? ORDER BY version DESC LIMIT 1", (scope,)
        ).fetchone()
        return dict(row) if row else None

    def section(self, version: int) -> dict[str, Any] | None:
        row = self.db.execute("SELECT * FROM sections WHERE version = ?", (version,)).fetchone()
        return dict(row) if row else None

    def section_versions(self, limit: int = 200) -> list[dict[str, Any]]:
        """Newest first, without their texts."""
        rows = self.db.execute(
            "SELECT version, scope, digest, set_at, set_by FROM sections ORDER BY version DESC LIMIT ?", (limit,)
        ).fetchall()
        return [dict(row) for row in rows]

    def add_section(self, text: str, digest: str, by: str, scope: str = "node") -> int:
        with self._durably():
            done = self.db.execute(
                "INSERT INTO sections (text, digest, set_at, set_by, scope) VALUES (?,?,?,?,?)",
                (text, digest, utc_iso(), by, scope),
            )
        return int(done.lastrowid or 0)

    # -- harness runs -----------------------------------------------------------------------------------------------

    def put_run(self, run: str, record: Mapping[str, Any]) -> None:
        """How a run ended survives a power cut: harm that was seen must not be unseen after it."""
        with self._durably() if record["state"] == "ended" else contextlib.nullcontext():
            self.db.execute(
                "INSERT INTO runs (run, started_at, state, record) VALUES (?,?,?,?) "
                "ON CONFLICT (run) DO UPDATE SET state = excluded.state, record = excluded.record",
                (run, record["started_at"], record["state"], json.dumps(record, default=str)),
            )

    def run(self, run: str) -> dict[str, Any] | None:
        row = self.db.execute("SELECT * FROM runs WHERE run = ?", (run,)).fetchone()
        return _kept_run(row) if row else None

    def runs(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Newest first; all of them unless ``limit`` is given: an old failure still binds."""
        rows = self.db.execute("SELECT * FROM runs ORDER BY started_at DESC LIMIT ?", (limit or -1,)).fetchall()
        return [_kept_run(row) for row in rows]

    def put_block(self, run: str, number: int, row: Mapping[str, Any]) -> None:
        """A block is written once, durably; a second row for the same number is an error, never an overwrite."""
        with self._durably():
            self.db.execute("INSERT INTO blocks (run, number, row) VALUES (?,?,?)", (run, number, json.dumps(row)))

    def blocks(self, run: str) -> list[dict[str, Any]]:
        """In order. Of a row that was damaged to no JSON object only its number is left."""
        rows = self.db.execute("SELECT number, row FROM blocks WHERE run = ? ORDER BY number", (run,)).fetchall()
        return [{"run": run, "number": row["number"]} | _object(row["row"], {}) for row in rows]

    def block_numbers(self, run: str) -> list[int]:
        rows = self.db.execute("SELECT number FROM blocks WHERE run = ? ORDER BY number", (run,))
        return [int(row["number"]) for row in rows]

    # -- certificates -----------------------------------------------------------------------------------------------

    def put_certificate(self, name: str, run: str, row: Mapping[str, Any]) -> None:
        self.db.execute(
            "INSERT INTO certificates (certificate, run, row, revoked) VALUES (?,?,?,NULL)",
            (name, run, json.dumps(row)),
        )
        self.certificates_changed += 1

    def certificates(self) -> list[tuple[dict[str, Any], str | None]]:
        """Oldest first, each with why it was revoked. Of a row that was edited to no JSON object only the name is left."""
        rows = self.db.execute("SELECT certificate, row, revoked FROM certificates ORDER BY rowid").fetchall()
        return [(_object(row["row"], {"certificate": row["certificate"]}), row["revoked"]) for row in rows]

    def revoke_certificate(self, name: str, why: str) -> None:
        with self._durably():
            self.db.execute(
                "UPDATE certificates SET revoked = ? WHERE certificate = ? AND revoked IS NULL", (why, name)
            )
        self.certificates_changed += 1

    # -- single facts -----------------------------------------------------------------------------------------------

    def fact(self, name: str) -> Any:
        row = self.db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return parse_json(row["value"]) if row else None

    def set_fact(self, name: str, value: Any, *, durably: bool = False) -> None:
        with self._durably() if durably else contextlib.nullcontext():
            self.db.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?,?)", (name, json.dumps(value)))

    def close(self) -> None:
        self.db.close()


def _opened(path: Path) -> sqlite3.Connection:
    """Raises ``sqlite3.DatabaseError`` (and none of its kinds) for what is no database, or a damaged one."""
    path.touch(mode=0o600)
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode=WAL")
        # NORMAL keeps every committed entry through kill -9; what must also survive a power cut is written durably.
        db.execute("PRAGMA synchronous=NORMAL")
        db.executescript(_SCHEMA)
        if not any(row["name"] == "scope" for row in db.execute("PRAGMA table_info(sections)")):
            # a journal from before the fleet had a section of its own
            db.execute("ALTER TABLE sections ADD COLUMN scope TEXT NOT NULL DEFAULT 'node'")
        for table in ("timeline", "sections", "runs", "blocks", "certificates", "facts"):
            db.execute(f"SELECT * FROM {table} ORDER BY rowid DESC LIMIT 1").fetchall()
    except BaseException as error:
        db.close()
        # Python's own words for text that is none, of the kind of error that a full disk has
        if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode"):
            raise sqlite3.DatabaseError("its text is damaged") from error
        raise
    return db


def _kept_run(row: sqlite3.Row) -> dict[str, Any]:
    """Of a record that was damaged its name, when it began and whether it is open are left, whatever else it lacks."""
    found = _object(row["record"], {}) | {"run": row["run"]}
    if not isinstance(found.get("started_at"), str):
        found["started_at"] = row["started_at"]
    if found.get("state") not in ("open", "ended"):
        found["state"] = row["state"]
    return found


def _object(text: Any, otherwise: dict[str, Any]) -> dict[str, Any]:
    try:
        raw = parse_json(text)
    except (ValueError, TypeError):
        return otherwise
    return raw if isinstance(raw, dict) else otherwise


def _was_in_use(path: Path) -> bool:
    """Whether there was a journal before: what only comes after one is there, or what can only have been of one.

    A -wal file beside its database tells nothing, since a first start that was killed leaves both, without a row. One whose
    database is gone or empty was left by a loss: SQLite writes the database's first page before it makes a -wal.
    """
    alone = _size_bytes(path) == 0 and _size_bytes(path.with_name(path.name + "-wal")) > 0
    made_later = any((path.parent / name).exists() for name in _LATER)
    return alone or made_later or any(path.parent.glob(f"{path.name}.damaged-*"))


def _size_bytes(path: Path) -> int:
    """0 where it is gone, too."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _put_aside(path: Path) -> Path | None:
    """Rename the file and what belongs to it; nothing of it is lost. None: nothing of it was there."""
    kept = path.with_name(f"{path.name}.damaged-{utc_iso().replace(':', '')}")
    parts = [part for part in (path.with_name(path.name + ending) for ending in ("", "-wal", "-shm")) if part.exists()]
    for part in parts:
        os.replace(part, kept.with_name(kept.name + part.name.removeprefix(path.name)))
    if not parts:
        log.error("%s is gone from a home that was in use; a new one is begun", path)
        return None
    sync_dir(path.parent)
    log.error("%s is no database any more; it is kept as %s, and a new one is begun", path, kept)
    return kept


def sync_dir(path: Path) -> None:
    """The directory's entries are on the disk when this returns."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
