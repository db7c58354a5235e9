"""The flow ``duty-sweep``: how much fleet work a protected program tolerates. One harness run a level, in ascending order.

The levels are subflows in this one process, which has the node reserved from the first to the last. What was done and
what comes next stands in the agent's journal alone: the same flow run started again, or another one the next night,
goes on with the next level.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Completed, Failed, State
from pydantic import Field

from cotenant.settings import Settings
from flows.ab_run import (
    drive,
    publish_report,
    showing,
    step,
    take_block,
    take_reference,
    until_the_end_of,
)
from nodes.client import AgentUnreachable
from nodes.identity import own_id
from nodes.zone import local_zone
from policies.harness.hours import HOURS_PATTERN, Hours, parse_hours
from policies.harness.names import sweep_name
from policies.harness.spec import RunSpec
from policies.harness.sweep import LEVELS, Asked, Finished, Level, check_levels, level_hours, level_run, level_spec
from policies.refusal import Refused
from policies.report.sweep import UNFINISHED, SweepReport
from tasks.agent_link import AgentLost, Link, connect
from tasks.artifacts import artifact_key, show_progress, unless_away
from tasks.keep import Keeper
from tasks.measure import Steps
from tasks.quiet import watch_rarely
from tasks.review import reviewed_by_whom, sweep_plan_markdown
from tasks.sweep import RUNS_LOOKED_AT, ask_next, level_seed, publish_sweep, report_of
from tasks.words import ended_words, refused_words, sweep_percent, sweep_progress_words

__all__ = ["duty_sweep"]

_LEVELS = list(LEVELS)  # as the UI's form shows them

watch_rarely()


@flow(name="duty-sweep", persist_result=False)
def duty_sweep(
    node: str,
    rule: str,
    work: str = "gpu",
    levels: Annotated[list[float], Field(min_length=1)] = _LEVELS,
    window: Annotated[str, Field(pattern=HOURS_PATTERN)] = "",
    max_hours: Annotated[float, Field(gt=0.0)] = 8.0,
    window_s: Annotated[float, Field(ge=5.0)] = 300.0,
    washout_s: Annotated[float, Field(ge=0.0)] = 60.0,
    margin: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.02,
    off: Literal["paused", "evicted"] = "paused",
    first_look: Annotated[int, Field(ge=8, multiple_of=4)] = 8,
    feed: str = "",
    accept_timed_source: bool = False,
    reviewed: bool = False,
    seed: Annotated[int, Field(ge=0)] = 0,
    reviewed_by: str = "",
) -> State[Any]:
    """Find the highest duty at which fleet work shows no slowdown of a protected program.

    Args:
        node: The node to measure on, by its name in the fleet (cotenant node list --fleet).
        rule: The rule of the node's protection section whose program is protected.
        work: The fleet work under test: gpu, cpu, all, a module, or MODULE/STAGE.
        levels: The duties to try, ascending, each above 0 and at most 1. The sweep stops at the first that fails.
        window: Your hours in the node's local time, like 22:00-06:30. The sweep starts and stops in them and goes on the
            next night; empty for any hours.
        max_hours: Hours of windows and washouts that one level may take; what switching takes comes on top.
        window_s: Length of a counted window, in seconds.
        washout_s: Seconds thrown away after each switch.
        margin: The slowdown that counts, as a fraction (0.02 is 2 %).
        off: How the work is held in the windows without it: paused, or evicted to free its memory too.
        first_look: The first number of counted blocks at which a level is judged; higher sees rarer harm.
        feed: MODULE/STAGE, or MODULE/STAGE@MODEL, that keeps the ON windows loaded; its results are thrown away. Empty for what is queued.
        accept_timed_source: Accept a source whose lines come on a timer; earns demonstration certificates at most.
        reviewed: The plan was reviewed already: do not ask. For schedules and the command line.
        seed: Seed of the coins that order the windows; 0 for a fresh one.
        reviewed_by: Who reviewed it, where reviewed is set.
    """
    log = get_run_logger()
    me = str(flow_run.id)
    settings = Settings.from_env()
    sweep = _Sweep(settings, me, reviewed_by, log)
    try:
        hours = parse_hours(window) if window.strip() else None
        tried = check_levels(levels)
        base = RunSpec(
            node=node, rule=rule, work=work, duty=tried[0], window_s=window_s, washout_s=washout_s, margin=margin, off=off,
            max_hours=max_hours, first_look=first_look, feed=feed.strip() or None, accept_timed_source=accept_timed_source,
        )  # fmt: skip
        base.checked()
        sweep.plan(base, Asked.of(base, tried), hours, seed)
        if not sweep.was_begun():
            answer = reviewed_by_whom(sweep_plan_markdown(plan_sweep(sweep), tried, hours), reviewed, reviewed_by)
            if isinstance(answer, State):
                return answer
            sweep.reviewed_by = answer
        said = sweep.run()
    except TerminationSignal:
        sweep.tell("the flow run was cancelled, or its process ended")
        raise
    except Refused as refusal:
        report = sweep.tell(refused_words(refusal))
        return Failed(name="Refused", message=_message(report, refused_words(refusal)))
    except (AgentLost, AgentUnreachable) as gone:
        return Failed(message=f"{gone}. What the sweep has stands: start it again when the agent is back")
    report = sweep.tell(said)
    return Completed(message=_message(report, said))


class _Sweep:
    """One night of a sweep."""

    def __init__(self, settings: Settings, flow_run_id: str, reviewed_by: str, log: Any) -> None:
        self.settings = settings
        self.me = flow_run_id
        self.reviewed_by = reviewed_by
        self.log = log
        self.name: str | None = None
        self.agent: Any = None
        self.shown: UUID | None = None

    def plan(self, base: RunSpec, asked: Asked, hours: Hours | None, seed: int) -> None:
        self.base, self.asked, self.hours, self.seed = base, asked, hours, seed
        self.agent = connect(base.node)
        self.zone = local_zone()

    def was_begun(self) -> bool:
        """Did this very flow run begin a level already? Then it was reviewed, and goes on after a crash."""
        return any(
            self.me in (row.get("flow_run_id"), *(row.get("driven_by") or ()))
            for row in self.agent.call("run_list", limit=RUNS_LOOKED_AT)
        )

    def run(self) -> str:
        """The levels that fit. Gives what there is to say about why it ends."""
        agent, holder = self.agent, own_id()
        tried: set[str] = set()
        while True:
            found = ask_next(agent, self.asked, self.me)
            if isinstance(found, Finished):
                self.name = found.sweep
                agent.call("sweep_end", holder=holder.as_dict())
                return found.why
            if found.why_new:
                self.log.info("a new sweep begins, a repeat: %s", found.why_new)
            self.name = found.sweep or sweep_name(self.me)
            link, why = self.link(found, holder)
            if link is None:
                if self.name == sweep_name(self.me) and found.index == 0:
                    self.name = None  # nothing of it was begun
                agent.call("sweep_end", holder=holder.as_dict())
                return why
            if link.run in tried:
                agent.call("sweep_end", holder=holder.as_dict())
                return f"run {link.run} of duty {found.level:g} passed, and its certificate is not settled"
            tried.add(link.run)
            _LINKS[link.run] = (self, link)
            self.begins(found)
            sweep_level.with_options(flow_run_name=f"{self.name} duty {found.level:g}")(
                link.run, found.level, return_state=True
            )
            if link.show()["state"] != "ended":
                # The subflow of an earlier attempt stood in its place and nothing was run.
                drive_level(self, link)

    def link(self, found: Level, holder: Any) -> tuple[Link | None, str]:
        """The level's line to the agent; None where too little is left of the owner's hours, with the reason."""
        name = self.name or ""
        now = datetime.now(UTC)
        about = {
            "sweep": name,
            "index": found.index,
            "levels": list(self.asked.levels),
            "asked": self.asked.digest,
            "repeat_of": list(found.repeat_of),
            "hours": None if self.hours is None else str(self.hours),
        }
        if found.run is not None:
            spec = RunSpec.model_validate(self.agent.call("run_show", run=found.run)["spec"])
            if self.hours is not None and self.hours.left_s(now, self.zone) < spec.block_s:
                return None, f"{self.outside(now)}; duty {found.level:g} was begun and goes on in the next hours"
        else:
            allowed = level_hours(self.base.max_hours, self.hours, now, self.zone)
            seed = level_seed(name, found.index, self.seed)
            spec = level_spec(self.base, found.level, allowed, seed)
            if spec.n_max < spec.first_look:
                need_h = spec.first_look * spec.block_s / 3600.0
                return None, (
                    f"{self.outside(now)}: duty {found.level:g} does not start, as its {spec.first_look} blocks take "
                    f"{need_h:.1f} h; the next hours go on with it"
                )
        run = found.run or level_run(name, found.index)
        return Link(self.agent, run, spec, holder, self.me, self.reviewed_by, about), ""

    def outside(self, now: datetime) -> str:
        if self.hours is None:
            return "no time is left"
        left = self.hours.left_s(now, self.zone)
        clock = now.astimezone(self.zone)
        if left <= 0.0:
            return f"it is {clock:%H:%M} on the node, outside its hours {self.hours}"
        return f"{left / 3600.0:.1f} h are left of the hours {self.hours}"

    def begins(self, level: Level) -> None:
        """The sweep's own progress bar: made before the first level, whose bar hangs on a run of its own."""
        count = len(self.asked.levels)
        words = f"level {level.index + 1} of {count}, duty {level.level:g}: begins"
        self.show(100.0 * level.index / count, words)

    def show(self, at: float, words: str) -> None:
        with unless_away(self.log):
            key = artifact_key("ab", str(self.name), "progress")
            self.shown = show_progress(key, at, words, self.shown)

    def tell(self, why: str) -> SweepReport | None:
        """Publish the report of what there is; None where there is nothing, or it could not be made."""
        if self.name is None or self.agent is None:
            return None
        try:
            report = report_of(self.agent, self.name)
            if why and report.state == UNFINISHED:  # else its own sentence says why it ended
                report = replace(report, notes=(f"It ended here: {why}.",))
            publish_sweep(report, Path(self.settings.reports))
            if self.shown is not None and report.state != UNFINISHED:
                self.show(100.0, report.sentence)
        except Exception as error:
            self.log.warning("the report of sweep %s could not be made: %s", self.name, error)
            return None
        return report


# A level's line to the agent by its run: a flow's parameters are plain values.
_LINKS: dict[str, tuple[_Sweep, Link]] = {}


@flow(name="sweep-level", persist_result=False)
def sweep_level(run: str, level: float) -> State[Any]:
    """One level of a duty sweep; its report and progress hang on this run."""
    return drive_level(*_LINKS[run])


def drive_level(sweep: _Sweep, link: Link) -> State[Any]:
    keeper = Keeper(sweep.settings.store, sweep.log)
    level_seen = showing(link, keeper)

    def seen(record: dict[str, Any]) -> None:
        level_seen(record)
        sweep.show(sweep_percent(record), sweep_progress_words(record))

    steps = Steps(take_reference, take_block, seen, until_the_end_of(sweep.hours, link.spec))
    record, no_certificate = drive(link, steps)
    if not keeper.keep_at_the_end(record):
        sweep.log.warning("the store is away; the node's worker copies run %s when it is back", link.run)
    try:
        publish_report(record, str(sweep.settings.reports))
    except Exception:
        sweep.log.exception("the report of run %s could not be made", link.run)
    return Completed(message=ended_words(record, no_certificate))


@step(name="plan", task_run_name="plan")
def plan_sweep(sweep: _Sweep) -> dict[str, Any]:
    """The plan of the first level: rule, program, source and work are the same for all."""
    return dict(sweep.agent.call("run_plan", _timeout_s=120.0, spec=sweep.base.model_dump()))


def _message(report: SweepReport | None, why: str) -> str:
    if report is None:
        return why
    return report.sentence if report.state != UNFINISHED else f"{report.sentence} {why[:1].upper()}{why[1:]}"
