"""Tables of the store: what people look at. The agents' journals stay the authority; the store can be filled again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Double, ForeignKey, Index, MetaData, String
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

__all__ = [
    "Base",
    "Batch",
    "BatchJob",
    "Block",
    "Certificate",
    "Node",
    "Prompt",
    "Run",
    "TimelineEntry",
    "UtcDateTime",
    "Window",
]


class UtcDateTime(TypeDecorator[datetime]):
    """An aware instant, kept in UTC. A naive datetime is refused: nobody can tell which instant it means."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None or value.utcoffset() is None:
            raise ValueError(f"{value.isoformat()} has no time zone: dates in the store are aware")
        utc = value.astimezone(UTC)
        # SQLite has no type for an offset and would drop it without a word.
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    # Named constraints: without a name a later migration could not change them on every database.
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads a plain class attribute
        datetime: UtcDateTime(),
        float: Double(),
        dict[str, Any]: JSON(),
        list[int]: JSON(),
    }


class Node(Base):
    """One row a node, with how far its journal was mirrored, and its duty (``policies.duty_text``) as of ``duty_at``."""

    __tablename__ = "nodes"

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    last_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    mirrored_at: Mapped[datetime | None]
    duty: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    duty_at: Mapped[datetime | None]


class Run(Base):
    """A harness run. ``record`` is the agent's RunRecord without its blocks (they have a table)."""

    __tablename__ = "runs"
    __table_args__ = (Index("ix_runs_node_started_at", "node", "started_at"),)

    run: Mapped[str] = mapped_column(String(100), primary_key=True)
    node: Mapped[str] = mapped_column(String(200))
    rule: Mapped[str] = mapped_column(String(200))
    work: Mapped[str] = mapped_column(String(300))
    duty: Mapped[float | None]
    kind: Mapped[str] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(20))
    ending: Mapped[str | None] = mapped_column(String(40))
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    r: Mapped[float | None]
    lo: Mapped[float | None]
    hi: Mapped[float | None]
    margin: Mapped[float | None]
    record: Mapped[dict[str, Any]]


class Block(Base):
    """One block as the agent journaled it. ``digest`` tells a second, different answer for the same number."""

    __tablename__ = "blocks"

    run: Mapped[str] = mapped_column(String(100), ForeignKey("runs.run"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    order: Mapped[str] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str | None] = mapped_column(String(40))
    digest: Mapped[str] = mapped_column(String(64))
    row: Mapped[dict[str, Any]]


class Window(Base):
    """One counted stretch of a block; rates in events per second."""

    __tablename__ = "windows"

    run: Mapped[str] = mapped_column(String(100), ForeignKey("runs.run"), primary_key=True)
    block: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    arm: Mapped[str] = mapped_column(String(10), primary_key=True)
    position: Mapped[int]
    started_at: Mapped[datetime]
    length_s: Mapped[float]
    events: Mapped[float | None]
    rate: Mapped[float | None]
    dose: Mapped[float | None]


class Certificate(Base):
    """A certificate as the agent issued it. Whether it is still valid only the agent can say."""

    __tablename__ = "certificates"

    run: Mapped[str] = mapped_column(String(100), primary_key=True)
    node: Mapped[str] = mapped_column(String(200), index=True)
    rule: Mapped[str] = mapped_column(String(200))
    duty: Mapped[float | None]
    issued_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    body: Mapped[dict[str, Any]]


class TimelineEntry(Base):
    """One entry of a node's journal; node and sequence number are its key everywhere."""

    __tablename__ = "timeline"
    __table_args__ = (Index("ix_timeline_node_at", "node", "at"), Index("ix_timeline_code", "code"))

    node: Mapped[str] = mapped_column(String(200), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    mono_s: Mapped[float | None]
    boot_id: Mapped[str | None] = mapped_column(String(40))
    code: Mapped[str] = mapped_column(String(60))
    severity: Mapped[str] = mapped_column(String(20))
    message: Mapped[str]
    data: Mapped[dict[str, Any]]


class Batch(Base):
    """A batch of prompts. The store is its only place: the node's jobs are made from its open prompts."""

    __tablename__ = "batches"
    __table_args__ = (Index("ix_batches_node_digest", "node", "digest"),)

    batch: Mapped[str] = mapped_column(String(100), primary_key=True)
    node: Mapped[str] = mapped_column(String(200))
    source: Mapped[str]
    digest: Mapped[str] = mapped_column(String(64))
    format: Mapped[str] = mapped_column(String(20))
    spec: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str | None]
    flow_run_id: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class Prompt(Base):
    """One prompt; ``number`` counts from 0 in the batch's order. ``tries`` counts jobs that failed with it unanswered."""

    __tablename__ = "prompts"
    __table_args__ = (Index("ix_prompts_batch_state", "batch", "state", "tries", "number"),)

    batch: Mapped[str] = mapped_column(String(100), ForeignKey("batches.batch"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    custom_id: Mapped[str | None] = mapped_column(String(500))
    body: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20))
    tries: Mapped[int]
    answer: Mapped[dict[str, Any] | None]
    finished_at: Mapped[datetime | None]


class BatchJob(Base):
    """A job of a batch: its prompts by number, and how far its events were taken over (``place``, see ``job_events``)."""

    __tablename__ = "batch_jobs"

    batch: Mapped[str] = mapped_column(String(100), ForeignKey("batches.batch"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job: Mapped[int | None] = mapped_column(BigInteger)
    numbers: Mapped[list[int]]
    state: Mapped[str] = mapped_column(String(20))
    outcome: Mapped[str | None] = mapped_column(String(40))
    place: Mapped[int] = mapped_column(BigInteger)
    figures: Mapped[dict[str, Any]]
    repeated: Mapped[int]
