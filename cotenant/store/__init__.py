"""The store: a mirror for people of what the nodes' agents journaled, and the batches of prompts.

``store.open(url)`` gives an engine; the functions take it. Every write may be repeated without harm.
"""

from __future__ import annotations

from cotenant.store.batch_views import (
    batch_jobs,
    batch_of_flow_run,
    batch_status,
    list_batches,
    open_batches,
    prompt_rows,
    same_batches,
)
from cotenant.store.batches import LEFT_OVER, end_batch, make_batch, reopen_failed, set_flow_run
from cotenant.store.prompt_jobs import end_job, is_stalled, is_unanswered, next_job, place_of, set_job, take_over
from cotenant.store.rows import (
    last_seq,
    list_certificates,
    list_duties,
    list_nodes,
    list_runs,
    load_run,
    put_block,
    put_certificate,
    put_duty,
    put_timeline,
    sync_run,
    timeline_entries,
    upsert_run,
)
from cotenant.store.session import default_url
from cotenant.store.session import open_store as open

__all__ = [
    "LEFT_OVER",
    "batch_jobs",
    "batch_of_flow_run",
    "batch_status",
    "default_url",
    "end_batch",
    "end_job",
    "is_stalled",
    "is_unanswered",
    "last_seq",
    "list_batches",
    "list_certificates",
    "list_duties",
    "list_nodes",
    "list_runs",
    "load_run",
    "make_batch",
    "next_job",
    "open",
    "open_batches",
    "place_of",
    "prompt_rows",
    "put_block",
    "put_certificate",
    "put_duty",
    "put_timeline",
    "reopen_failed",
    "same_batches",
    "set_flow_run",
    "set_job",
    "sync_run",
    "take_over",
    "timeline_entries",
    "upsert_run",
]
