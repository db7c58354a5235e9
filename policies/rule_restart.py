"""What is kept of a rule's timing for the agent's next process, and how the rule goes on from it. Times hold on one boot only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policies.rules import RuleState
from policies.section.models import Cooldown

__all__ = ["doubtful_timing", "restarted_timing", "timing_from", "timing_kept"]


def timing_kept(state: RuleState) -> dict[str, Any]:
    """JSON of what a new process goes on from. It changes only when something happened, so an equal one need not be written.

    Since when a condition is on its way is left out: nobody looked in between, so that wait begins anew.
    """
    return {"active": state.active, "activations": list(state.activations), "resume_at_s": state.resume_at_s}


def timing_from(raw: Mapping[str, Any]) -> RuleState:
    """The state of ``timing_kept``. Raises ``ValueError``, ``TypeError`` or ``KeyError`` on anything else."""
    if type(raw["active"]) is not bool:
        raise ValueError(f"active is {raw['active']!r}")
    resume_at_s = raw["resume_at_s"]
    return RuleState(
        active=raw["active"],
        activations=tuple(_time_s(at) for at in raw["activations"]),
        resume_at_s=None if resume_at_s is None else _time_s(resume_at_s),
    )


def _time_s(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not math.isfinite(raw):
        raise ValueError(f"no time: {raw!r}")
    return float(raw)


def doubtful_timing(now_s: float) -> RuleState:
    """Where something was kept and cannot be read: whether the rule held work is not known, and unknown is not "no"."""
    return RuleState(active=True, activations=(now_s,), now_s=now_s)


def restarted_timing(kept: RuleState, now_s: float, cooldown: Cooldown, *, same_boot: bool) -> RuleState:
    """The state that a new process begins with; its first look is then a step like any other.

    After a reboot nobody knows how long ago anything was: what was held stays held for ``exit_after_s`` and the cooldown from now on,
    with its activations as of now. Those of a rule that held nothing were no part of any wait, and are over.
    No kept time makes a wait longer than the section allows.
    """
    if not same_boot:
        count = max(len(kept.activations), 1) if kept.holds else 0
        return RuleState(active=kept.holds, activations=(now_s,) * count, now_s=now_s)
    resume_at_s = None if kept.active or kept.resume_at_s is None else min(kept.resume_at_s, now_s + cooldown.max_s)
    activations = tuple(min(at, now_s) for at in kept.activations)
    return replace(kept, since_s=None, activations=activations, resume_at_s=resume_at_s, now_s=now_s)
