"""What a run and a sweep are called: by the flow run that begins them, so that each start of it means the same one."""

from __future__ import annotations

import hashlib

__all__ = ["run_name", "sweep_name"]


def run_name(flow_run_id: str) -> str:
    """The run that this flow run is."""
    return f"run-{_digest(flow_run_id)}"


def sweep_name(flow_run_id: str) -> str:
    """The sweep that this flow run begins, where it does not go on with an earlier one."""
    return f"sweep-{_digest(flow_run_id)}"


def _digest(flow_run_id: str) -> str:
    return hashlib.sha256(flow_run_id.encode()).hexdigest()[:10]
