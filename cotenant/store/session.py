"""Opening the store and its transactions: SQLite (one machine) or PostgreSQL (a fleet)."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DisconnectionError, OperationalError
from sqlalchemy.orm import Session

__all__ = ["default_url", "open_store", "reading", "writing"]

BUSY_TIMEOUT_S = 30
UPGRADE_WITHIN_S = 120.0
MIGRATIONS = Path(__file__).parent / "migrations"
# Any fixed number: processes that open the same PostgreSQL database meet at it.
_ADVISORY_LOCK = 0x636F74656E


def default_url(home: Path) -> str:
    """``COTENANT_STORE_URL``, or the embedded store in this home."""
    return os.environ.get("COTENANT_STORE_URL") or f"sqlite:///{home / 'store.sqlite'}"


def open_store(url: str) -> Engine:
    """An engine on the store, its tables brought up to date. Any number of processes may open it at once.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database is not reachable or not writable.
    """
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite and parsed.database not in (None, "", ":memory:"):
        Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S} if sqlite else {}, pool_pre_ping=not sqlite)
    if sqlite:
        _prepare_sqlite(engine)
    try:
        _upgrade(engine)
    except BaseException:
        engine.dispose()
        raise
    if sqlite and parsed.database not in (None, "", ":memory:"):
        _stay_with_the_file(engine, str(parsed.database))
    return engine


def _stay_with_the_file(engine: Engine, path: str) -> None:
    """A store that was open stays the file of that name: one that is moved away is gone, not begun anew; one that was put in
    its place (a backup) is what is written from then on, not the one that has no name any more.
    """

    def inode() -> tuple[int, int] | None:
        try:
            info = os.stat(path)
        except FileNotFoundError:
            return None
        return info.st_dev, info.st_ino

    known = inode()

    @event.listens_for(engine, "do_connect")
    def connecting(_dialect: Any, record: Any, _args: Any, _options: Any) -> None:
        here = inode()
        if here is None:
            raise sqlite3.OperationalError(f"the store {path} is gone: put it back, or start again to begin a new one")
        record.info["inode"] = here

    @event.listens_for(engine, "checkout")
    def taken(_dbapi: Any, record: Any, _proxy: Any) -> None:
        if record.info.setdefault("inode", known) != inode():
            raise DisconnectionError(f"{path} is another file now")


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(dbapi: Any, _record: Any) -> None:
        # Transactions are begun below, with the lock they need; the driver's own BEGIN would be a deferred one.
        dbapi.isolation_level = None
        dbapi.execute("PRAGMA journal_mode=WAL")
        dbapi.execute("PRAGMA synchronous=NORMAL")
        dbapi.execute("PRAGMA foreign_keys=ON")
        dbapi.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        # A deferred transaction that turns from reading to writing is refused at once when another one writes,
        # whatever the busy timeout; an immediate one waits its turn.
        write = connection.get_execution_options().get("write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """One write transaction: committed at the end, rolled back by an exception."""
    with Session(engine.execution_options(write=True), expire_on_commit=False) as session, session.begin():
        yield session


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    with Session(engine, expire_on_commit=False) as session:
        yield session


def _upgrade(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with _migration_lock(engine), engine.execution_options(write=True).connect() as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            # Also for the tables' own locks: another process may have stopped in the middle.
            connection.execute(text(f"SET LOCAL lock_timeout = {round(1000 * UPGRADE_WITHIN_S)}"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


@contextmanager
def _migration_lock(engine: Engine) -> Iterator[None]:
    """SQLite: a lock file beside the database (its own lock is not held across every DDL statement)."""
    path = engine.url.database
    if engine.dialect.name != "sqlite" or path in (None, "", ":memory:"):
        yield
        return
    with open(f"{path}.lock", "a") as lock:
        until = time.monotonic() + UPGRADE_WITHIN_S
        while not _locked(lock):
            if time.monotonic() >= until:
                why = f"another process has been bringing it up to date for {UPGRADE_WITHIN_S:g} s: see who holds {path}.lock"
                raise OperationalError("upgrade", {}, sqlite3.OperationalError(why))
            time.sleep(0.05)
        yield


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
