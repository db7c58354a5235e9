"""What the owners of a system service's machine may ask over its second socket: reading, their own verbs, and helper reports.

The socket is open to the accounts that the service names; who asks is told by the kernel (``SO_PEERCRED``). Nothing here
submits work, adds modules or measures: that stays with the agent's own account.
"""

from __future__ import annotations

import pwd
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from nodes.rpc import Peer, Verb
from nodes.sources.helper_desk import HELPER_BEATS_S
from nodes.sources.helper_rows import rows_of
from nodes.sources.probe import Owner
from policies.refusal import Refused
from policies.section.sources import JsonlEventPhase, JsonlFieldPhase, JsonlProgress, LogProgress

if TYPE_CHECKING:
    from nodes.agent.core import Agent
    from nodes.agent.verbs import Verbs

__all__ = ["OwnerVerbs"]

_READ = [
    "hello",
    "status",
    "section_show",
    "section_versions",
    "section_preview",
    "sources",
    "explain",
    "duty",
    "modules",
    "job_list",
    "job_show",
    "timeline",
    "run_status",
    "run_show",
    "run_list",
    "certificates",
]
_OWN = ("run_abort",)
MAX_ROWS = 1000


class OwnerVerbs:
    def __init__(self, agent: Agent, verbs: Verbs) -> None:
        self.agent = agent
        self.verbs = verbs

    def table(self) -> dict[str, Verb]:
        served = self.verbs.table()
        return {name: served[name] for name in (*_READ, *_OWN) if name in served} | {
            "section_set": self.section_set,
            "helper_sources": self.helper_sources,
            "helper_report": self.helper_report,
        }

    def section_set(self, peer: Peer, text: str, by: str = "") -> dict[str, Any]:
        """As on the agent's own socket; the section is then of the account that asks, whatever ``by`` says."""
        owner = Owner.of(peer.uid)
        return self.verbs.section_set(text, _name(peer.uid), owner=owner)

    def helper_sources(self, peer: Peer) -> dict[str, Any]:
        """The sources in the caller's home that the agent's account may not read.

        Returns:
            ``{section_version, home, beat_s, sources: [{rule, role, index, window_s, source}]}``
        """
        home = Owner.of(peer.uid).home
        hub = self.agent.hub
        found = []
        for rule, role, index in hub.desk.asked_of(home):
            source, window_s = hub.source_of(rule, role, index)
            found.append(
                {
                    "rule": rule,
                    "role": role,
                    "index": index,
                    "window_s": window_s,
                    "kind": source.kind,
                    "source": _in_home(source, hub.pattern_of(rule, role, index)),
                }
            )
        return {
            "section_version": self.agent.section_version,
            "home": home,
            "beat_s": HELPER_BEATS_S,
            "sources": found,
        }

    def helper_report(self, peer: Peer, section_version: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """States and counts of sources in the caller's home. Refused where another section came into force."""
        if section_version != self.agent.section_version:
            raise Refused(
                "HELPER_OTHER_SECTION",
                f"a report on section version {section_version}",
                f"version {self.agent.section_version} is in force",
                "ask helper_sources again",
            )
        if len(rows) > MAX_ROWS:
            raise Refused("BAD_PARAMETER", "rows", f"at most {MAX_ROWS}", "report fewer at a time")
        try:
            checked = rows_of(rows)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise Refused("BAD_PARAMETER", f"rows, {where}", first["msg"], "see docs/architecture.md") from error
        self.agent.on_helper_report(Owner.of(peer.uid).home, checked)
        return {}


def _in_home(source: JsonlProgress | LogProgress | JsonlEventPhase | JsonlFieldPhase, pattern: str) -> dict[str, Any]:
    key = "path" if isinstance(source, LogProgress) else "jsonl"
    return source.model_dump(mode="json", exclude_none=True) | {key: pattern}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
