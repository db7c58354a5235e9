"""The flow ``protection-preview``: what a protection section would change on a node that another machine's command cannot
reach. It changes nothing.

It runs on the node's own queue and asks the node's agent; the answer is on the flow run, for people and for the command.
"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.states import Completed, Failed, State
from pydantic import Field

from nodes.client import AgentUnreachable
from policies.refusal import Refused
from tasks.agent_link import connect
from tasks.section import keep_preview, section_plan_markdown, section_words
from tasks.words import refused_words

__all__ = ["protection_preview"]


@flow(name="protection-preview", persist_result=False)
def protection_preview(
    node: str, section: Annotated[str, Field(max_length=256 * 1024)], fleet: bool = False
) -> State[Any]:
    """Show what a protection section would change on a node, which processes match now and what would be held.

    Args:
        node: The node, by its name in the fleet (cotenant node list --fleet).
        section: The whole protection section, in TOML.
        fleet: As the fleet's section, which binds beside the node's own; as the node's own one else.
    """
    agent = connect(node)
    of = {"scope": "fleet"} if fleet else {}
    try:
        before = agent.call("section_show", **of)
        seen = agent.call("section_preview", text=section, **of)
    except Refused as refusal:
        return Failed(name="Refused", message=refused_words(refusal))
    except AgentUnreachable as gone:
        return Failed(message=str(gone))
    keep_preview(seen, section_plan_markdown(node, section, seen, before) if seen["ok"] else None)
    if not seen["ok"]:
        return Failed(name="Refused", message=section_words(seen))
    return Completed(
        message=f"nothing was changed; it would: {'; '.join(map(str, seen['changes'])) or 'change nothing'}"
    )
