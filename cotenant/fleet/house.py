"""What a Prefect server of ours needs besides flows: a watch for dead runs, and examples of automations.

Each is made once and then belongs to the owner: one that was changed, switched off or deleted in the UI stays so.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from prefect.automations import Automation
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, DoNothing, RunDeployment
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from cotenant.fleet.deployments import client_of
from cotenant.fleet.worker_process import HEARTBEAT_S

__all__ = ["ZOMBIE_WITHIN", "automations", "keep_house"]

# A restart of the server or a machine that is short of CPU must not make live runs look dead: three heartbeats at least.
ZOMBIE_WITHIN = timedelta(seconds=3 * HEARTBEAT_S)
MARK = "house.json"


def keep_house(url: str, home: Path) -> list[str]:
    """Make what this home has not made on this server yet. Gives the names of what was made."""
    mark = home / "prefect" / MARK
    made_before = _read(mark)
    made = []
    with client_of(url) as client:
        there = {each["name"] for each in client.request("POST", "/automations/filter", json={"limit": 200}).json()}
        try:
            sweep = client.read_deployment_by_name("duty-sweep/duty-sweep").id
        except ObjectNotFound:
            sweep = None
        for automation in automations(sweep):
            if automation.name in made_before or automation.name in there:
                continue
            body = automation.model_dump(mode="json", exclude={"id"})
            client.request("POST", "/automations/", json=body)
            made.append(automation.name)
    if made:
        _write(mark, sorted({*made_before, *made}))
    return made


def automations(sweep_deployment: Any) -> list[Automation]:
    """The watch for dead runs, which is on; and two examples, which are off until the owner has read them."""
    dead = Automation(
        name="cotenant: runs without a heartbeat",
        description="A flow run whose process died with its machine is marked crashed. Workers look after their own.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            # any state as well: a run that was suspended for review, or waits for its node, beats no more
            expect={"prefect.flow-run.*"},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=ZOMBIE_WITHIN,
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message="No heartbeat from the node.")],
    )
    taken_back = Automation(
        name="cotenant example: say when the governor takes the budget back",
        description="Choose a notification block as its action and switch it on.",
        enabled=False,
        trigger=_on("cotenant.gpu.duty.take.back"),
        actions=[DoNothing()],
    )
    if sweep_deployment is None:
        return [dead, taken_back]
    stale = Automation(
        name="cotenant example: sweep when a certificate goes stale",
        description="Starts a sweep, which waits for your review; switch it on where you want that.",
        enabled=False,
        trigger=_on("cotenant.certificate.stale"),
        actions=[
            RunDeployment(
                source="selected",
                deployment_id=sweep_deployment,
                parameters={
                    name: {"__prefect_kind": "jinja", "template": f"{{{{ event.payload.{name} }}}}"}
                    for name in ("node", "rule", "work")
                },
            )
        ],
    )
    return [dead, taken_back, stale]


def _on(event: str) -> EventTrigger:
    return EventTrigger(
        expect={event},
        match={"prefect.resource.id": "cotenant.node.*"},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )


def _read(mark: Path) -> set[str]:
    try:
        return set(json.loads(mark.read_text()))
    except (OSError, ValueError, TypeError):
        return set()


def _write(mark: Path, names: list[str]) -> None:
    mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = mark.with_suffix(".new")
    draft.write_text(json.dumps(names))
    os.replace(draft, mark)
