"""Was a flow run cancelled, or is its process only being ended?"""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import get_client

__all__ = ["is_cancelled"]


def is_cancelled(flow_run_id: str | None) -> bool:
    """Whether somebody cancelled this flow run; False where the server cannot tell, as the run may then go on later."""
    if flow_run_id is None:
        return False
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 5.0}) as client:
            state = client.read_flow_run(UUID(flow_run_id)).state
    except Exception:
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())
