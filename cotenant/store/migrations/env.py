"""Alembic's environment: the connection comes from ``store.open``, which holds the lock and the transaction."""

from __future__ import annotations

from alembic import context

from cotenant.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite cannot change most things of a table in place.
    render_as_batch=True,
)
context.run_migrations()
