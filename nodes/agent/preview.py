"""What a protection section would do if it were put in force: errors, changes, what matches now, what would be held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodes.agent.sections import Scope
from policies.caps import caps_of, reserve_of
from policies.condition import ProgramUse, condition_holds
from policies.section import Rule, Section, SectionErrors, parse_section
from policies.section.changes import warnings
from policies.units import desired, reasons
from policies.views import NodeView, PhaseView, Reason, RuleView

if TYPE_CHECKING:
    from nodes.agent.core import Agent

__all__ = ["preview"]


def preview(agent: Agent, text: str, scope: Scope) -> dict[str, Any]:
    """Changes nothing. ``held`` are the numbers of the jobs that would be held or kept waiting, ``held_why`` says why.

    What a new rule would find out only later counts as it would at first: a condition on use holds, a program's speed is
    not measured yet.
    """
    try:
        section = agent.sections.would_be(text, scope)
        old, new = agent.sections.of(scope).section, parse_section(text)
        changes = agent.sections.changes(text, scope)
    except SectionErrors as errors:
        return {
            "ok": False,
            "errors": [error.as_dict() for error in errors.errors],
            "changes": [],
            "warnings": [],
            "matches": [],
            "held": [],
            "held_why": [],
        }
    agent.observer.refresh(agent.now_s(), agent.trees())
    matches = agent.observer.matches(section)
    held = _held(agent, agent.sections.said_in(what_if(agent, section, matches), text, scope))
    return {
        "ok": True,
        "errors": [],
        "changes": [change.words for change in changes],
        "warnings": warnings(old, new),
        "matches": matches,
        "held": [row["job"] for row in held],
        "held_why": held,
    }


def _held(agent: Agent, view: NodeView) -> list[dict[str, Any]]:
    """Jobs that the view holds, running ones first."""
    attempts = [attempt for attempt in agent.jobs.attempts() if attempt.state != "stopping"]
    wanted = {each.attempt: each for each in desired([agent.units.of_attempt(attempt) for attempt in attempts], view)}
    found = [
        _row(attempt.job_id, wanted[attempt.attempt_id].action, wanted[attempt.attempt_id].reasons)
        for attempt in attempts
        if wanted[attempt.attempt_id].reasons
    ]
    for job in agent.jobs.waiting():
        if why := reasons(agent.units.of_job(job), view):
            found.append(_row(job.job, "wait", why))
    return found


def _row(job: int, action: str, why: tuple[Reason, ...]) -> dict[str, Any]:
    return {"job": job, "action": action, "reasons": [{"code": each.code, "why": each.why} for each in why]}


def what_if(agent: Agent, section: Section, matches: list[dict[str, Any]]) -> NodeView:
    """The node as it would be judged first under ``section``."""
    present = {match["rule"]: bool(match["processes"] or match["unreadable"] or match["members"]) for match in matches}
    now = {view.id: view for view in agent.view.rules}
    same = {rule.id for rule in section.rules if agent.section.rule(rule.id) == rule}
    node = section.node
    run = agent.runs.active
    return NodeView(
        mode=node.mode,
        pause=node.pause,
        gpu_jobs=node.gpu_jobs,
        duty_device=node.duty_device,
        rules=tuple(
            now[rule.id] if rule.id in same and rule.id in now else _view(rule, present.get(rule.id, False))
            for rule in section.rules
            if not rule.ignore
        ),
        run=run.view() if run is not None else None,
    )


def _view(rule: Rule, present: bool) -> RuleView:
    """A rule that is new, as its first judgement would see it. Its phases are not read yet."""
    active = condition_holds(rule, present, ProgramUse())
    metric = rule.protect.metric if rule.protect is not None else None
    return RuleView(
        id=rule.id,
        active=active,
        holding=active,
        protects_progress=metric == "progress_rate",
        protects_share=metric == "gpu_share",
        protects_stall=metric == "cpu_stall",
        pause=rule.pause_fleet.scope if rule.pause_fleet else None,
        evict=rule.evict.scope if rule.evict else None,
        lower=rule.lower_fleet.scope if rule.lower_fleet else None,
        cap=caps_of(rule.cap_fleet, f"rule {rule.id}"),
        reserve=reserve_of(rule.reserve, f"rule {rule.id}"),
        phases=tuple(
            PhaseView(index, False, during.pause_fleet.scope if during.pause_fleet else None)
            for index, during in enumerate(rule.during)
        ),
    )
