"""Reading and writing the store. Every write may be repeated: a second time it changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from cotenant.store.models import Block, Certificate, Node, Run, TimelineEntry, Window
from cotenant.store.session import reading, writing
from policies.refusal import Refused

__all__ = [
    "last_seq",
    "list_certificates",
    "list_duties",
    "list_nodes",
    "list_runs",
    "load_run",
    "put_block",
    "put_certificate",
    "put_duty",
    "put_timeline",
    "sync_run",
    "timeline_entries",
    "upsert_run",
]

Row = Mapping[str, Any]


def _when(iso: Any) -> datetime | None:
    """An ISO date as the agent writes it. One without an offset is refused by the column's type."""
    return None if iso is None else datetime.fromisoformat(str(iso))


def _digest(row: Row) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _estimate(record: Row) -> Row:
    """What the run says about R: its verdict, or its last look while it runs."""
    verdict = record.get("verdict")
    if isinstance(verdict, Mapping):
        return verdict
    looks = record.get("looks") or []
    return looks[-1] if looks else {}


def upsert_run(engine: Engine, record: Row) -> None:
    """Keep a RunRecord (its blocks apart, see ``put_block``). An ended run is never opened again by an older record."""
    with writing(engine) as session:
        _put_run(session, record)


def _put_run(session: Session, record: Row) -> None:
    known = session.get(Run, str(record["run"]))
    if known is not None and known.state == "ended" and record.get("state") != "ended":
        return
    spec = record["spec"]
    estimate = _estimate(record)
    columns: dict[str, Any] = {
        "node": str(record.get("node") or spec["node"]),
        "rule": spec["rule"],
        "work": spec["work"],
        "duty": spec.get("duty"),
        "kind": spec.get("kind", "ab"),
        "state": record["state"],
        "ending": record.get("ending"),
        "started_at": _when(record.get("started_at")),
        "ended_at": _when(record.get("ended_at")),
        "r": estimate.get("R"),
        "lo": estimate.get("lo"),
        "hi": estimate.get("hi"),
        "margin": spec.get("margin"),
        "record": {key: value for key, value in record.items() if key != "blocks"},
    }
    if known is None:
        session.add(Run(run=str(record["run"]), **columns))
    else:
        for name, value in columns.items():
            setattr(known, name, value)
    session.flush()


def put_block(engine: Engine, row: Row) -> bool:
    """Keep one BlockRow (as plain JSON) and its windows.

    Returns:
        True when it was new, False when the same row was there already.

    Raises:
        Refused: this number of this run is kept with other content; the kept one stays.
    """
    with writing(engine) as session:
        return _put_block(session, row)


def _put_block(session: Session, row: Row) -> bool:
    run, number, digest = str(row["run"]), int(row["number"]), _digest(row)
    known = session.get(Block, (run, number))
    if known is not None:
        if known.digest != digest:
            raise Refused(
                "STORE_BLOCK_DIFFERS",
                f"block {number} of run {run}",
                "the store holds another content for this block: a block is measured once",
                f"compare with the node's journal: cotenant protection ab show {run} --json",
            )
        return False
    session.add(
        Block(
            run=run,
            number=number,
            order=row["order"],
            state=row["state"],
            reason=row.get("reason"),
            digest=digest,
            row=dict(row),
        )
    )
    for arm in ("on", "off"):
        if (window := row.get(arm)) is not None:
            session.add(
                Window(
                    run=run,
                    block=number,
                    arm=arm,
                    position=window["position"],
                    started_at=_when(window["started_at"]),
                    length_s=window["length_s"],
                    events=window.get("events"),
                    rate=window.get("rate"),
                    dose=window.get("dose"),
                )
            )
    session.flush()
    return True


def sync_run(engine: Engine, record: Row) -> int:
    """The run and every block of it that is missing here, in one transaction.

    Returns:
        How many blocks were new.

    Raises:
        Refused: a block is kept with other content; nothing of this call is kept then.
    """
    with writing(engine) as session:
        _put_run(session, record)
        return sum(_put_block(session, row) for row in record.get("blocks") or [])


def put_certificate(engine: Engine, certificate: Row) -> None:
    """Keep a certificate as the agent issued it; the run is its key."""
    with writing(engine) as session:
        session.merge(
            Certificate(
                run=str(certificate["run"]),
                node=str(certificate["node"]),
                rule=str(certificate["rule"]),
                duty=certificate.get("certified_duty", certificate.get("duty")),
                issued_at=_when(certificate.get("issued_at")),
                expires_at=_when(certificate.get("expires_at")),
                body=dict(certificate),
            )
        )


def list_nodes(engine: Engine) -> list[dict[str, Any]]:
    """Each node with how far its journal was mirrored, and when."""
    with reading(engine) as session:
        return [
            {
                "node": node.name,
                "last_seq": node.last_seq,
                "mirrored_at": node.mirrored_at.isoformat() if node.mirrored_at else None,
            }
            for node in session.scalars(select(Node).order_by(Node.name))
        ]


def put_duty(engine: Engine, node: str, view: Row, at: datetime) -> None:
    """Keep a node's duty as of ``at`` (aware). An older one than what is kept changes nothing."""
    with writing(engine) as session:
        known = session.get(Node, node)
        if known is None:
            known = Node(name=node, last_seq=0)
            session.add(known)
        if known.duty_at is None or known.duty_at <= at:
            known.duty, known.duty_at = dict(view), at


def list_duties(engine: Engine, node: str | None = None) -> list[dict[str, Any]]:
    """``{node, duty, as_of}`` of each node by name; both are None where its duty was never copied."""
    wanted = select(Node).order_by(Node.name)
    if node is not None:
        wanted = wanted.where(Node.name == node)
    with reading(engine) as session:
        return [
            {"node": each.name, "duty": each.duty, "as_of": each.duty_at.isoformat() if each.duty_at else None}
            for each in session.scalars(wanted)
        ]


_CERTIFICATE_LOST = ("CERT_STALE", "CERT_EXPIRED", "CERT_REVOKED", "CERT_FORGED")


def list_certificates(engine: Engine, node: str | None = None) -> list[dict[str, Any]]:
    """Certificates as they were issued, newest first. Whether one still holds only its node's agent can say.

    ``told`` is added: ``{code, at}`` of what the node's journal last said of it (CERT_STALE, …) as far as it was copied, or None.
    """
    wanted = select(Certificate).order_by(Certificate.issued_at.desc(), Certificate.run)
    if node is not None:
        wanted = wanted.where(Certificate.node == node)
    with reading(engine) as session:
        found = [dict(each.body) for each in session.scalars(wanted)]
        said = select(TimelineEntry).where(TimelineEntry.code.in_(_CERTIFICATE_LOST)).order_by(TimelineEntry.at)
        if node is not None:
            said = said.where(TimelineEntry.node == node)
        told = {
            (entry.node, entry.data.get("certificate")): {"code": entry.code, "at": entry.at.isoformat()}
            for entry in session.scalars(said)
        }
    return [each | {"told": told.get((each["node"], each.get("certificate")))} for each in found]


def list_runs(engine: Engine, node: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
    """Newest first; the queried columns only."""
    wanted = select(Run).order_by(Run.started_at.desc(), Run.run).limit(limit)
    if node is not None:
        wanted = wanted.where(Run.node == node)
    with reading(engine) as session:
        return [
            {
                "run": run.run,
                "node": run.node,
                "rule": run.rule,
                "work": run.work,
                "duty": run.duty,
                "kind": run.kind,
                "state": run.state,
                "ending": run.ending,
                "started_at": run.started_at.isoformat() if run.started_at else None,
                "ended_at": run.ended_at.isoformat() if run.ended_at else None,
                "R": run.r,
                "lo": run.lo,
                "hi": run.hi,
                "margin": run.margin,
            }
            for run in session.scalars(wanted)
        ]


def load_run(engine: Engine, run: str) -> dict[str, Any] | None:
    """The RunRecord with its blocks in order of their number, or None."""
    with reading(engine) as session:
        kept = session.get(Run, run)
        if kept is None:
            return None
        blocks = session.scalars(select(Block).where(Block.run == run).order_by(Block.number))
        return {**kept.record, "blocks": [block.row for block in blocks]}


def put_timeline(engine: Engine, node: str, entries: Iterable[Row]) -> int:
    """Keep journal entries exactly once, whatever is handed in again. One transaction.

    Returns:
        How many were new.
    """
    rows = sorted(entries, key=lambda entry: int(entry["seq"]))
    if not rows:
        return 0
    seqs = [int(entry["seq"]) for entry in rows]
    with writing(engine) as session:
        span = select(TimelineEntry.seq).where(
            TimelineEntry.node == node, TimelineEntry.seq >= seqs[0], TimelineEntry.seq <= seqs[-1]
        )
        known = set(session.scalars(span))
        new = 0
        for entry in rows:
            seq = int(entry["seq"])
            if seq in known:
                continue
            known.add(seq)
            new += 1
            session.add(
                TimelineEntry(
                    node=node,
                    seq=seq,
                    at=_when(entry["at"]),
                    mono_s=entry.get("mono_s"),
                    boot_id=entry.get("boot_id"),
                    code=entry["code"],
                    severity=entry.get("severity") or "info",
                    message=entry.get("message") or "",
                    data=dict(entry.get("data") or {}),
                )
            )
        mirrored = session.get(Node, node)
        if mirrored is None:
            mirrored = Node(name=node, last_seq=0)
            session.add(mirrored)
        mirrored.last_seq = max(mirrored.last_seq, seqs[-1])
        mirrored.mirrored_at = datetime.now(UTC)
        return new


def last_seq(engine: Engine, node: str) -> int:
    """The highest sequence number kept for this node; 0 when there is none."""
    with reading(engine) as session:
        highest = session.scalar(select(func.max(TimelineEntry.seq)).where(TimelineEntry.node == node))
        return int(highest or 0)


def timeline_entries(engine: Engine, node: str, after_seq: int = 0, limit: int = 500) -> list[dict[str, Any]]:
    """Kept entries after a sequence number, oldest first, as the agent wrote them."""
    wanted = (
        select(TimelineEntry)
        .where(TimelineEntry.node == node, TimelineEntry.seq > after_seq)
        .order_by(TimelineEntry.seq)
        .limit(limit)
    )
    with reading(engine) as session:
        return [
            {
                "seq": entry.seq,
                "at": entry.at.isoformat(),
                "mono_s": entry.mono_s,
                "boot_id": entry.boot_id,
                "code": entry.code,
                "severity": entry.severity,
                "message": entry.message,
                "data": entry.data,
            }
            for entry in session.scalars(wanted)
        ]
