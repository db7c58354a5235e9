"""What a flow asks while it runs a harness run: begin or resume, the reference, one block after the other, looks."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

from nodes.agent.block import BlockRunner
from nodes.agent.revoking import settle
from nodes.clock import monotonic_s, utc_iso
from nodes.identity import ProcessId, liveness
from policies.certificate import Fingerprint, other_program
from policies.harness.kept import WHY_DAMAGED, is_damaged
from policies.harness.rows import BlockRow, Order
from policies.harness.schedule import coin
from policies.harness.spec import RunSpec
from policies.harness.verdict import Verdict
from policies.refusal import Refused
from policies.section import digest as section_digest

if TYPE_CHECKING:
    from nodes.agent.active_run import ActiveRun
    from nodes.agent.core import Agent
    from nodes.agent.plan import Planner
    from nodes.agent.subject import Subject
    from nodes.rpc import Peer

__all__ = ["Measurer"]

log = logging.getLogger(__name__)

HELD_WITHIN_S = 150.0
# Blocks in a row that may be lost before they began (the agent went away); more would be choosing coins.
SKIPPED_AT_MOST = 3
# A process that comes beside the program for so long is no other program; one that stays is.
OTHER_PROGRAM_FOR_S = 30.0
# A journal that takes nothing (a full disk) is asked again so often.
KEEP_AGAIN_S = 2.0
# What a run's record must have, so that it can be told whether it goes on under the same.
_COMPARED = {"fingerprint", "work", "section_digest", "agent_version"}


class Measurer:
    def __init__(self, agent: Agent, planner: Planner, subject: Subject) -> None:
        self.agent = agent
        self.planner = planner
        self.subject = subject
        self._blocks: dict[tuple[str, int], asyncio.Task[BlockRow]] = {}

    async def begin(
        self,
        run: str,
        spec: RunSpec,
        holder: ProcessId,
        reviewed_by: str,
        flow_run_id: str | None,
        sweep: dict[str, Any] | None = None,
        *,
        free: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Take the run lock. Everything that could only fail later is checked here again: time passed since the plan.

        ``free`` refuses where something is under way that a run cannot stand.
        """
        runs = self.agent.runs
        runs.check_free(run, holder)
        old = self.agent.journal.run(run)
        if old is not None and old["state"] == "open" and (is_damaged(old) or not old.keys() >= _COMPARED):
            raise Refused(
                "RUN_CHANGED", f"run {run}", f"it cannot go on: {WHY_DAMAGED}", "start a new run", {"changed": []}
            )
        facts = await self.subject.facts(spec, old)
        if old is None:
            await self.planner.plan(spec, holder)
            runs.check_free(run, holder)
        facts |= {"reviewed_by": reviewed_by, "flow_run_id": flow_run_id, "sweep": sweep}
        free()
        if facts["section_digest"] != section_digest(self.agent.section_text):
            why = "the protection section was set while the run began"
            raise Refused("RUN_SECTION_SET", f"run {run}", why, "start it again")
        resumed = runs.begin(run, spec, holder, facts)
        if resumed:
            runs.close_started_blocks(run)
        self.agent.evaluate("tick")
        return {"resumed": resumed, "run": runs.record(run)}

    async def reference(self, run: str) -> dict[str, Any]:
        """The rate with the work held, for the watch for collapse only. Kept: a resumed run does not measure it twice."""
        agent, active = self.agent, self.agent.runs.need_active(run)
        kept = agent.runs.record(run)["reference"]
        if kept is not None:
            return dict(kept)
        active.part = "hold"
        agent.evaluate("tick")
        held = await self._wait(active, "waiting", HELD_WITHIN_S, held=True)
        if not held:
            agent.under_test.stop(active, "it did not hold for the reference")
            held = await self._wait(active, "waiting", HELD_WITHIN_S, held=True)
        begin_s = monotonic_s()
        agent.sources_keep_since(active.spec.rule, begin_s - 60.0)
        await self._wait(active, "reference", active.spec.reference_s, held=False)
        active.now.part, active.now.until_s = "idle", None
        active.asks()
        view, end_s = agent.progress(active.spec.rule), monotonic_s()
        # A rate beside work that could be neither held nor stopped is no reference; OFF windows will say why they fail.
        events = view.track.count_between(begin_s, end_s, end_s).events if view.readable and held else None
        rate = None if events is None else events / (end_s - begin_s)
        found = {
            "rate": rate,
            "length_s": end_s - begin_s,
            "longest_step_s": view.track.longest_step_s,
            "at": utc_iso(),
            "held": held,
        }
        agent.runs.change(run, reference=found)
        agent.journal.write("RUN_REFERENCE", {"run": run, **found})
        return found

    async def _wait(
        self, active: ActiveRun, part: Literal["waiting", "reference"], limit_s: float, *, held: bool
    ) -> bool:
        """Wait ``limit_s``, or until the work is held. Refused when the run ends meanwhile."""
        until_s = monotonic_s() + limit_s
        active.now.part, active.now.until_s = part, until_s
        while monotonic_s() < until_s:
            if held and self.agent.under_test.held(active):
                return True
            self.agent.runs.need_active(active.run)
            await self.agent.next_pulse(until_s - monotonic_s())
        return False

    async def block(self, run: str, number: int, order: Order, peer: Peer) -> dict[str, Any]:
        """Measure block ``number``, or give its row when it is journaled. A block that runs is joined, not run twice."""
        active = self.agent.runs.need_active(run)
        kept = self._kept(run, number)
        if kept is None and (run, number) not in self._blocks:
            await self._check_same_program(run)
            active, kept = self.agent.runs.need_active(run), self._kept(run, number)
        if kept is not None:
            return kept
        if order not in ("on_first", "off_first"):
            raise Refused(
                "RUN_BAD_PARAMETER", f"order {order!r}", "it is on_first or off_first", "give the coin's order"
            )
        key = (run, number)
        if active.measuring not in (None, number):
            raise Refused("RUN_LOCKED", f"block {number}", f"block {active.measuring} is being measured", "wait for it")
        if key not in self._blocks:
            # A number may be skipped (its coin was tossed for a block that never began), never used again.
            expected = self.agent.runs.next_number(run)
            if not expected <= number <= expected + SKIPPED_AT_MOST:
                raise Refused(
                    "RUN_BAD_PARAMETER", f"block {number}", f"the next block of run {run} is {expected}", "ask for that"
                )
            tossed = coin(active.spec.seed, number)
            if order != tossed:
                raise Refused(
                    "RUN_BAD_PARAMETER",
                    f"order {order}",
                    f"the coin of block {number} says {tossed}",
                    "the coin decides",
                )
            self.agent.runs.note_started(run, number, order)
            active.measuring = number
            self._blocks[key] = asyncio.create_task(self._measure(active, number, order))
        task = self._blocks[key]
        gone = asyncio.create_task(peer.gone.wait())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not task.done():
            # The caller hung up. When its process is gone the run lets go now, and not at the next tick.
            if liveness(active.holder) == "gone":
                self.agent.runs.release_if_gone()
                self.agent.pulse()
            raise ConnectionError("the caller hung up")
        return task.result().model_dump()

    def _kept(self, run: str, number: int) -> dict[str, Any] | None:
        return next((row.model_dump() for row in self.agent.runs.blocks(run) if row.number == number), None)

    async def _check_same_program(self, run: str) -> None:
        """Refused with RUN_CHANGED where another program runs than the one that the run's record names."""
        until_s = monotonic_s() + OTHER_PROGRAM_FOR_S
        while changed := await self._other_program(run):
            if monotonic_s() >= until_s:
                why = "it cannot go on, since what it measures changed: " + "; ".join(changed)
                raise Refused("RUN_CHANGED", f"run {run}", why, "start a new run", {"changed": changed})
            self.agent.runs.need_active(run)
            await self.agent.next_pulse(until_s - monotonic_s())

    async def _other_program(self, run: str) -> list[str]:
        """What of the program that the record names runs otherwise now, or cannot be told; a program that is gone is none."""
        record = self.agent.runs.record(run)
        now_print = await self.subject.fingerprint(record["spec"]["rule"])
        return other_program(Fingerprint.model_validate(record["fingerprint"]), now_print)

    async def _measure(self, active: ActiveRun, number: int, order: Order) -> BlockRow:
        agent = self.agent
        try:
            row = await BlockRunner(agent, active, number, order).measure()
            if row.state == "counted" and (changed := await self._other_program(active.run)):
                # the same process as another program (it may replace itself), or one that cannot be told any more
                facts = {"state": "left_out", "reason": "program_restarted", "reason_detail": "; ".join(changed)}
                row = row.model_copy(update=facts)
            await self._keep(row)
            self._keep_left(active)
            code = {"counted": "RUN_BLOCK", "left_out": "RUN_BLOCK_LEFT_OUT", "cut": "RUN_BLOCK_CUT"}[row.state]
            agent.journal.write(
                code,
                {
                    "run": active.run,
                    "block": number,
                    "order": order,
                    "on": row.on.rate if row.on else None,
                    "off": row.off.rate if row.off else None,
                    "dose": row.on.dose if row.on else None,
                    "reason": row.reason,
                    "detail": row.reason_detail or row.collapse,
                },
            )
            return row
        finally:
            active.measuring = None
            agent.runs.cut.discard(active.run)
            active.asks()
            self._blocks.pop((active.run, number), None)
            if agent.runs.active is not active:
                settle(agent, active.run)

    async def _keep(self, row: BlockRow) -> None:
        """Into the journal, as soon as it takes it: a block that shows harm must not be lost to a disk that is full for a while."""
        runs, said = self.agent.runs, False
        while True:
            try:
                runs.keep_block(row)
                return
            except sqlite3.IntegrityError:
                raise  # its number has a row already: no later try can keep it
            except sqlite3.Error as error:
                if not said:
                    log.error("block %d of run %s cannot be kept yet: %s", row.number, row.run, error)
                said = True
            await asyncio.sleep(KEEP_AGAIN_S)
            if runs.unkept.get(row.run) is not row:
                return  # whoever ended the run, or went on with it, has kept it

    def _keep_left(self, active: ActiveRun) -> None:
        """Behind the row, which tells of a death: an agent that ends between the two tells it again rather than not at all."""
        try:
            self.agent.runs.note_left(active.run, active.left)
        except sqlite3.Error as error:
            log.error("how run %s left the program cannot be kept: %s", active.run, error)

    def look(self, run: str, look: dict[str, Any]) -> dict[str, Any]:
        """Keep what the flow saw at a look; the first one of each number stands.

        Raises:
            Refused: it is none. What nobody could understand later is not kept.
        """
        self.agent.runs.need_active(run)
        n, verdict = look.get("n"), look.get("verdict")
        if not isinstance(n, int) or isinstance(n, bool) or n < 1 or verdict not in get_args(Verdict):
            raise Refused(
                "RUN_BAD_PARAMETER",
                f"a look of run {run}",
                f"n is {n!r} and verdict {verdict!r}",
                f"n is a number of blocks, verdict one of {', '.join(get_args(Verdict))}",
            )
        looks = self.agent.runs.record(run)["looks"]
        if all(kept.get("n") != n for kept in looks):
            self.agent.runs.change(run, looks=[*looks, look])
            self.agent.journal.write("RUN_LOOK", {"run": run, **look})
        return look

    def status(self, run: str | None) -> dict[str, Any] | None:
        """The run asked for, else the one that has the node, else None."""
        active = self.agent.runs.active
        name = run if run is not None else active.run if active is not None else None
        if name is None:
            return None
        record = self.agent.runs.record(name)
        states = [row.get("state") for row in record["blocks"]]
        running = active is not None and active.run == name
        return {
            "run": name,
            "spec": record.get("spec"),
            "state": record["state"],
            "ending": record.get("ending"),
            "reason": record.get("reason"),
            "now": active.now.as_dict() if running and active is not None else None,
            "counted": states.count("counted"),
            "left_out": len(states) - states.count("counted"),
            "looks": record.get("looks") or [],
            "reference": record.get("reference"),
            "flow_run_id": record.get("flow_run_id"),
        }
