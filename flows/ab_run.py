"""The flow ``ab-run``: measure what fleet work costs a protected program. One run of the paired ON/OFF harness.

The agent measures, this flow asks for one block after the other and judges; while a window is counted it only waits on
the agent's socket. It may be killed, retried or started again at any time: the agent's journal says what was measured.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import TerminationSignal
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Failed, State
from pydantic import Field

from cotenant.settings import Settings
from nodes.client import AgentUnreachable
from nodes.identity import own_id
from nodes.zone import local_zone
from policies.harness.hours import HOURS_PATTERN, Hours, parse_hours
from policies.harness.names import run_name
from policies.harness.schedule import longest_s
from policies.harness.spec import RunSpec
from policies.harness.sweep import level_hours
from policies.harness.verdict import PASS
from policies.refusal import Refused
from tasks.agent_link import AgentLost, Link, connect
from tasks.artifacts import artifact_key, show_progress, unless_away
from tasks.cancelled import is_cancelled
from tasks.keep import Keeper
from tasks.measure import Outcome, Steps, begin, finish, measure
from tasks.publish import publish
from tasks.quiet import watch_rarely
from tasks.review import plan_markdown, reviewed_by_whom
from tasks.words import ended_words, percent, progress_words, refused_words

__all__ = ["ab_run", "seed_of"]

watch_rarely()

# Prefect stores no result of these steps: after a crash the agent's journal is asked, not a cache.
step = task(cache_policy=NO_CACHE, persist_result=False)


def seed_of(flow_run_id: str) -> int:
    """A seed for the coins where none was given; recorded with the run, the same after a restart."""
    return int.from_bytes(hashlib.sha256(f"seed {flow_run_id}".encode()).digest()[:6], "big")


@flow(name="ab-run", persist_result=False)
def ab_run(
    node: str,
    rule: str,
    work: str = "gpu",
    duty: Annotated[float, Field(gt=0.0, le=1.0)] | None = None,
    blocks: Annotated[int, Field(ge=1)] = 12,
    window_s: Annotated[float, Field(ge=5.0)] = 300.0,
    washout_s: Annotated[float, Field(ge=0.0)] = 60.0,
    margin: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.02,
    off: Literal["paused", "evicted"] = "paused",
    max_hours: Annotated[float, Field(gt=0.0)] = 8.0,
    window: Annotated[str, Field(pattern=HOURS_PATTERN)] = "",
    first_look: Annotated[int, Field(ge=8, multiple_of=4)] = 8,
    feed: str | None = None,
    kind: Literal["ab", "null", "self"] = "ab",
    accept_timed_source: bool = False,
    reviewed: bool = False,
    seed: Annotated[int, Field(ge=0)] | None = None,
    reviewed_by: str = "",
) -> State[Any]:
    """Measure what fleet work costs a protected program, with work on and off in random order.

    Args:
        node: The node to measure on, by its name in the fleet (cotenant node list --fleet).
        rule: The rule of the node's protection section whose program is protected.
        work: The fleet work under test: gpu, cpu, all, a module, or MODULE/STAGE.
        duty: The share of each second that cooperative work keeps the device busy in ON windows; empty for uncapped.
        blocks: Planned blocks of one ON and one OFF window. The run goes on past it while undecided.
        window_s: Length of a counted window, in seconds.
        washout_s: Seconds thrown away after each switch.
        margin: The slowdown that counts, as a fraction (0.02 is 2 %).
        off: How the work is held in the windows without it: paused, or evicted to free its memory too.
        max_hours: Hours of windows and washouts at most; what switching between them takes comes on top.
        window: Your hours in the node's local time, like 22:00-06:30. The run starts and ends in them; empty for any hours.
        first_look: The first number of counted blocks at which it is judged; higher sees rarer harm.
        feed: MODULE/STAGE, or MODULE/STAGE@MODEL, that keeps the ON windows loaded; its results are thrown away.
        kind: ab for a measurement, null for an A/A check (no work at all), self for what this product itself costs.
        accept_timed_source: Accept a source whose lines come on a timer; earns a demonstration certificate at most.
        reviewed: The plan was reviewed already: do not ask. For schedules and the command line.
        seed: Seed of the coins that order the windows; empty or 0 for a fresh one.
        reviewed_by: Who reviewed it, where reviewed is set.
    """
    log = get_run_logger()
    flow_run_id = str(flow_run.id)
    spec = RunSpec(
        node=node, rule=rule, work=work, duty=duty, blocks=blocks, window_s=window_s, washout_s=washout_s, margin=margin,
        off=off, max_hours=max_hours, first_look=first_look, feed=feed, kind=kind,
        accept_timed_source=accept_timed_source, seed=seed or seed_of(flow_run_id),
    )  # fmt: skip
    settings = Settings.from_env()
    link = Link(connect(node), run_name(flow_run_id), spec, own_id(), flow_run_id=flow_run_id)
    try:
        hours = parse_hours(window) if window.strip() else None
        spec.checked()
        known = link.known()
        if hours is not None:
            link.spec = fitted(spec, hours) if known is None else RunSpec.model_validate(known["spec"])
        if known is None:
            answer = reviewed_by_whom(plan_markdown(plan_run(link)), reviewed, reviewed_by)
            if isinstance(answer, State):
                return answer
            link.reviewed_by = answer
        else:
            link.reviewed_by = known["reviewed_by"]
        keeper = Keeper(settings.store, log)
        steps = Steps(take_reference, take_block, showing(link, keeper), until_the_end_of(hours, link.spec))
        record, no_certificate = drive(link, steps)
        if not keeper.keep_at_the_end(record):
            log.warning("the store is away; the node's worker copies run %s when it is back", link.run)
    except Refused as refusal:
        return Failed(name="Refused", message=refused_words(refusal))
    except (AgentLost, AgentUnreachable) as gone:
        return Failed(message=f"{gone}. Run {link.run} is open: retry this flow run when the agent is back")
    message = ended_words(record, no_certificate)
    try:
        publish_report(record, str(settings.reports))
    except Exception as error:
        log.exception("the report of run %s could not be made", link.run)
        message += f" (its report could not be made: {error}; try cotenant protection ab show {link.run})"
    return Completed(message=message)


def fitted(spec: RunSpec, hours: Hours) -> RunSpec:
    """The spec of a run that begins now: no longer than what is left of the owner's hours.

    Raises:
        Refused: its first look does not fit in.
    """
    now, zone = datetime.now(UTC), local_zone()
    fit = spec.model_copy(update={"max_hours": max(level_hours(spec.max_hours, hours, now, zone), 1e-6)})
    if fit.n_max >= fit.first_look:
        return fit
    need_h, left_h = fit.first_look * fit.block_s / 3600.0, hours.left_s(now, zone) / 3600.0
    raise Refused(
        "RUN_OUT_OF_HOURS",
        f"a run in the hours {hours}",
        f"{left_h:.1f} h of them are left, and its {fit.first_look} blocks take {need_h:.1f} h",
        "start it earlier in them, or give longer hours or shorter windows",
    )


def until_the_end_of(hours: Hours | None, spec: RunSpec) -> Callable[[float], float | None]:
    """From the seconds measured so far, after how many no block may end: the run's own limit, or where the owner's hours
    that it is now in end, and what switching adds to a run in them. One that goes on outside of them begins no block more.
    """
    if hours is None:
        return lambda measured_s: None
    span = hours.span(datetime.now(UTC), local_zone())
    if span is None:
        return lambda measured_s: measured_s
    until = span.end + timedelta(seconds=longest_s(spec) - 3600.0 * spec.max_hours)

    def limit_s(measured_s: float) -> float:
        return min(longest_s(spec), measured_s + (until - datetime.now(UTC)).total_seconds())

    return limit_s


def drive(link: Link, steps: Steps) -> tuple[dict[str, Any], Refused | None]:
    """Begin or go on, measure, end.

    Every way out of here ends the run, but for two that leave it open on purpose: the agent stayed away, or this process
    is ended without the flow run being cancelled (a shutdown). It goes on later; its hold ends with this process.
    """
    record, ended = begin_run(link)
    if ended is not None and record["state"] == "ended":
        # A pass that nobody has offered yet: the process that ended it died on the way to the agent.
        refused = record.get("certificate_refused") and record.get("certificate_refused_for") != "later"
        offered = record.get("certificate") or refused
        return (record, None) if ended.ending != PASS or offered else end_run(link, ended)
    try:
        outcome = ended or measure(link, steps)
    except TerminationSignal:
        if is_cancelled(link.flow_run_id):
            link.end("aborted", "the flow run was cancelled", None)
        elif deployment.id:
            # A shutdown, or somebody's kill. Prefect would report the run as crashed, which is final; a process that is
            # just gone is put back by its worker, now or after the reboot.
            os.kill(os.getpid(), signal.SIGKILL)
        raise
    except AgentLost:
        raise
    except Refused as refusal:
        outcome = Outcome("refused", refused_words(refusal), None)
    except Exception as error:
        link.end("interrupted", f"the flow failed: {type(error).__name__}: {error}", None)
        raise
    return end_run(link, outcome)


def showing(link: Link, keeper: Keeper) -> Callable[[dict[str, Any]], None]:
    """Between blocks: rows into the store, the progress bar on. Nothing of this while a window is counted."""
    shown: UUID | None = None

    def seen(record: dict[str, Any]) -> None:
        nonlocal shown
        keeper.keep(record)
        with unless_away(keeper.log):
            key = artifact_key("ab", link.run, "progress")
            shown = show_progress(key, percent(record), progress_words(record), shown)

    return seen


@step(name="plan", task_run_name="plan")
def plan_run(link: Link) -> dict[str, Any]:
    return link.plan()


@step(name="begin", task_run_name="begin")
def begin_run(link: Link) -> tuple[dict[str, Any], Outcome | None]:
    return begin(link)


@step(name="reference", task_run_name="reference")
def take_reference(link: Link) -> dict[str, Any]:
    return link.reference()


@step(name="run_block", task_run_name="block {number} {order}")
def take_block(link: Link, number: int, order: str) -> dict[str, Any] | None:
    return link.block(number, order)


@step(name="end", task_run_name="end")
def end_run(link: Link, outcome: Outcome) -> tuple[dict[str, Any], Refused | None]:
    return finish(link, outcome)


@step(name="report", task_run_name="report")
def publish_report(record: dict[str, Any], folder: str) -> dict[str, str]:
    return publish(record, Path(folder))
