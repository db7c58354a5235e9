"""Watching a run: where it is now, in words, until it ends. R is shown at looks only; nothing is computed between them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

    from cotenant.cli.agents import Agent

__all__ = ["Left", "Watcher", "line_words", "look_words", "now_words"]

# Parts that last a moment: worth a place on a bar, not a line in a log.
PASSING = ("idle", "closing")
# The verdict of a pass is recomputed in a child process before a certificate is kept.
SETTLE_S = 180.0

STILL_WAITING = (
    "still waiting: its process has idle priority, which takes long where the machine is busy (cotenant status)"
)

PARTS = {
    "idle": "between steps",
    "reference": "reference, the work held",
    "waiting": "waiting for the work to switch",
    "washout": "washout",
    "window": "window",
    "closing": "waiting for the step that closes the window",
}


def step_words(status: dict[str, Any]) -> str:
    """Where the run is, without the seconds: ``block 5 of 12, ON, washout``."""
    if status["state"] == "ended":
        return f"ended: {status['ending']}"
    now = status.get("now")
    if not now:
        return "waits for its flow to go on"
    part = PARTS.get(now["part"], str(now["part"]))
    if now.get("block") is None:
        return part
    words = [f"block {_block_of(status)}"]
    if now.get("arm"):
        words.append(now["arm"].upper())
    return ", ".join([*words, part])


def line_words(status: dict[str, Any]) -> str:
    """For a log: changes with the step and the counts, not with the seconds."""
    return f"{step_words(status)}; {_counts(status)}"


def now_words(status: dict[str, Any]) -> str:
    """``block 5 of 12, ON, washout, 38 s left; 4 blocks counted; at most 36 more blocks, about 7.2 h``."""
    return f"{_timed_step(status)}; {_counts(status)}"


def _timed_step(status: dict[str, Any]) -> str:
    now = status.get("now") or {}
    words = step_words(status)
    if now.get("left_s") is not None:
        # A switch is over as soon as the work has switched: what is left of its time is a limit.
        words += f", {'at most ' if now.get('part') == 'waiting' else ''}{now['left_s']:.0f} s left"
    return words


def _block_of(status: dict[str, Any]) -> str:
    """The block that is being measured among those that count; left-out ones are repeated and do not."""
    from policies.harness.spec import RunSpec

    planned, current = _planned(status), status["counted"] + 1
    if current <= planned:
        return f"{current} of {planned}"
    return f"{current} (at most {RunSpec.model_validate(status['spec']).n_max})"


def _planned(status: dict[str, Any]) -> int:
    """Blocks as the plan said them."""
    from policies.harness.plan_text import planned_blocks
    from policies.harness.spec import RunSpec

    return planned_blocks(RunSpec.model_validate(status["spec"]))


def _counts(status: dict[str, Any]) -> str:
    """Blocks counted and left out so far, and how much is left at most; a block counts once both its windows are over."""
    from policies.harness.plan_text import left_words
    from policies.harness.spec import RunSpec

    counted, left_out = status["counted"], status["left_out"]
    words = f"{counted} {'block' if counted == 1 else 'blocks'} counted" if counted else "no block counted yet"
    if left_out:
        words += f", {left_out} left out"
    if status["state"] == "ended":
        return words
    left = left_words(RunSpec.model_validate(status["spec"]), counted, left_out)
    return f"{words}; {left}" if left else words


def look_words(look: dict[str, Any]) -> str:
    """``look at 8 blocks: relative speed (R) 99.6 % (90 % interval, valid at every look: 99.0–100.2 %), inconclusive``."""
    from policies.report.evidence import above_words

    words, above = f"look at {look['n']} blocks: relative speed (R) ", ""
    ratio, lo, hi = look.get("R"), look.get("lo"), look.get("hi")
    if ratio is None or lo is None or hi is None:
        words += "unknown"
    else:
        words += f"{100 * ratio:.1f} % (90 % interval, valid at every look: {100 * lo:.1f}–{100 * hi:.1f} %)"
        above = above_words(ratio, lo, hi)
    words += f", {look['verdict']}" + (f"; {above}" if above else "")
    if look["verdict"] == "inconclusive" and look.get("more_blocks"):
        words += f"; about {look['more_blocks']} more blocks may decide it"
    return words


class Left(Exception):
    """The watcher went away (Ctrl-C); the run goes on."""


@dataclass
class Watcher:
    """Follows one run on its agent and says each change on standard error.

    Args:
        agent: the node's agent.
        run: the run's name; the agent knows it once its flow has begun.
        flow_ended: why the flow will not reach the agent any more, or None while it may.
    """

    agent: Agent
    run: str
    flow_ended: Callable[[], str | None]
    every_s: float
    start_within_s: float
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    _said_step: str = ""
    _said_looks: int = 0
    _progress: Progress | None = field(default=None, repr=False)

    def follow(self) -> dict[str, Any]:
        """Watch to the end and give the RunRecord.

        Raises:
            Left: Ctrl-C.
            Refused: the flow ended without the agent's having run anything, or the agent never saw it.
        """
        try:
            self._await_start()
            with self._bar():
                status = self._status()
                while status["state"] != "ended":
                    self._show(status)
                    time.sleep(self.every_s)
                    status = self._status()
                self._show(status)
                return self._settled()
        except KeyboardInterrupt:
            raise Left from None

    def _known(self) -> bool:
        from policies.refusal import Refused

        try:
            self.agent.ask("run_show", run=self.run)
        except Refused as refused:
            if refused.code != "RUN_UNKNOWN":
                raise
            return False
        return True

    def _await_start(self) -> None:
        from policies.refusal import Refused

        since = time.monotonic()
        hints = iter(((0.0, "submitted; waiting for the node's worker to start it"), (60.0, STILL_WAITING)))
        hint = next(hints, None)
        while not self._known():
            if (
                why := self.flow_ended()
            ) and not self._known():  # it may have begun and ended between the two questions
                what = f"run {self.run}"
                raise Refused(
                    "RUN_NOT_STARTED", what, f"its flow ended before it began: {why}", "see the flow run's logs"
                )
            if time.monotonic() - since > self.start_within_s:
                raise Refused(
                    "RUN_NOT_STARTED",
                    f"run {self.run}",
                    f"the agent has not seen it for {self.start_within_s:g} s; it stays queued until the node's worker takes it",
                    "cotenant status shows whether the worker runs",
                )
            if hint is not None and time.monotonic() - since >= hint[0]:
                self.say(hint[1])
                hint = next(hints, None)
            time.sleep(min(self.every_s, 1.0))

    def _settled(self) -> dict[str, Any]:
        """The record with its certificate: a pass is offered after the run has ended, and judged by the agent anew."""
        from policies.harness.verdict import PASS

        until = time.monotonic() + SETTLE_S
        while True:
            record = dict(self.agent.ask("run_show", run=self.run))
            asked = record["ending"] == PASS and record["spec"]["kind"] == "ab"
            answered = record.get("certificate") or record.get("certificate_refused")
            if not asked or answered or time.monotonic() >= until or self.flow_ended():
                return dict(self.agent.ask("run_show", run=self.run))
            time.sleep(min(self.every_s, 1.0))

    def _status(self) -> dict[str, Any]:
        """The agent's answer. An agent that restarts is waited for: the run goes on when it is back."""
        from cotenant.cli.failures import Unreachable

        until = time.monotonic() + self.start_within_s
        while True:
            try:
                return dict(self.agent.ask("run_status", run=self.run))
            except Unreachable:
                if time.monotonic() >= until:
                    raise
                time.sleep(self.every_s)

    def _show(self, status: dict[str, Any]) -> None:
        for look in status["looks"][self._said_looks :]:
            self.say(look_words(look))
        self._said_looks = len(status["looks"])
        if self._progress is not None:
            planned = max(_planned(status), status["counted"])
            # two lines: the seconds of the step come and go without moving what stands under them
            words = f"{_timed_step(status)}\n{_counts(status)}"
            self._progress.update(
                self._progress.task_ids[0], completed=status["counted"], total=planned, description=words
            )
            return
        step = line_words(status)
        passing = (status.get("now") or {}).get("part") in PASSING
        if step != self._said_step and not passing:
            self._said_step = step
            self.say(step)

    def _bar(self) -> Any:
        from contextlib import nullcontext

        if not sys.stderr.isatty():
            return nullcontext()
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.table import Column

        from cotenant.cli.render import console

        out = console(sys.stderr)
        words = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
        # no clock: it would count the watching, not the run, beside words that say how much of the run is left
        self._progress = Progress(SpinnerColumn("line"), BarColumn(bar_width=8), words, console=out)
        self._progress.add_task("", total=None)
        self.say = lambda line: out.print(line, markup=False)
        return self._progress
