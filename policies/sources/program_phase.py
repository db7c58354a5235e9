"""A phase while a program of the owner's runs (``on_exec``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from policies.rules import Group, ProcInfo, group
from policies.section.models import Rule
from policies.section.sources import OnExec

__all__ = ["program_of"]


def program_of(on_exec: OnExec, procs: Iterable[ProcInfo], owner_uid: int, exclude_pids: Collection[int] = ()) -> Group:
    """The processes that the phase is about: those of the owner's account that match, and those of which that cannot be told.

    ``holding`` of the answer says whether the phase is on: what cannot be read counts. ``match`` has its ``~`` expanded.
    """
    own = [proc for proc in procs if proc.uid is None or proc.uid == owner_uid]
    rule = Rule.model_construct(id="on_exec", match=on_exec.match, tree=on_exec.tree)
    return group(rule, own, exclude_pids)
