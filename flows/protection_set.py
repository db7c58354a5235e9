"""The flow ``protection-set``: put a protection section in force on a node that another machine's command cannot reach.

It runs on the node's own queue and speaks to the node's agent, which checks the section as it does for a local command.
"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.states import Completed, Failed, State
from pydantic import Field

from nodes.client import AgentUnreachable
from policies.refusal import Refused
from policies.section import digest
from tasks.agent_link import connect
from tasks.review import reviewed_by_whom
from tasks.section import section_plan_markdown, section_words
from tasks.words import refused_words

__all__ = ["protection_set"]


@flow(name="protection-set", persist_result=False)
def protection_set(
    node: str,
    section: Annotated[str, Field(max_length=256 * 1024)],
    reviewed: bool = False,
    reviewed_by: str = "",
    fleet: bool = False,
) -> State[Any]:
    """Put a protection section in force on a node, after a person has seen what it changes.

    Args:
        node: The node, by its name in the fleet (cotenant node list --fleet).
        section: The whole protection section, in TOML. It takes the place of the node's own one.
        reviewed: What it changes was reviewed already: do not ask.
        reviewed_by: Who reviewed it, where reviewed is set.
        fleet: It is the fleet's section: it takes the place of the fleet's one on the node, and binds beside the node's own.
    """
    agent = connect(node)
    of = {"scope": "fleet"} if fleet else {}
    try:
        before = agent.call("section_show", **of)
        if before.get("digest") == digest(section):
            # Also after a crash between the agent's answer and this flow's end.
            return Completed(message=f"section version {before['version']} of node {node} is this one already")
        seen = agent.call("section_preview", text=section, **of)
        if not seen["ok"]:
            return Failed(name="Refused", message=section_words(seen))
        answer = reviewed_by_whom(section_plan_markdown(node, section, seen, before), reviewed, reviewed_by)
        if isinstance(answer, State):
            return answer
        done = agent.call("section_set", text=section, by=answer, **of)
    except Refused as refusal:
        return Failed(name="Refused", message=refused_words(refusal))
    except AgentUnreachable as gone:
        return Failed(message=f"{gone}; whether it took the section is unknown: run this again when it is back")
    changes = "; ".join(str(change) for change in done["changes"]) or "nothing changed"
    held = " and ".join(f"the {scope}'s section" for scope in done.get("lost") or ())
    more = f"; its fleet work is held until {held}, which was lost with its journal, is set, too" if held else ""
    return Completed(message=f"section version {done['version']} is in force on node {node}: {changes}{more}")
