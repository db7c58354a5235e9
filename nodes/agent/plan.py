"""The plan of a harness run: everything that could only fail later is refused now, with what would work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodes.fingerprint import replaced_scripts
from nodes.unbound_code import unbound_code
from policies.harness.attempts import attempts_before
from policies.harness.plan_text import longest_hours, planned_blocks, planned_hours
from policies.harness.spec import RunSpec
from policies.harness.validity import LEAST_STEPS
from policies.refusal import Refused
from policies.section import Rule
from policies.sources.windows import holds_steps, window_fits
from policies.units import reasons
from policies.views import RunView, Unit
from policies.work import WorkSelector

if TYPE_CHECKING:
    from nodes.agent.core import Agent
    from nodes.agent.subject import Subject
    from nodes.identity import ProcessId

__all__ = ["Planner"]

RATE_WINDOWS_S = (60.0, 20.0, 5.0)


class Planner:
    def __init__(self, agent: Agent, subject: Subject) -> None:
        self.agent = agent
        self.subject = subject

    async def plan(self, spec: RunSpec, holder: ProcessId | None = None) -> dict[str, Any]:
        """The plan in figures and words, or ``Refused``. ``holder`` asks: a sweep's own process is not in its own way."""
        agent = self.agent
        if spec.kind == "ab":
            await self.subject.look_at_copies()
        agent.runs.check_free(holder=holder)
        rule = self.subject.rule_of(spec)
        agent.tick()
        processes = agent.observer.processes(spec.rule)
        if not processes:
            raise Refused(
                "RUN_NO_PROGRAM",
                f"rule {spec.rule!r}",
                "no running process matches it, so there is nothing to measure",
                f"start the program, then: cotenant protection preview {agent.node} FILE",
            )
        replaced = _replaced(processes) if spec.kind == "ab" else []
        source = self._source(spec, rule)
        work = self.subject.work(spec)
        warnings = self._forbidden(spec, work) + _source_warnings(source) + replaced
        warnings += self._program_warnings(spec, work)
        limit = rule.protect.max_slowdown if rule.protect is not None else None
        if limit is not None and spec.margin > limit:
            warnings.append(f"the margin ({spec.margin:g}) is wider than the rule's max_slowdown ({limit:g})")
        before = attempts_before(agent.journal.runs(), spec)
        planned = planned_blocks(spec)
        return {
            "spec": spec.model_dump(),
            "rule": rule.model_dump(mode="json", by_alias=True, exclude_none=True),
            "processes": processes,
            "source": source,
            "work": work,
            "feed": spec.feed,
            "planned_blocks": planned,
            "planned_hours": planned_hours(spec),
            "longest_hours": longest_hours(spec),
            "n_max": spec.n_max,
            "looks": list(spec.looks),
            "held": _held(spec),
            "allowed": _allowed(spec),
            "warnings": warnings + ([] if planned == spec.blocks else [
                f"--blocks {spec.blocks} is not one of the looks that fit; {planned} blocks are planned"]),
            "attempts_before": before,
            "certificate_kind": "none" if spec.kind != "ab" else "demonstration" if spec.demonstration else "certificate",
        }  # fmt: skip

    def _program_warnings(self, spec: RunSpec, work: list[dict[str, Any]]) -> list[str]:
        """What would leave a run that passes without a certificate."""
        found = []
        if spec.kind == "ab" and self.agent.observer.program_unknown(spec.rule):
            found.append(
                "a process that may be the program cannot be judged (PROTECTION_UNREADABLE): while it runs, no certificate is "
                "earned and none is in force; match by a key that the agent can read, or let it read that process"
            )
        rule = next((each for each in self.agent.view.rules if each.id == spec.rule), None)
        on_device = any(self.agent.units.is_device(item["gpu_use"]) for item in work)
        if on_device and rule is not None and rule.uses_device is False:
            found.append(
                "the program does not use the device now: blocks in which it does not show nothing about work on it, and a "
                "run with such a block earns no certificate"
            )
        return found

    def _source(self, spec: RunSpec, rule: Rule) -> dict[str, Any]:
        view = self.agent.progress(spec.rule)
        pattern = (
            rule.protect.source.file
            if rule.protect and rule.protect.source and rule.protect.source.kind != "exec"
            else ""
        )
        name = f"the progress source of rule {spec.rule!r} ({view.path or pattern})"
        if not view.readable:
            raise Refused(
                view.code or "PROTECTION_SOURCE_UNREADABLE",
                name,
                view.why or "it cannot be read",
                f"cotenant protection sources {self.agent.node}",
            )
        timed = self.subject.timed(spec)
        if timed.looks_timed and not spec.accept_timed_source:
            raise Refused(
                "SOURCE_LOOKS_TIMED",
                name,
                timed.words,
                "count units of work instead; or --accept-timed-source, for a demonstration certificate at most",
                {"cv": timed.cv, "mean_s": timed.mean_s, "gaps": timed.gaps},
            )
        fit = window_fits(view.track, spec.window_s, live=False)
        if fit.ok is False:
            raise Refused(
                "RUN_WINDOW_TOO_SHORT",
                f"--window {spec.window_s:g}",
                fit.why,
                "give a longer --window, or flush each line",
            )
        steps = holds_steps(view.track, spec.window_s, LEAST_STEPS)
        if spec.kind == "ab" and steps.ok is False:  # else no certificate is at stake
            raise Refused("RUN_WINDOW_TOO_SHORT", f"--window {spec.window_s:g}", steps.why, "give a longer --window")
        # The last minute; right after the agent's start as much of it as is known.
        now_s, rate, window_s = self.agent.now_s(), None, RATE_WINDOWS_S[0]
        for window_s in RATE_WINDOWS_S:
            rate = view.track.rate(now_s, window_s)
            if rate is not None:
                break
        return {
            "kind": view.kind,
            "path": view.path,
            "state": "read",
            "rate": rate,
            "rate_window_s": window_s,
            "gaps": timed.gaps,
            "timed": timed.looks_timed,
            "timed_why": timed.words,
        }

    def _forbidden(self, spec: RunSpec, work: list[dict[str, Any]]) -> list[str]:
        """Refused when something forbids the work whatever the run; a phase that is on now is only a warning."""
        agent = self.agent
        warnings = []
        view = agent.observer.node_view(
            agent.section,
            "tick",
            agent.now_s(),
            RunView("plan", spec.rule, WorkSelector(spec.work), "grant", spec.off, spec.duty, spec.feed),
        )
        view = agent.governing.applied(agent.sections.said_in(view), "event")
        for item in work:
            unit = Unit(
                "",
                0,
                item["module"],
                item["stage"],
                agent.units.is_device(item["gpu_use"]),
                True,
                "plan" if spec.feed else None,
                digest=item["digest"],
            )
            for why in reasons(unit, view):
                if why.code == "PROTECTION_PHASE_ON" and "cannot be read" not in why.why:
                    warnings.append(f"{why.why}: blocks are left out until it ends")
                    continue
                raise Refused(
                    "RUN_WORK_FORBIDDEN",
                    f"{item['short']}/{item['stage']} beside rule {spec.rule!r}",
                    f"it may not run even during the run: {why.why}",
                    why.remedy or "change the protection section",
                )
        return warnings


def _replaced(processes: list[dict[str, Any]]) -> list[str]:
    """Warnings of scripts that may not be what runs; refused where they are not: a certificate would name what was not measured."""
    found = replaced_scripts(processes)
    written = next((each for each in found if each.certain), None)
    if written is not None:
        raise Refused(
            "RUN_PROGRAM_REPLACED",
            f"process {written.pid}",
            f"{written.path} was written to after it had started, so what it runs is not what the file holds now",
            "restart the program, then measure it",
        )
    return [each.words for each in unbound_code(processes)] + [
        f"{each.path} was touched after process {each.pid} had started: restart the program if it is another version now, or "
        "the certificate would name what was not measured"
        for each in found
    ]


def _source_warnings(source: dict[str, Any]) -> list[str]:
    found = []
    if not source["rate"]:
        found.append("no progress was seen lately: blocks without progress in OFF are left out")
    if source["timed"] is None:
        found.append(
            f"whether the source is a timer is not known yet ({source['timed_why']}); it is checked again at the end"
        )
    return found


def _held(spec: RunSpec) -> list[str]:
    if spec.kind == "null":
        return ["all device work, in both windows of every block"]
    if spec.kind == "self":
        return ["all device work, in both windows; in OFF the agent's own meters and polling rest as well"]
    how = "stopped and requeued" if spec.off == "evicted" else "paused"
    return [
        f"the work under test ({spec.feed or spec.work}) is {how} in OFF windows and between blocks",
        "other device work, all along; of other work what runs goes on, and nothing more of it starts",
    ]


def _allowed(spec: RunSpec) -> list[str]:
    if spec.kind != "ab":
        return ["nothing runs that would not run anyway"]
    duty = f"at a duty of {spec.duty:g}" if spec.duty is not None else "uncapped"
    return [
        f"in ON windows {spec.feed or spec.work} runs {duty} beside the program of rule {spec.rule}, without a certificate",
        "every other rule, phases, your pause and the memory guard bind as ever; a collapse of the program ends the run at once",
    ]
