"""The duty governor and the compliance check in the agent: readings in, their answers into the node's view, journal.

What is decided stands in ``policies.governor`` and ``policies.compliance``; what it means for a unit in
``policies.governed``. Here the readings are taken: certificates in force, the program's rates, the meter's shares. The
clock is the one that runs through suspend, so that a suspend shows as a late tick. Source: ``governor.md``.
"""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nodes.agent.certificates import InForceCertificates
from nodes.clock import boottime_s, monotonic_s
from nodes.identity import boot_id
from policies.compliance import CLEAR, ComplianceState, Judgement, Sample, judge
from policies.duty_text import UnitName, duty_view
from policies.governed import Governed, InForce, Work, bounding, sharing, where_they_hold, work_of
from policies.governor import (
    INITIAL,
    GovernorState,
    Holding,
    Inputs,
    Outputs,
    baseline_window_s,
    restarted,
    short_window_s,
    step,
)
from policies.kept import compliance_from, compliance_kept, governor_from, governor_kept
from policies.section import Rule
from policies.units import holding_rules, meetings, rules_beside
from policies.views import NodeView, Unit

if TYPE_CHECKING:
    from nodes.agent.core import Agent
    from nodes.jobs import Attempt

__all__ = ["Governing"]

log = logging.getLogger(__name__)

FACT = "governing"
MINUTE_S = 60.0


class Governing:
    """Asked by the agent's loop: ``applied`` on every judgement, with a reading of the meter once a tick.

    Args:
        pace: for tests: every time of governor and compliance is divided by it, and the agent's tick with them, so that
            the same decisions are taken in less time.
        clock: seconds that run through suspend.
    """

    def __init__(self, agent: Agent, pace: float = 1.0, clock: Callable[[], float] = boottime_s) -> None:
        self.agent = agent
        self.pace = pace
        self._clock = clock
        self.certificates = InForceCertificates(agent)
        self.state: GovernorState = INITIAL
        self.checked: ComplianceState = CLEAR
        self.inputs = Inputs()
        self.outputs = Outputs(None, decides="nobody")
        self.judgement = Judgement()
        self.governed: Governed | None = None
        self._works: dict[str, Work] = {}
        self._kept: dict[str, Any] = {}
        self._seen: tuple[GovernorState, ComplianceState] | None = None
        self._fresh = False
        self._resume()

    # -- the loop's steps -------------------------------------------------------------------------------------------

    def metered(self) -> None:
        """The meter was read: the next judgement looks at each unit's share."""
        self._fresh = True

    def applied(self, view: NodeView, how: str) -> NodeView:
        """The view with what governor and compliance check say. Between ticks (``event``, ``poll``) as of the last tick."""
        if how == "tick" or self.governed is None:
            self._step(view)
        return dataclasses.replace(view, governed=self.governed)

    def _step(self, view: NodeView) -> None:
        agent, now_s = self.agent, self.now_s()
        certified = view.gpu_jobs == "certified"
        rules = [rule.id for rule in holding_rules(view)]
        in_force, lapsed = self.certificates.now(rules if certified else ())
        if view.duty_device == "gpu":
            in_force, elsewhere = where_they_hold(in_force, {rule.id: rule.devices for rule in view.rules})
            lapsed |= elsewhere
        live = [(agent.units.of_attempt(each), each) for each in agent.jobs.attempts() if each.state != "stopping"]
        held_back = [(unit, attempt) for unit, attempt in live if rules_beside(unit, view)]
        beside = [(unit, meetings(unit, rules_beside(unit, view), view)) for unit, _ in held_back]
        taking = sharing(beside, in_force, self.judgement.verdicts, self._distrusted(now_s))
        where = {unit.attempt: places for unit, places in beside}
        present = {
            rule: [work_of(unit, where[unit.attempt][rule]) for unit, _ in taking if rule in where[unit.attempt]]
            for rule in rules
        }
        active = agent.runs.active
        self.inputs = Inputs(
            holding=tuple(self._holding(rule, in_force, present[rule], rates=certified) for rule in rules),
            units=tuple(unit.attempt for unit, _ in taking),
            memory_hard=agent.observer.memory.level == "hard",
            gpu_jobs=view.gpu_jobs,
            run_measures=active is not None,
            run_duty=None if active is None else active.spec.duty if active.part == "grant" else 0.0,
        )
        self.state, self.outputs = step(self.state, self.inputs, now_s)
        for entry in self.outputs.entries:
            data = dict(entry.data)
            if entry.code == "GPU_NOT_CERTIFIED":
                data["remedy"] = [f"cotenant protection ab sweep {agent.node} --rule {rule}" for rule in data["rules"]]
                data["why"] = {rule: lapsed.get(rule, "it has no certificate") for rule in data["rules"]}
            agent.journal.write(entry.code, data)
        if self._fresh:
            self._fresh = False
            self._judge(held_back, self._unread(view), now_s)
        self.governed = Governed(
            node=agent.node,
            state=self.state.name,
            decides=self.outputs.decides,
            budget=self.outputs.budget,
            in_force=in_force,
            lapsed=lapsed,
            verdicts=self.judgement.verdicts,
            distrusted=self._distrusted(now_s),
        )
        self._keep()

    def _unread(self, view: NodeView) -> dict[str, float]:
        """By module the share of units that a rule held back and that ended before they had one of their own."""
        found: dict[str, float] = {}
        for attempt, share in self.agent.ended_unread:
            unit = self.agent.units.of_attempt(attempt)
            if unit.cooperative and rules_beside(unit, view):
                found[unit.module] = found.get(unit.module, 0.0) + share
        return found

    def _judge(self, held_back: Sequence[tuple[Unit, Attempt]], unread: Mapping[str, float], now_s: float) -> None:
        """Judge each unit that a rule holds back by the meter's newest reading. ``unread``: as ``judge`` takes it."""
        governs = self.inputs.gpu_jobs == "certified" and self.outputs.decides == "governor"
        budget = self.outputs.budget if governs and self.state.name != "closed" else None
        if budget is not None and self.checked.budget is None:
            # What was read happened while no duty was set: nobody was asked to hold one.
            self.checked, self.judgement = dataclasses.replace(self.checked, budget=budget), Judgement()
            return
        samples = []
        for unit, attempt in held_back:
            share, age_s = self._share(attempt), self.agent.share_age_s(attempt) * self.pace
            samples.append(
                Sample(
                    unit.attempt,
                    unit.module,
                    unit.cooperative,
                    attempt.duty,
                    share if isinstance(share, float) else None,
                    age_s,
                    share if isinstance(share, str) else f"its newest reading is {age_s:.0f} s old",
                )
            )
        self.checked, self.judgement = judge(self.checked, samples, budget, now_s, unread)
        for entry in self.judgement.entries:
            self.agent.journal.write(entry.code, entry.data)

    def _share(self, attempt: Attempt) -> float | str:
        """Busy share since the last reading, or why it is not known."""
        found = self.agent.shares.get(attempt.attempt_id)
        if found is None:
            return "it was not read yet"
        return found if isinstance(found, float) else found.why

    def _distrusted(self, now_s: float) -> tuple[str, ...]:
        return tuple(name for name, until_s in self.checked.distrusted.items() if now_s < until_s)

    # -- readings ---------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """The governor's clock."""
        return self._clock() * self.pace

    def work_of_attempt(self, attempt: Attempt) -> Work:
        """What a live attempt runs: the bundle that it was started from, and the model that its payload names, with the file that
        it had then (another may have its name by now).
        """
        found = self._works.get(attempt.attempt_id)
        if found is None:
            live = {each.attempt_id for each in self.agent.jobs.attempts()}
            self._works = {name: work for name, work in self._works.items() if name in live}
            model, registry = self.agent.jobs.job(attempt.job_id).model, self.agent.jobs.registry
            found = Work(
                attempt.module,
                attempt.stage,
                registry.digest_of(attempt.attempt_id),
                model,
                model_file=None if model is None else registry.model_file_of(attempt.attempt_id),
            )
            self._works[attempt.attempt_id] = found
        return found

    def _holding(self, rule_id: str, in_force: Sequence[InForce], present: Iterable[Work], *, rates: bool) -> Holding:
        """One rule's readings. Rates only where they are needed: they cost a walk over the newest steps."""
        certificate = bounding(in_force, rule_id, present)
        rule = self.agent.section.rule(rule_id)
        target = _target(rule)
        duty = None if certificate is None else certificate.duty
        if not rates or duty is None or not self.agent.hub.has_progress(rule_id):
            return Holding(rule_id, duty, False, None, None, None, None, target)
        progress = self.agent.hub.progress(rule_id)
        track, now_s = progress.track, monotonic_s()
        step_s = track.median_step_s
        # A source that brings its lines in bursts is as slow as its bursts: each window holds five of either.
        cadence_s = track.arrival_cadence_s
        slow_s = step_s if step_s is None or cadence_s is None else max(step_s, cadence_s)
        paced_s = None if slow_s is None else slow_s * self.pace

        def rate(window_s: float) -> float | None:
            return track.rate(now_s, window_s / self.pace) if progress.readable else None

        return Holding(
            rule=rule_id,
            certified_duty=duty,
            readable=progress.readable,
            short_rate=rate(short_window_s(paced_s)),
            minute_rate=rate(max(MINUTE_S, 0.0 if paced_s is None else short_window_s(paced_s))),
            baseline_rate=rate(baseline_window_s(paced_s)),
            median_step_s=paced_s,
            max_slowdown=target,
            certified_off_rate=None if certificate is None else certificate.off_rate,
        )

    # -- across a restart -------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Go on from what an earlier process of this boot left; after a reboot, or from what cannot be read, anew."""
        try:
            kept = self.agent.journal.fact(FACT)
            if kept is None or kept["boot_id"] != boot_id() or kept["pace"] != self.pace:
                return
            now_s = self.now_s()
            self.state = restarted(governor_from(kept["governor"]))
            self.checked = compliance_from(kept["compliance"], now_s)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, sqlite3.Error) as error:
            log.warning("what the last agent left of the governor cannot be read (%s): it begins anew", error)
            self.state, self.checked = INITIAL, CLEAR

    def _keep(self) -> None:
        """Written when something happened; a disk that is full costs the next process its memory, nothing else."""
        if self._seen == (self.state, self.checked):
            return
        self._seen = (self.state, self.checked)
        kept = {
            "boot_id": boot_id(),
            "pace": self.pace,
            "governor": governor_kept(self.state),
            "compliance": compliance_kept(self.checked),
        }
        if kept == self._kept:
            return
        try:
            self.agent.journal.set_fact(FACT, kept)
            self._kept = kept
        except sqlite3.Error as error:
            self._seen = None
            log.warning("the governor's state cannot be kept: %s", error)

    # -- for people -------------------------------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """``duty_view`` of this moment: the units that run, each with the duty that its control document has."""
        live = [
            a for a in self.agent.jobs.attempts() if a.state != "stopping" and self.agent.units.of_attempt(a).device
        ]
        names = [UnitName(a.attempt_id, a.module, a.stage, a.attempt_id) for a in live]
        duties = {a.attempt_id: a.duty for a in live if a.duty is not None and a.attempt_id in self.inputs.units}
        outputs = dataclasses.replace(self.outputs, shares=duties)
        found = duty_view(
            self.agent.node, self.state, self.inputs, outputs, names, self.judgement.verdicts, self.now_s()
        )
        measured = {a.attempt_id: self._share(a) for a in live}
        for row in found["units"]:
            share = measured[row["attempt"]]
            row["measured"] = share if isinstance(share, float) else None
        return found


def _target(rule: Rule | None) -> float:
    target = rule.protect.max_slowdown if rule is not None and rule.protect is not None else None
    return 0.05 if target is None else target
