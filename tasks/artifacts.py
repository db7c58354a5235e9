"""Artifacts of a flow run: their keys, and a progress bar that holds up no work where the server is away."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

__all__ = ["artifact_key", "show_progress", "unless_away"]


def artifact_key(*parts: str) -> str:
    """Prefect takes lower-case letters, digits and dashes only."""
    return re.sub(r"[^a-z0-9-]+", "-", "-".join(parts).lower()).strip("-")


@contextmanager
def unless_away(log: logging.Logger | logging.LoggerAdapter[Any]) -> Iterator[None]:
    """A server that is away must not keep the work waiting for its progress bar: the next step's line tells as much."""
    try:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
            yield
    except Exception as error:
        log.warning("the progress could not be shown: %s", error)


def show_progress(key: str, at: float, words: str, shown: UUID | None) -> UUID | None:
    """Make or move a progress bar, to ``at`` percent. Gives its id."""
    if shown is None:
        made = create_progress_artifact(progress=at, key=key, description=words)
        return made if isinstance(made, UUID) else None
    update_progress_artifact(artifact_id=shown, progress=at, description=words)
    return shown
