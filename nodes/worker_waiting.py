"""Making a flow run wait, without undoing its cancellation.

A worker asks its agent before it puts a run off, and that takes a moment. Prefect changes a state by force or by its own rules, which
let a cancelled run be scheduled again (its UI's retry), but not "only if it is still as I saw it". So who cancels in that moment would
have cancelled nothing: the run would be set waiting over it, and start later. What was set is looked at once more afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.objects import State
from prefect.states import Cancelled

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

__all__ = ["put_off"]


async def put_off(client: PrefectClient, flow_run_id: UUID, state: State[Any], *, cancelled_words: str) -> bool:
    """Set ``state`` (scheduled), unless the run is being cancelled or was until this is done; then it is cancelled.

    For a run without a process. Whether it waits.

    Args:
        cancelled_words: message of the cancelled state, where it is set here.
    """
    known = {each.id for each in await client.read_flow_run_states(flow_run_id)}
    now = (await client.read_flow_run(flow_run_id)).state
    if now is None or not _ends(now):
        await client.set_flow_run_state(flow_run_id, state, force=True)
        meanwhile = [each for each in await client.read_flow_run_states(flow_run_id) if each.id not in known]
        if not any(_ends(each) for each in meanwhile):
            return True
    elif now.is_cancelled():
        return False
    await client.set_flow_run_state(flow_run_id, Cancelled(message=cancelled_words), force=True)
    return False


def _ends(state: State[Any]) -> bool:
    return state.is_cancelling() or state.is_cancelled()
