"""The store: a mirror for people of what the nodes' agents journaled.

``store.open(url)`` gives an engine; the functions take it. Every write may be repeated without harm.
"""

from __future__ import annotations

from cotenant.store.rows import (
    last_seq,
    list_runs,
    load_run,
    put_block,
    put_certificate,
    put_timeline,
    sync_run,
    timeline_entries,
    upsert_run,
)
from cotenant.store.session import default_url
from cotenant.store.session import open_store as open

__all__ = [
    "default_url",
    "last_seq",
    "list_runs",
    "load_run",
    "open",
    "put_block",
    "put_certificate",
    "put_timeline",
    "sync_run",
    "timeline_entries",
    "upsert_run",
]
