"""Batches of prompts in the store: kept with all their prompts, given to a flow run, opened again, ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Engine, insert, update

from cotenant.store.models import Batch, BatchJob, Prompt
from cotenant.store.session import writing
from policies.prompts import BatchSpec, Item

__all__ = ["LEFT_OVER", "end_batch", "make_batch", "reopen_failed", "set_flow_run"]

ROWS_AT_ONCE = 1000
LEFT_OVER = "left over"


def make_batch(
    engine: Engine,
    batch: str,
    spec: BatchSpec,
    items: Sequence[Item],
    *,
    source: str,
    digest: str,
    style: str,
    flow_run_id: str | None = None,
) -> bool:
    """Keep a batch with all its prompts, in one transaction. False, and nothing changed, where it is there already."""
    with writing(engine) as session:
        if session.get(Batch, batch) is not None:
            return False
        session.add(
            Batch(
                batch=batch,
                node=spec.node,
                source=source,
                digest=digest,
                format=style,
                spec=spec.model_dump(mode="json"),
                state="open",
                reason=None,
                flow_run_id=flow_run_id,
                created_at=datetime.now(UTC),
                ended_at=None,
            )
        )
        session.flush()
        rows = [
            {
                "batch": batch,
                "number": number,
                "custom_id": item.custom_id,
                "body": item.body,
                "state": "open",
                "tries": 0,
            }
            for number, item in enumerate(items)
        ]
        for at in range(0, len(rows), ROWS_AT_ONCE):
            session.execute(insert(Prompt), rows[at : at + ROWS_AT_ONCE])
        return True


def set_flow_run(engine: Engine, batch: str, flow_run_id: str) -> bool:
    """Note which flow run works on it; a batch that had ended with prompts left is open again.

    False, and nothing changed, where the batch was cancelled while this flow run was the one that worked on it: put back
    in that moment it does not undo the cancellation. Another flow run was asked for, and goes on.

    Whatever became of the job that it left behind was asked for, or is over: its row says ``LEFT_OVER`` as outcome till it is ended.
    """
    with writing(engine) as session:
        found = session.get_one(Batch, batch)
        if found.state == "cancelled" and found.flow_run_id == flow_run_id:
            return False
        found.flow_run_id = flow_run_id
        if found.state == "done":
            return True
        if found.state != "open":
            left = update(BatchJob).where(BatchJob.batch == batch, BatchJob.state == "open")
            session.execute(left.values(outcome=LEFT_OVER))
        found.state, found.reason, found.ended_at = "open", None, None
    return True


def reopen_failed(engine: Engine, batch: str) -> int:
    """The prompts of the batch that ended as failed are asked again; how many."""
    with writing(engine) as session:
        failed = update(Prompt).where(Prompt.batch == batch, Prompt.state == "failed")
        count = session.execute(failed.values(state="open", tries=0, answer=None, finished_at=None)).rowcount  # type: ignore[attr-defined]
        found = session.get_one(Batch, batch)
        if count and found.state == "done":
            found.state, found.ended_at = "failed", None
        return int(count)


def end_batch(engine: Engine, batch: str, state: str, reason: str | None = None, *, of: str | None = None) -> None:
    """``done``, ``cancelled`` or ``failed``; prompts that are open stay open.

    Args:
        of: only while this flow run is the one that works on it.
    """
    with writing(engine) as session:
        found = session.get_one(Batch, batch)
        if found.state != "done" and of in (None, found.flow_run_id):
            found.state, found.reason, found.ended_at = state, reason, datetime.now(UTC)
