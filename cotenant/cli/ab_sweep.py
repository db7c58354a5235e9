"""``protection ab sweep``: find the highest duty that does no harm, and the report of such a sweep."""

from __future__ import annotations

import getpass
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.options import NodeArg, YesFlag, settings
from cotenant.cli.result import Exit, OperationResult
from cotenant.cli.review import ask
from cotenant.cli.run_options import (
    FEED,
    FIRST_LOOK,
    MARGIN,
    MAX_HOURS,
    WASHOUT_S,
    WINDOW_S,
    WORK,
    FeedOption,
    FirstLookOption,
    MarginOption,
    MaxHoursOption,
    Off,
    OffOption,
    RuleOption,
    TimedSourceFlag,
    WashoutOption,
    WatchFlag,
    WindowOption,
    WorkOption,
    run_parameters,
)

if TYPE_CHECKING:
    from cotenant.cli.agents import Agent
    from cotenant.cli.fleet_link import Fleet
    from cotenant.settings import Settings

__all__ = ["SWEEP_PREFIX", "register", "show_sweep"]

SWEEP_PREFIX = "sweep-"
DEPLOYMENT = "duty-sweep/duty-sweep"


def register(ab: typer.Typer) -> None:
    @command(
        ab,
        "sweep",
        example="cotenant protection ab sweep local --rule trainer --work llmserve/selftest --feed llmserve/selftest\n"
        "cotenant protection ab sweep local --rule trainer --work cpu --window-of-day 22:00-06:30 --yes",
    )
    def sweep(
        node: NodeArg,
        rule: RuleOption,
        work: WorkOption = WORK,
        levels: Annotated[
            str | None,
            typer.Option("--levels", help="Duties to try, ascending, with commas; 0.1 to 1.0 in seven steps else."),
        ] = None,
        window_of_day: Annotated[
            str,
            typer.Option("--window-of-day", metavar="HH:MM-HH:MM", help="Your hours, in the node's local time."),
        ] = "",
        max_hours: MaxHoursOption = MAX_HOURS,
        window: WindowOption = WINDOW_S,
        washout: WashoutOption = WASHOUT_S,
        margin: MarginOption = MARGIN,
        off: OffOption = Off.paused,
        first_look: FirstLookOption = FIRST_LOOK,
        feed: FeedOption = FEED,
        accept_timed_source: TimedSourceFlag = False,
        yes: YesFlag = False,
        watch: WatchFlag = False,
    ) -> OperationResult:
        """Measure one duty after the other and stop at the first that slows the program.

        The highest that passes is certified. With --window-of-day it runs in these hours only; the same command on the next
        night goes on with the next duty. With --watch the exit code is 0 where at least one duty is certified.
        """
        from cotenant.cli.ab_start import checked_spec
        from policies.harness.hours import parse_hours
        from policies.harness.sweep import LEVELS, check_levels

        tried = check_levels(_numbers(levels)) if levels is not None else LEVELS
        if window_of_day:
            parse_hours(window_of_day)
        asked = run_parameters(
            node=node, rule=rule, work=work, window=window, washout=washout, margin=margin, off=off, max_hours=max_hours,
            first_look=first_look, feed=feed, accept_timed_source=accept_timed_source,
        )  # fmt: skip
        spec = checked_spec(asked | {"duty": tried[0]})
        parameters = asked | {"levels": list(tried), "window": window_of_day, "feed": feed or ""}
        return _start(settings(), spec.model_dump(), parameters, yes=yes, watch=watch)


def _numbers(text: str) -> list[float]:
    from policies.refusal import Refused

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise Refused(
            "SWEEP_BAD_LEVELS", f"--levels {text}", "it is no list of numbers", "for example: --levels 0.1,0.2,0.35"
        ) from None


def _start(
    in_force: Settings, spec: dict[str, Any], parameters: dict[str, Any], *, yes: bool, watch: bool
) -> OperationResult:
    """Plan, show, ask, start; what can be refused is refused before anything starts."""
    from cotenant import fleet as fleet_side
    from cotenant.cli import fleet_link
    from cotenant.cli.ab_start import show_plan
    from cotenant.cli.agents import Agent
    from cotenant.cli.queued import refuse_second
    from policies.harness.names import sweep_name

    node = str(parameters["node"])
    agent = Agent(in_force, node)
    plan = agent.ask("run_plan", spec=spec, _timeout_s=120.0)
    fleet = fleet_link.connect(in_force)
    refuse_second(fleet.open_runs(), node)
    hours = parameters["window"] or "any hours"
    print(
        f"a sweep of {len(parameters['levels'])} levels ({', '.join(f'{each:g}' for each in parameters['levels'])}), "
        f"in {hours}; it stops at the first that does not pass. The first level:",
        file=sys.stderr,
    )
    show_plan(plan)
    ask("Start this sweep?", yes=yes, what=f"a sweep on node {node}", again="--yes, after reading the plan above")
    refuse_second(fleet.open_runs(), node)  # reading the plan took its time
    who = f"{getpass.getuser()} ({'--yes' if yes else 'asked on a terminal'})"
    flow_run = fleet_side.run_flow(fleet.url, DEPLOYMENT, parameters | {"reviewed": True, "reviewed_by": who}, node)
    data = {
        "sweep": sweep_name(flow_run),
        "flow_run_id": flow_run,
        "ui": fleet.ui_link(flow_run),
        "node": node,
        "plan": plan,
    }
    if not watch:
        return OperationResult(data, view=_started)
    print(f"sweep in the Prefect UI: {data['ui']}", file=sys.stderr, flush=True)
    return _follow(in_force, agent, fleet, data)


def _started(data: dict[str, Any]) -> list[str]:
    return [
        f"queued: flow run {data['flow_run_id']}; it begins when the node's worker takes it",
        f"  the level that runs: cotenant protection ab status {data['node']} --watch",
        f"  its report so far:   cotenant protection ab show {data['sweep']}",
        f"  in the UI:           {data['ui']}",
    ]


def _follow(in_force: Settings, agent: Agent, fleet: Fleet, data: dict[str, Any]) -> OperationResult:
    """Say each step of each level until the flow run ends."""
    from cotenant.cli.failures import Unreachable
    from cotenant.cli.watching import line_words

    said = ""
    try:
        while (why := fleet.why_ended(data["flow_run_id"])) is None:
            try:
                status = agent.ask("run_status")
            except Unreachable:
                status = None
            if status is not None:
                words = f"duty {status['spec']['duty']:g}: {line_words(status)}"
                if words != said:
                    said = words
                    print(words, file=sys.stderr, flush=True)
            time.sleep(in_force.watch_every_s)
    except KeyboardInterrupt:
        return OperationResult(
            data,
            messages=["", "the sweep goes on without this window; its report so far:", f"  cotenant protection ab show {data['sweep']}"],
        )  # fmt: skip
    print(why, file=sys.stderr, flush=True)
    return show_sweep(in_force, data["sweep"], extra=data, else_say=why)


def show_sweep(
    in_force: Settings, sweep: str, *, extra: dict[str, Any] | None = None, else_say: str | None = None
) -> OperationResult:
    """The report of a sweep, from its levels' records. Exit code 0 where at least one level is certified."""
    from cotenant.cli.runs import find_run
    from policies.harness.sweep import level_run
    from policies.refusal import Refused
    from policies.report.sweep import sweep_report, sweep_text

    records: list[dict[str, Any]] = []
    while True:
        try:
            records.append(find_run(in_force, level_run(sweep, len(records))).record)
        except Refused as refusal:
            if refusal.code != "RUN_UNKNOWN":
                raise
            break
    if not records:
        # A night that went on with an earlier sweep has none of its own.
        if else_say is not None:
            return OperationResult(extra, messages=[else_say], exit_code=Exit.OTHER_ANSWER)
        raise Refused("SWEEP_UNKNOWN", f"sweep {sweep}", "no level of it is known here", "cotenant protection ab list")
    report = sweep_report(records)
    return OperationResult(
        (extra or {}) | report.as_dict(),
        exit_code=Exit.DONE if report.certified is not None else Exit.OTHER_ANSWER,
        view=lambda _: sweep_text(report),
    )
