"""The agents of this machine: their sockets under the home, and asking them."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli.failures import Unreachable

if TYPE_CHECKING:
    from cotenant.settings import Settings
    from policies.refusal import Refused

__all__ = ["NOT_HERE", "Agent", "checked_name", "local_nodes", "start_command", "with_node"]

CALL_S = 30.0
# Refusals of an ``Agent`` that tell where the node is: its agent was not asked, and nothing is known of it.
NOT_HERE = frozenset({"NODE_ELSEWHERE", "NODE_UNKNOWN"})


def checked_name(node: str) -> str:
    """The name, or ``Refused``: it becomes a folder and a work queue."""
    from policies.refusal import Refused

    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", node):
        return node
    raise Refused(
        "NODE_BAD_NAME",
        f"node {node!r}",
        "a node's name has letters, digits, '.', '_' and '-', starts with a letter or digit and has at most 63 of them",
        "cotenant node list shows the nodes of this machine",
    )


def with_node(remedy: str, node: str) -> str:
    """The remedy with the node's name where it says NODE, so that it can be run as it stands."""
    return re.sub(r"\bNODE\b", lambda _: node, remedy)


def local_nodes(home: Path) -> list[str]:
    """Names of the nodes that have a folder here, running or not."""
    nodes = home / "nodes"
    return sorted(entry.name for entry in nodes.iterdir() if entry.is_dir()) if nodes.is_dir() else []


def start_command(home: Path, command: str) -> str:
    """The command with the home it needs, where that is not the one in force in the caller's shell."""
    from cotenant.settings import Settings

    if home == Settings.from_env().home:
        return f"cotenant {command}"
    return f"COTENANT_HOME={shlex.quote(str(home))} cotenant {command}"


def _socket(settings: Settings, node: str) -> tuple[Path, bool]:
    """The socket to ask, and whether it is the owners': a system service's, where this home has no such node."""
    from nodes.client import node_dir, socket_path

    own = socket_path(settings.home, node)
    owners = settings.owners_dir / f"{node}.owners.sock"
    if os.path.exists(own) or os.path.isdir(node_dir(settings.home, node)) or not os.path.exists(owners):
        return own, False
    return owners, True


class Agent:
    """One node's agent, asked over its socket; a system service's over the one that it has for its owners.

    Every question raises ``Refused`` where the agent says no or this home has other nodes and not this one, and
    ``Unreachable`` (with the command that starts the agent) where nobody answers.
    """

    def __init__(self, settings: Settings, node: str) -> None:
        from nodes.client import AgentClient

        self.node = checked_name(node)
        self.home = settings.home
        self._settings = settings
        path, self._of_owners = _socket(settings, self.node)
        self._client = AgentClient(path)

    def ask(self, verb: str, /, _timeout_s: float = CALL_S, **params: Any) -> Any:
        from nodes.client import AgentUnreachable
        from policies.refusal import Refused

        try:
            return self._client.call(verb, _timeout_s=_timeout_s, **params)
        except Refused as refusal:  # the agent writes NODE for itself: a remedy is to be run as it stands
            if refusal.code == "AGENT_NO_VERB" and self._of_owners:
                raise Refused(
                    "NOT_FOR_OWNERS",
                    f"node {self.node}",
                    f"its service takes no {verb} from its owners: they read, set the section and abort runs",
                    "ask as the account that the service runs as",
                ) from refusal
            raise Refused(
                refusal.code, refusal.what, refusal.why, with_node(refusal.remedy, self.node), refusal.data
            ) from refusal
        except AgentUnreachable as error:
            if self._of_owners:
                start = "sudo systemctl restart cotenant-agent"
                raise Unreachable(
                    "AGENT_UNREACHABLE", f"node {self.node}", f"no agent answers on {error.path}: {error.why}", start
                ) from error
            known = local_nodes(self.home)
            if known and self.node not in known:
                raise _no_such_node(self._settings, self.node, known) from error
            raise Unreachable(
                "AGENT_UNREACHABLE",
                f"node {self.node}",
                f"no agent answers on {error.path}: {error.why}",
                start_command(self.home, self._starting()),
            ) from error

    def is_running(self) -> bool:
        from nodes.client import AgentUnreachable
        from policies.refusal import Refused

        try:
            self._client.call("hello", _timeout_s=3.0)
        except AgentUnreachable:  # also where the node has no folder yet: somebody is about to make it
            return False
        except Refused:  # as one with too many connections: it answers
            pass
        return True

    def _starting(self) -> str:
        """The command that starts this agent: `up` where there is no server for its worker either."""
        from cotenant.cli.fleet_link import server_answers

        url = self._settings.api_url
        if self._settings.prefect_api_url is not None or (url is not None and server_answers(url) is None):
            return f"node run {self.node}"
        return "up" if self.node == self._settings.node else f"up --node {self.node}"


def _no_such_node(settings: Settings, node: str, known: list[str]) -> Refused:
    import difflib

    from policies.refusal import Refused

    elsewhere = _nodes_elsewhere(settings)
    if node in elsewhere:
        return Refused(
            "NODE_ELSEWHERE",
            f"node {node!r}",
            "it is on another machine of the fleet, and this command asks the node's own agent",
            f"type it on that machine, or start the deployment in the Prefect UI: {_ui(settings)}",
        )
    known = sorted({*known, *elsewhere})
    near = difflib.get_close_matches(node, known, 1)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    return Refused(
        "NODE_UNKNOWN", f"node {node!r}", f"no such node; known: {', '.join(known)}{hint}", "cotenant node list --fleet"
    )


def _nodes_elsewhere(settings: Settings) -> list[str]:
    """Other machines' nodes, as the fleet's server knows them; none where it cannot be asked."""
    from cotenant.cli.fleet_link import server_answers

    url = settings.api_url
    if url is None or server_answers(url) is not None:
        return []
    from cotenant import fleet

    try:
        return [name for name in fleet.queues(url) if name not in local_nodes(settings.home)]
    except Exception:  # what is to be said does not depend on it
        return []


def _ui(settings: Settings) -> str:
    return (settings.api_url or "").removesuffix("/api")
