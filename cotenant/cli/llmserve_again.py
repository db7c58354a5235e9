"""Going on with a batch of prompts, and ending one that no flow run works on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from cotenant.cli.failures import Unreachable
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from cotenant.cli.fleet_link import Fleet
    from cotenant.settings import Settings

__all__ = ["cancel_here", "retry"]


def cancel_here(settings: Settings, engine: Engine, found: dict[str, Any]) -> list[str]:
    """End a batch whose flow run has ended: nothing else would. Notes for the owner.

    The flow run is cancelled first: its node's worker may be putting it back in this moment.
    """
    from cotenant import store
    from cotenant.cli import fleet_link
    from cotenant.cli.agents import NOT_HERE, Agent
    from policies.refusal import Refused

    notes = []
    if found["flow_run_id"] is not None:
        fleet_link.connect(settings).cancel_ended(found["flow_run_id"])
    if found["job_key"] is not None:
        try:
            # by its key: the store may not know its number yet, and an agent that lost its journal gives that to another job
            Agent(settings, found["node"]).ask("job_cancel", key=found["job_key"])
        except (Unreachable, Refused) as no:
            if isinstance(no, Unreachable) or no.code in NOT_HERE:
                named, what = (f"job {found['job']}", f"cancel {found['job']}") if found["job"] else ("job", "list")
                notes.append(f"its {named} was not stopped: {no}; on that node: cotenant job {what}")
            elif no.code != "JOB_UNKNOWN":
                raise
    store.end_batch(engine, found["batch"], "cancelled", "it was cancelled")
    return notes


def _give_way(api: Fleet, before: str, batch: str) -> None:
    """Two flow runs of a batch would take each other's jobs; its worker may be putting this one back in this moment."""
    from policies.refusal import Refused

    with contextlib.suppress(Refused):  # whatever it says, its state tells
        api.cancel_ended(before)
    state = api.state_of(before)
    if state is None or not state["final"]:
        words = state["words"] if state is not None else "the server does not say how it stands"
        why = f"its flow run began again just now and is not cancelled yet ({words})"
        raise Refused("BATCH_OPEN", f"batch {batch}", why, f"in a moment: cotenant llmserve retry {batch}")


def retry(settings: Settings, batch: str, *, failed: bool) -> OperationResult:
    """Start another flow run on what is open; one that only waits to be put back is cancelled first, and gives way to it.

    Raises:
        Refused: no prompt of it is left, or its flow run is at work, or began again just now.
    """
    from cotenant import fleet, store
    from cotenant.cli import fleet_link
    from cotenant.cli.llmserve_input import DEPLOYMENT
    from cotenant.cli.llmserve_show import one_batch
    from cotenant.cli.runs import made_store
    from policies.refusal import Refused

    engine = made_store(settings, f"batch {batch!r}")
    found = one_batch(settings, engine, batch)
    api = fleet_link.connect(settings)
    before = found["flow_run_id"]
    state = api.state_of(before) if before and found["state"] == "open" else None
    waits = state is not None and "FLOW_PUT_BACK" in state["words"]
    if before and found["state"] == "open" and not waits and not (state or {}).get("final"):
        raise Refused("BATCH_OPEN", f"batch {batch}", "its flow run has not ended", f"cotenant llmserve status {batch}")
    again = failed and found["failed"]
    # with no prompt left, a batch whose flow run was killed before it could say so still has to be ended by one
    if not found["open"] and not again and found["state"] == "done":
        more = f", or: cotenant llmserve retry {batch} --failed" if found["failed"] else ""
        raise Refused(
            "BATCH_DONE", f"batch {batch}", "no prompt of it is open", f"cotenant llmserve results {batch}{more}"
        )
    if before and found["state"] == "open":
        _give_way(api, before, batch)
        # not its node's worker is to end what goes on below
        store.end_batch(engine, batch, "cancelled", "it was to go on with another flow run", of=before)
    reopened = store.reopen_failed(engine, batch) if again else 0
    flow_run = fleet.run_flow(api.url, DEPLOYMENT, {"node": found["node"], "batch": batch}, found["node"])
    # the batch is shown as open from now on, however long the flow takes to start
    store.set_flow_run(engine, batch, flow_run)
    return OperationResult(
        {"batch": batch, "flow_run_id": flow_run, "ui": api.ui_link(flow_run), "open": found["open"] + reopened},
        view=lambda data: [f"batch {data['batch']} goes on with {data['open']} open prompts: {data['ui']}"],
    )
