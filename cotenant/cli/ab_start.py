"""``protection ab start``: check, show the plan, ask, start the flow run, and watch it where wanted."""

from __future__ import annotations

import getpass
import secrets
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.options import NodeArg, YesFlag, settings
from cotenant.cli.result import OperationResult
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
    from cotenant.settings import Settings
    from policies.harness.spec import RunSpec

__all__ = ["follow", "register", "start_run"]


def register(ab: typer.Typer) -> None:
    @command(
        ab,
        "start",
        example="cotenant protection ab start local --rule trainer --work llmserve/selftest --feed llmserve/selftest --duty 0.3\n"
        "cotenant protection ab start local --rule trainer --work cpu --max-hours 4 --yes --watch",
    )
    def start(
        node: NodeArg,
        rule: RuleOption,
        work: WorkOption = WORK,
        duty: Annotated[
            float | None, typer.Option("--duty", help="Duty that the work holds in ON windows, 0 to 1.")
        ] = None,
        blocks: Annotated[
            int | None,
            typer.Option("--blocks", help="Planned blocks of one ON and one OFF window; 12, or what fits, by default."),
        ] = None,
        window: WindowOption = WINDOW_S,
        washout: WashoutOption = WASHOUT_S,
        margin: MarginOption = MARGIN,
        off: OffOption = Off.paused,
        max_hours: MaxHoursOption = MAX_HOURS,
        first_look: FirstLookOption = FIRST_LOOK,
        feed: FeedOption = FEED,
        null: Annotated[
            bool, typer.Option("--null", help="Both windows OFF: what this machine's noise alone shows.")
        ] = False,
        self_cost: Annotated[
            bool, typer.Option("--self", help="Measure the agent's own cost: OFF, its polling rests.")
        ] = False,
        accept_timed_source: TimedSourceFlag = False,
        yes: YesFlag = False,
        watch: WatchFlag = False,
    ) -> OperationResult:
        """Measure whether fleet work slows a protected program.

        Shows the plan (rule, program, source, work, hours, what is held and what may happen) and asks before anything
        starts. With --watch the exit code is the run's answer: 0 only for "no slowdown shown".
        """
        if null and self_cost:
            raise _bad("--null --self", "a run is one or the other", "give one of them")
        asked = run_parameters(
            node=node, rule=rule, work=work, window=window, washout=washout, margin=margin, off=off, max_hours=max_hours,
            first_look=first_look, feed=feed, accept_timed_source=accept_timed_source,
        )  # fmt: skip
        asked |= {
            "duty": duty,
            "kind": "null" if null else "self" if self_cost else "ab",
            "seed": secrets.randbits(31),
        }
        if blocks is not None:
            asked["blocks"] = blocks
        return start_run(settings(), checked_spec(asked), yes=yes, watch=watch)


def _bad(what: str, why: str, remedy: str) -> Exception:
    from policies.refusal import Refused

    return Refused("RUN_BAD_PARAMETER", what, why, remedy)


def checked_spec(asked: dict[str, Any]) -> RunSpec:
    """The spec, or ``Refused`` naming the option. Blocks that nobody asked for are as many as fit."""
    from pydantic import ValidationError

    from policies.harness.plan_text import planned_blocks
    from policies.harness.spec import RunSpec

    options = {"window_s": "--window", "washout_s": "--washout"}
    try:
        spec = RunSpec.model_validate(asked).checked()
        return spec if "blocks" in asked else spec.model_copy(update={"blocks": planned_blocks(spec)})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        option = options.get(name, "--" + name.replace("_", "-"))
        raise _bad(f"{option} {first['input']}", str(first["msg"]), "cotenant protection ab start --help") from error


def start_run(settings: Settings, spec: RunSpec, *, yes: bool, watch: bool) -> OperationResult:
    """The whole way from a checked spec to a running flow run (and to its end with ``watch``).

    Everything that can be refused is refused before anything starts: by the agent's plan, a Prefect server that does
    not answer, a review that is declined.
    """
    from cotenant.cli import fleet_link
    from cotenant.cli.agents import Agent
    from cotenant.cli.queued import refuse_second

    agent = Agent(settings, spec.node)
    plan = agent.ask("run_plan", spec=spec.model_dump(), _timeout_s=120.0)
    fleet = fleet_link.connect(settings)
    refuse_second(fleet.open_runs(), spec.node)
    show_plan(plan)
    ask(
        "Start this run?",
        yes=yes,
        what=f"a run on node {spec.node}",
        again="--yes, after reading the plan above",
    )
    refuse_second(fleet.open_runs(), spec.node)  # reading the plan took its time
    flow_run, run = fleet.start_ab(spec, f"{getpass.getuser()} ({'--yes' if yes else 'asked on a terminal'})")
    data = {"run": run, "flow_run_id": flow_run, "ui": fleet.ui_link(flow_run), "node": spec.node, "plan": plan}
    if not watch:
        return OperationResult(data, view=_started)
    print(f"run {run}, in the Prefect UI: {data['ui']}", file=sys.stderr, flush=True)
    return follow(settings, agent, run, lambda: fleet.why_ended(flow_run), extra=data)


def follow(
    settings: Settings,
    agent: Agent,
    run: str,
    flow_ended: Callable[[], str | None],
    extra: dict[str, Any] | None = None,
) -> OperationResult:
    """Watch a run to its end; its answer is the command's."""
    from cotenant.cli.report_view import ended_result
    from cotenant.cli.watching import Left, Watcher

    watcher = Watcher(agent, run, flow_ended, settings.watch_every_s, settings.flow_start_s)
    try:
        record = watcher.follow()
    except Left:
        return OperationResult(
            extra or {"node": agent.node},
            messages=[
                "",
                "the run goes on without this window; come back to it:",
                f"  cotenant protection ab status {agent.node} --watch",
            ],
        )
    return ended_result(record, extra)


def show_plan(plan: dict[str, Any]) -> None:
    """The plan as the reviewer reads it, on standard error (standard output is for the answer)."""
    from cotenant.cli.plan_view import plan_lines

    for line in plan_lines(plan):
        print(line, file=sys.stderr)
    sys.stderr.flush()


def _started(data: dict[str, Any]) -> list[str]:
    return [
        f"queued: run {data['run']}, flow run {data['flow_run_id']}; it begins when the node's worker takes it",
        f"  watch it:  cotenant protection ab status {data['node']} --watch",
        f"  in the UI: {data['ui']}",
    ]
