"""Alembic migrations of the store, run by ``store.open``."""
