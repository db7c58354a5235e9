"""One block of a harness run: hold and grant, washouts, two counted windows, the dose, the watch for collapse.

The agent does and counts; it judges nothing but what must not wait for a flow: whether the block still measures what it
should, and whether the program collapsed. Source: ``harness.md`` (a run, step 3) and ``harness-statistics.md`` rules 2, 8, 9.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nodes.agent.left import Left
from nodes.agent.runs import ActiveRun, Now
from nodes.clock import monotonic_s, utc_iso
from policies.harness.collapse import CollapseWatch
from policies.harness.conditions import Conditions, disturbances
from policies.harness.dose import judge_dose
from policies.harness.rows import Arm, BlockRow, BlockState, LeftOut, Order, UnitDose, WindowRow
from policies.harness.validity import DEATHS, Happening, Part, foremost
from policies.rules import PidStart

if TYPE_CHECKING:
    from nodes.agent.core import Agent
    from nodes.agent.under_test import TestedUnit

__all__ = ["BlockRunner"]

log = logging.getLogger(__name__)

READY_WITHIN_S = 300.0
# harness.md: ON's washout begins when the work runs, at most five minutes after the switch.
WORK_STARTS_WITHIN_S = 300.0
# A hold that is not confirmed by then is carried out by stopping the work: OFF must be off.
HELD_WITHIN_S = 30.0
STOPPED_WITHIN_S = 120.0
# The share of the device that held work may still use (a runner that waits, its launcher); more is no OFF window.
OFF_SHARE, OFF_SHARE_OF_ON, OFF_SHARE_LEAST = 0.02, 0.1, 0.005
# How long a window waits for the event that closes its last step; then the open step counts as far as it got.
CLOSING_MIN_S, CLOSING_MAX_S = 2.0, 300.0


class _LeftOut(Exception):
    """The block no longer measures: what happened, all of it."""

    def __init__(self, *happened: tuple[LeftOut, str]) -> None:
        super().__init__(happened[0][1])
        self.happened = happened


class _Collapse(Exception):
    pass


@dataclass(slots=True)
class _Edge:
    """Readings at one edge of a window: the time, and the units under test with what they used so far."""

    at_s: float
    units: Mapping[str, TestedUnit]


class BlockRunner:
    """Measures block ``number`` of ``run``. ``measure`` answers with the row; it raises nothing but programming errors."""

    def __init__(self, agent: Agent, run: ActiveRun, number: int, order: Order) -> None:
        self.agent = agent
        self.run = run
        self.spec = run.spec
        self.number = number
        self.order = order
        self.arm: Arm = "on" if order == "on_first" else "off"
        self.started: Conditions | None = None
        # Whom a death speaks against: ON from its grant until OFF's window begins, also where the block ends before that; before the
        # first arm whom the block before left (none where its washout is over by then).
        self.speaks_for: Arm = "off" if run.left is None else run.left.arm
        self.windows: dict[Arm, WindowRow] = {}
        self.gaps: set[Arm] = (
            set()
        )  # whose window has a hole, though the source reads and the program's processes are all there
        self.members: frozenset[PidStart] = frozenset()  # the program's lasting processes when the arm began
        self.collapse: CollapseWatch | None = None
        self.waited_for_work_s: float | None = None
        self.before_arms = False
        self.part: Part = "waiting"

    async def measure(self) -> BlockRow:
        arms: tuple[Arm, Arm] = ("on", "off") if self.order == "on_first" else ("off", "on")
        try:
            await self._ready()
            for position, arm in enumerate(arms, 1):
                self.arm = arm
                await self._switch()
                await self._washout()
                self.windows[arm] = await self._window(1 if position == 1 else 2)
            return self._judged()
        except _LeftOut as left:
            return self._left_out(left)
        except _Collapse as collapse:
            return self._row("left_out", None, None, collapse=str(collapse))
        finally:
            if self.started is not None:
                self._leave(keep=False)  # kept behind the row, which tells what died
            self.run.in_arms = False
            self.run.part = "hold"
            self.run.resting = False
            self.run.now = Now()
            self.agent.sources_keep_since(self.spec.rule, None)
            self.agent.evaluate("tick")

    async def _ready(self) -> None:
        """A block begins under conditions that it can keep: with the program running and read, and no phase on.

        Waiting here (with the work held) also bounds how fast left-out blocks can follow each other.
        """
        self.run.part = "hold"
        self.agent.evaluate("tick")
        self._nothing_between()
        await self._until("waiting", monotonic_s() + READY_WITHIN_S, lambda run: self._not_ready(run) is None)
        why = self._not_ready(self.run)
        if why is not None:
            self.before_arms = True
            raise _LeftOut((why[0], f"not ready within {READY_WITHIN_S:.0f} s: {why[1]}"))
        self.started, self.run.in_arms = self.agent.conditions(self.run), True
        # the washout of the block before may have ended while this one waited
        self.speaks_for = "off" if self.run.left is None else self.run.left.arm

    def _leave(self, *, keep: bool = True) -> None:
        """Note the program as it is now. Nothing was awaited since it was judged last: no death falls between the two."""
        program = self.agent.conditions(self.run).program
        self.run.left = Left.now(program, self.speaks_for, self.spec.washout_s)
        try:
            self.agent.runs.note_left(self.run.run, self.run.left, keep=keep)
        except sqlite3.Error as error:  # known here all the same; lost only where this agent dies as well
            log.error("how block %d of run %s leaves the program cannot be kept: %s", self.number, self.run.run, error)

    def _nothing_between(self) -> None:
        """A program that died since the last block died in that block's last arm, or right after it: it counts there."""
        left = self.run.left
        if left is None:
            return
        now = self.agent.conditions(self.run)
        died = [found for found in disturbances(replace(now, program=left.program), now) if found[0] in DEATHS]
        if died:
            self.arm, self.part = left.arm, "closing"  # of the block before
            self.speaks_for = left.arm
            self._leave(keep=False)  # it is told once, and stays in the record until the row is kept
            raise _LeftOut(*((reason, f"before the block began: {detail}") for reason, detail in died))

    def _not_ready(self, run: ActiveRun) -> tuple[LeftOut, str] | None:
        now = self.agent.conditions(run)
        return (
            ("program_died", "the program does not run")
            if not now.program
            else next(iter(disturbances(now, now)), None)
        )

    # -- the parts of an arm ----------------------------------------------------------------------------------------

    async def _switch(self) -> None:
        """Hold or grant, and wait until it has taken effect: the work runs, or is seen held."""
        spec, run = self.spec, self.run
        if self.arm == "on":
            self.speaks_for = "on"
        self._leave()  # before the work may run: an agent that dies with the program leaves this behind
        self.members = self.agent.observer.members(spec.rule, spec.washout_s + spec.window_s)
        run.part = "grant" if self.arm == "on" and spec.kind == "ab" else "hold"
        run.resting = spec.kind == "self" and self.arm == "off"
        self.collapse = None
        self.agent.sources_keep_since(spec.rule, monotonic_s() - 60.0)
        code = "RUN_GRANT" if run.part == "grant" else "RUN_HOLD"
        self.agent.journal.write(code, {"run": run.run, "block": self.number, "arm": self.arm})
        if run.part == "grant":
            if spec.feed is not None:
                self.agent.under_test.begin_feed(run)
            began = monotonic_s()
            await self._until("waiting", began + WORK_STARTS_WITHIN_S, self.agent.under_test.runs_or_never_will)
            waited_s = monotonic_s() - began
            if not self.agent.under_test.runs(run):
                why = self.agent.under_test.why_not_running(run)
                raise _LeftOut(("no_dose", f"the work did not run within {waited_s:.0f} s: {why}"))
            self.waited_for_work_s = waited_s
            self._watch_for_collapse()
            return
        await self._until("waiting", monotonic_s() + HELD_WITHIN_S, self.agent.under_test.held)
        if not self.agent.under_test.held(run):
            self.agent.under_test.stop(run, "it did not hold when asked; OFF must be off")
            await self._until("waiting", monotonic_s() + STOPPED_WITHIN_S, self.agent.under_test.held)
        if not self.agent.under_test.held(run):
            limit_s = HELD_WITHIN_S + STOPPED_WITHIN_S
            raise _LeftOut(("not_held", f"the work could be neither held nor stopped within {limit_s:.0f} s"))

    async def _washout(self) -> None:
        await self._until("washout", monotonic_s() + self.spec.washout_s)

    async def _window(self, position: int) -> WindowRow:
        spec, agent, run = self.spec, self.agent, self.run
        # ON counts only what was beside the program: the same devices at both edges. OFF counts all there is.
        only = agent.program_devices(spec.rule) if run.part == "grant" else None
        self.speaks_for = self.arm
        self._leave()
        started_at, begin = utc_iso(), self._edge(None, only)
        if self.collapse is not None:
            self.collapse.window_began(begin.at_s, self.agent.progress(spec.rule).track)
        await self._until("window", begin.at_s + spec.window_s)
        end = self._edge(begin.at_s, only)
        track = agent.progress(spec.rule).track
        longest = track.longest_step_s
        limit_s = min(CLOSING_MAX_S, max(CLOSING_MIN_S, 2.0 * (longest or 0.0)))
        await self._until("closing", end.at_s + limit_s, lambda _run: track.count_between(begin.at_s, end.at_s).closed)
        # the arm has not been switched yet: what a late tick reads still is of this window's conditions
        program_on = agent.program_seen_on(spec.rule, begin.at_s)
        view = agent.progress(spec.rule)
        length_s = end.at_s - begin.at_s
        # The step that is still open when the wait is over counts as far as it got (rule 2).
        counted = view.track.count_between(begin.at_s, end.at_s, monotonic_s())
        # A window with a hole in it (a counter that restarted, lines that may be lost) has no count: unknown is not less.
        whole = view.readable and counted.void_s == 0.0 and counted.unknown_s == 0.0
        events = counted.events if whole else None
        # A source that begins anew as one of the program's processes ended (a worker below a launcher that stays) is no mere rotation.
        if view.readable and not whole and self.members <= agent.observer.members(spec.rule, 0.0):
            self.gaps.add(self.arm)
        ran_s = agent.under_test.ran_s(run, begin.at_s, end.at_s) if run.part == "grant" else 0.0
        units = self._units(begin, end, length_s)
        dosed = units
        if run.part == "grant" and agent.under_test.has_device_work(run):
            dosed = tuple(unit for unit in units if end.units[unit.attempt].device)
        shares = [unit.share for unit in dosed]
        unknown = next((u.unknown_reason for u in dosed if u.share is None), None)
        return WindowRow(
            run=run.run,
            block=self.number,
            arm=self.arm,
            position=1 if position == 1 else 2,
            started_at=started_at,
            started_mono_s=begin.at_s,
            length_s=length_s,
            events=events,
            rate=None if events is None else events / length_s,
            longest_step_s=view.track.longest_step_s,
            steps=view.track.steps_between(begin.at_s, end.at_s),
            work_ran_s=ran_s,
            dose=None if unknown is not None else sum(share for share in shares if share is not None),
            dose_unknown_reason=unknown,
            units=units,
            program_on=tuple(sorted(program_on)),
        )

    # -- waiting and watching ---------------------------------------------------------------------------------------

    async def _until(self, part: Part, until_s: float, done: Callable[[ActiveRun], bool] | None = None) -> None:
        """Wait until ``until_s`` (monotonic) or until ``done``; leave at once when the block no longer measures."""
        run = self.run
        self.part = part
        run.now = Now(self.number, self.arm, part, until_s)
        while True:
            self._check(part)
            now_s = monotonic_s()
            if now_s >= until_s or (done is not None and done(run)):
                return
            await self.agent.next_pulse(until_s - now_s)

    def _check(self, part: str) -> None:
        if self.run.ending is not None or self.agent.runs.active is not self.run:
            gone = self.run.ending in (None, "cut")
            cut: tuple[LeftOut, str] = (
                "cut",
                "the run's process went away" if gone else f"the run was {self.run.ending}",
            )
            raise _LeftOut(cut, *self._died())  # they may have died together
        if self.started is None:
            self._nothing_between()
            return
        spoiled = disturbances(self.started, self.agent.conditions(self.run))
        if spoiled:
            raise _LeftOut(*spoiled)
        if self.collapse is not None and part in ("washout", "window", "closing"):
            why = self.collapse.step(monotonic_s(), self.agent.progress(self.spec.rule).track)
            if why is not None:
                raise _Collapse(why)

    def _died(self) -> list[tuple[LeftOut, str]]:
        if self.started is None:
            return []
        return [each for each in disturbances(self.started, self.agent.conditions(self.run)) if each[0] in DEATHS]

    def _watch_for_collapse(self) -> None:
        """From here the work runs: hold the program to half of what it did without, or did in the reference."""
        record = self.agent.runs.record(self.run.run)
        windows = [row.off for row in self.agent.runs.blocks(self.run.run)] + [self.windows.get("off")]
        off_rates = [window.rate for window in windows if window is not None and window.rate is not None]
        reference = record["reference"]["rate"] if record.get("reference") else None
        self.collapse = CollapseWatch(off_rates, reference, self.spec.window_s)

    # -- readings ---------------------------------------------------------------------------------------------------

    def _edge(self, since_s: float | None, only: frozenset[str] | None) -> _Edge:
        return _Edge(monotonic_s(), self.agent.under_test.busy_totals(self.run, since_s, only))

    @staticmethod
    def _units(begin: _Edge, end: _Edge, length_s: float) -> tuple[UnitDose, ...]:
        """Metered share of each unit over the window: busy seconds over seconds times the cores its stage declares."""
        found = []
        for attempt, unit in end.units.items():
            share, why = None, None
            # A unit that started inside the window had used nothing before.
            first = begin.units[attempt].busy_s if attempt in begin.units else 0.0
            before = begin.units[attempt].by_device if attempt in begin.units else {}
            if isinstance(first, float) and isinstance(unit.busy_s, float):
                share = max(0.0, unit.busy_s - first) / (length_s * unit.cores)
            else:
                why = str(first if not isinstance(first, float) else unit.busy_s)
            found.append(
                UnitDose(
                    attempt=attempt,
                    module=unit.module,
                    stage=unit.stage,
                    digest=unit.digest,
                    model=unit.model,
                    model_file=unit.model_file,
                    share=share,
                    cores=unit.cores,
                    asked=unit.duty,
                    unknown_reason=why,
                    by_device={
                        device: max(0.0, busy_s - before.get(device, 0.0)) / (length_s * unit.cores)
                        for device, busy_s in unit.by_device.items()
                    },
                )
            )
        return tuple(found)

    # -- the row ----------------------------------------------------------------------------------------------------

    def _judged(self) -> BlockRow:
        on, off = self.windows["on"], self.windows["off"]
        if off.events is None or on.events is None:
            # The window that has no count names the arm, not the one that was measured last: harm must not be voided away.
            without: list[Arm] = [each.arm for each in (on, off) if each.events is None]
            dead = next((arm for arm in without if arm not in self.gaps), None)
            if dead is None:
                why = "the source was rotated, or its counter restarted, within the window: it has no whole count"
                return self._row("left_out", "source_gap", why, arm=without[0])
            return self._row(
                "left_out",
                "source_unreadable",
                "the source could not be read at a window's end, or began anew as one of the program's processes ended",
                arm=dead,
            )
        if off.events <= 0.0:
            return self._row("left_out", "no_off_progress", "the program made no progress in the OFF window", arm="off")
        if off.dose is None or off.dose > max(OFF_SHARE_LEAST, min(OFF_SHARE, OFF_SHARE_OF_ON * (on.dose or 0.0))):
            # An OFF window with work in it would make harm look like none.
            used = off.dose_unknown_reason if off.dose is None else f"{off.dose:.2f} of the device"
            return self._row("left_out", "not_held", f"the work used in the OFF window: {used}", arm="off")
        if self.spec.kind == "ab":
            dose = judge_dose(on, self.spec.duty)
            if not dose.held:
                return self._row("left_out", "no_dose", dose.why, arm="on")
        return self._row("counted", None, None)

    def _left_out(self, left: _LeftOut) -> BlockRow:
        """The reason that speaks against the work comes first; the others stand beside it, so that none is voided away."""
        arm = None if self.before_arms else self.arm
        seen = [Happening(reason, arm, None, detail) for reason, detail in left.happened]
        first = foremost(seen) or seen[0]
        row = self._row("left_out", first.reason, first.detail)
        also = [{"reason": other.reason, "arm": arm, "part": self.part} for other in seen if other is not first]
        return row.model_copy(update={"extra": row.extra | ({"also": also} if also else {})})

    def _row(
        self,
        state: BlockState,
        reason: LeftOut | None,
        detail: str | None,
        arm: Arm | None = None,
        collapse: str | None = None,
    ) -> BlockRow:
        extra: dict[str, Any] = {}
        if state != "counted":
            # what the rows before this one say cannot tell it: some ended before their second arm, some left a washout that is over
            extra |= {"part": self.part, "after_on": self.speaks_for == "on"}
        if self.waited_for_work_s is not None:
            extra["waited_for_work_s"] = round(self.waited_for_work_s, 3)
        return BlockRow(
            run=self.run.run,
            number=self.number,
            order=self.order,
            state="cut" if reason == "cut" else state,
            reason=reason,
            reason_arm=None if state == "counted" or self.before_arms else arm or self.arm,
            reason_detail=detail,
            collapse=collapse,
            on=self.windows.get("on"),
            off=self.windows.get("off"),
            extra=extra,
        )
