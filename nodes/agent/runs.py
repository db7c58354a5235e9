"""Harness runs as the agent keeps them: the run lock, the record, resuming, ending.

One run has the node at a time. The lock belongs to a process (pid, start ticks, boot id), not to a clock: when that process
is gone (or hangs for long) the lock is free and hold and grant end, while the run itself stays open and may be resumed with the same spec,
section, program, work and agent.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from nodes.agent.active_run import ActiveRun, Now, Reservation
from nodes.agent.left import Left
from nodes.agent.reserve import Reserve
from nodes.clock import utc_iso, utc_now
from nodes.identity import ProcessId, liveness
from nodes.journal import Journal
from nodes.restored import forgotten
from policies.certificate.repetition import HARM
from policies.harness.kept import DAMAGED, WHY_DAMAGED, asked_of, came_when
from policies.harness.rows import BlockRow, Order
from policies.harness.schedule import coin
from policies.harness.shown import harm_shown, understood
from policies.harness.spec import FIRST_LOOK, RunSpec
from policies.harness.validity import counted
from policies.harness.verdict import Ending
from policies.refusal import Refused

__all__ = ["ENDINGS", "ActiveRun", "Now", "Reservation", "Runs"]

log = logging.getLogger(__name__)

# An open run may be resumed after a crash or a reboot; after this long without a driver nobody will.
STALE_AFTER = timedelta(hours=24)
# Between two steps the process that drives a run judges and reports, which takes seconds. One that asks for nothing for so long
# hangs, and all that the run holds would wait with it.
IDLE_AT_MOST_S = 900.0
ENDINGS = get_args(Ending)


class Runs:
    """The records in the journal, the one active run, and the sweep that the node is reserved for."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.active: ActiveRun | None = None
        self.reserved: Reservation | None = None
        # By run: its measured block that the journal could not take yet, whoever drives it by now.
        self.unkept: dict[str, BlockRow] = {}
        # By run: the program as it was left, for as long as a death of it speaks against an arm (``aftermath``).
        self.lefts: dict[str, Left] = {}
        # Runs that were let go in the middle of a block: it is about to write its row.
        self.cut: set[str] = set()
        self.room = Reserve(journal.path.with_name("block.reserve"))
        left = self.room.row()  # of an agent that died before the journal took it
        if left is not None and self._lacks(left):
            self.unkept[left.run] = left
        self._newest_at: datetime | None = None

    # -- the lock ---------------------------------------------------------------------------------------------------

    def check_free(self, run: str | None = None, holder: ProcessId | None = None) -> None:
        """Refused with RUN_LOCKED, naming the run or sweep that has the node, unless it is this run, or its holder asks."""
        self.check_unreserved(holder)
        active = self.active
        if active is None or active.run == run:
            return
        raise Refused(
            "RUN_LOCKED",
            f"a run on node {active.spec.node}",
            f"run {active.run} (rule {active.spec.rule}) is measuring there; two runs at once would spoil each other",
            f"cotenant protection ab status {active.spec.node}, or: cotenant protection ab abort {active.run}",
            {"run": active.run},
        )

    def check_admits_flow(self, flow: str) -> None:
        """Refused with RUN_LOCKED while a flow's start would disturb what a run measures, or a sweep has the node."""
        active = self.active
        if active is not None and active.now.part in ("window", "closing", "washout", "reference", "waiting"):
            raise Refused(
                "RUN_LOCKED",
                f"flow {flow}",
                f"run {active.run} is measuring on node {active.spec.node}",
                f"it starts by itself when that has ended; or end that: cotenant protection ab abort {active.run}",
                {"run": active.run, "left_s": active.now.as_dict()["left_s"]},
            )
        self.check_unreserved()

    def check_unreserved(self, holder: ProcessId | None = None) -> None:
        """Refused with RUN_LOCKED while a sweep of another living process has the node."""
        reserved = self.reserved
        if reserved is not None and reserved.holder != holder and liveness(reserved.holder) != "gone":
            raise Refused(
                "RUN_LOCKED",
                "the node",
                f"sweep {reserved.sweep} has it until its last level has ended",
                "wait for it, or cancel its flow run",
                {"sweep": reserved.sweep},
            )

    def reserve(self, sweep: str, holder: ProcessId) -> None:
        """Keep the node for this sweep's levels, as long as its process lives. Asked again by it, nothing changes.

        Raises:
            Refused: RUN_LOCKED: a run or another sweep has it.
        """
        self.check_free(holder=holder)
        if self.reserved is None or self.reserved.holder != holder:
            self.journal.write("SWEEP_STARTED", {"sweep": sweep, "holder": holder.as_dict()})
        self.reserved = Reservation(sweep, holder)

    def unreserve(self, holder: ProcessId | None = None) -> None:
        """Give the node back; with ``holder`` only where it is that one's."""
        if self.reserved is not None and holder in (None, self.reserved.holder):
            self.journal.write("SWEEP_RELEASED", {"sweep": self.reserved.sweep})
            self.reserved = None

    def begin(self, run: str, spec: RunSpec, holder: ProcessId, facts: dict[str, Any]) -> bool:
        """Take the lock for a new run, or go on with an open one. True when it was resumed.

        Args:
            facts: what the record starts with (section, fingerprint, work, program, source, …); compared on a resume.

        Raises:
            Refused: RUN_LOCKED, RUN_ENDED, RUN_CHANGED (with what differs, old → new).
        """
        self.check_free(run, holder)
        if self.active is not None and liveness(self.active.holder) != "gone" and self.active.holder != holder:
            raise Refused(
                "RUN_LOCKED", f"run {run}", f"process {self.active.holder.pid} drives it already", "let that one go on"
            )
        if self.active is not None and self.active.measuring is not None:
            number = self.active.measuring
            raise Refused(
                "RUN_LOCKED", f"run {run}", f"its block {number} is being measured", "wait for it", {"block": number}
            )
        old = self.journal.run(run)
        if old is None:
            self.journal.put_run(run, {**facts, "run": run, "spec": spec.model_dump(), "state": "open", "ending": None,
                                       "reason": None, "started_at": utc_iso(), "driven_at": utc_iso(), "ended_at": None,
                                       "came_at": self._after_all(), "looks": [],
                                       "reference": None, "verdict": None, "certificate": None})  # fmt: skip
        else:
            self._check_same(old, spec, facts)
            driven_by = [*(old.get("driven_by") or []), old.get("flow_run_id")]
            more = [facts["flow_run_id"]] if facts.get("flow_run_id") not in (None, *driven_by) else []
            self.change(
                run,
                driven_at=utc_iso(),
                came_at=self._after_all(),
                driven_by=[each for each in driven_by if each] + more,
            )
        self.remember_left(run)
        self.active = ActiveRun(run, spec, holder, left=self.lefts.get(run))
        where = {"run": run, "rule": spec.rule, "work": spec.work, "duty": spec.duty, "holder": holder.as_dict()}
        self.journal.write("RUN_RESUMED" if old else "RUN_STARTED", where)
        return old is not None

    @staticmethod
    def _check_same(old: dict[str, Any], spec: RunSpec, facts: dict[str, Any]) -> None:
        run = old["run"]
        if old["state"] != "open":
            raise Refused(
                "RUN_ENDED", f"run {run}", f"it ended: {old['ending']}", "start a new run", {"ending": old["ending"]}
            )
        changed = []
        if old.get("spec") != spec.model_dump():
            before = asked_of(old)
            changed += [f"{k}: {before.get(k)} → {v}" for k, v in spec.model_dump().items() if before.get(k) != v]
        for key in ("section_digest", "agent_version", "work"):
            if old.get(key) != facts[key]:
                changed.append(f"{key}: {old.get(key)} → {facts[key]}")
        changed += facts.get("fingerprint_differences", [])
        if changed:
            raise Refused(
                "RUN_CHANGED",
                f"run {run}",
                "it cannot go on, since what it measures changed: " + "; ".join(changed),
                "start a new run",
                {"changed": changed},
            )

    def need_active(self, run: str) -> ActiveRun:
        if self.active is None or self.active.run != run:
            record = self.journal.run(run)
            if record is None:
                raise Refused("RUN_UNKNOWN", f"run {run}", "this node knows no such run", "cotenant protection ab list")
            if record["state"] == "ended":
                raise Refused("RUN_ENDED", f"run {run}", f"it ended: {record['ending']}", "start a new run",
                              {"ending": record["ending"]})  # fmt: skip
            raise Refused("RUN_NOT_HELD", f"run {run}", "no process holds it", "begin (resume) it first")
        self.active.asks()
        return self.active

    def release_if_gone(self) -> ActiveRun | None:
        """Free the lock, and what a sweep keeps, when the process that holds it is gone, or hangs. Gives the run that was let go;
        it stays open, and who asks for it again begins it again.
        """
        active, reserved = self.active, self.reserved
        if reserved is not None and active is not None:
            reserved.use()
        if reserved is not None and (liveness(reserved.holder) == "gone" or reserved.idle_s() >= IDLE_AT_MOST_S):
            self.unreserve()
        if active is None:
            return None
        gone, idle_s = liveness(active.holder) == "gone", active.idle_s()
        if not gone and idle_s < IDLE_AT_MOST_S:
            return None
        facts = {"run": active.run, "holder": active.holder.as_dict()}
        self.journal.write(*(("RUN_HOLDER_GONE", facts) if gone else ("RUN_HOLDER_IDLE", facts | {"idle_s": idle_s})))
        active.ending = active.ending or "cut"
        if active.measuring is not None:
            self.cut.add(active.run)
        self.active = None
        self.journal.write("RUN_RELEASED", {"run": active.run})
        return active

    def interrupt_stale(self) -> list[str]:
        """End runs that nobody has driven for a day: their flow will not come back. As interrupted, or as the harm that they
        showed before that. So are those that were open in a backup: what they measured since is not known.
        """
        ended = []
        lost = forgotten(self.journal)
        for run in self.left_open():
            record = self.journal.run(run) or {}
            driven_at = came_when(record, ("driven_at", "came_at", "started_at"))
            copied = lost is not None and run in lost.known
            if not copied and driven_at is not None and utc_now() - driven_at <= STALE_AFTER:
                continue
            reason = "no process has driven it for a day"
            if lost is not None and copied:
                reason = lost.why
            elif driven_at is None:
                reason = f"when it was driven last cannot be told: {WHY_DAMAGED}"
            try:
                ending, why = self._harm_shown(record) or ("interrupted", "")
                self.end(run, ending, reason + (f"; {why}" if why else ""), None)
            except DAMAGED as error:  # it stays open, and costs the others nothing
                log.error("run %s, which nobody drives any more, cannot be ended, %s: %s", run, WHY_DAMAGED, error)
                continue
            ended.append(run)
        return ended

    def left_open(self) -> list[str]:
        """Open runs that no process drives now."""
        driven = None if self.active is None else self.active.run
        return [r["run"] for r in self.journal.runs() if r["state"] == "open" and r["run"] != driven]

    def end_with_harm(self, run: str) -> dict[str, Any] | None:
        """End an open run that nobody drives where it showed harm already; its record then. A flow that comes back to it would do
        the same, and none may ever come.
        """
        record = self.journal.run(run)
        if record is None or record["state"] != "open" or (self.active is not None and self.active.run == run):
            return None
        self.close_started_blocks(run)
        self.note_death(run)
        shown = self._harm_shown(record)
        return None if shown is None else self.end(run, shown[0], f"{shown[1]}; its process was gone", None)

    def _harm_shown(self, record: dict[str, Any]) -> tuple[str, str] | None:
        """(ending, why) where the journaled windows and looks of an open run speak against the work already."""
        found = harm_shown(record.get("spec"), self.journal.blocks(record["run"]), record.get("looks"))
        return None if found is None else (found.ending, found.reason)

    def reached_look(self, record: dict[str, Any]) -> bool:
        """Whether so many blocks count that it could be judged: who stops it then has seen something, kept look or not."""
        try:
            first = RunSpec.model_validate(record.get("spec")).first_look
        except ValueError:
            first = FIRST_LOOK
        return len(counted(understood(self.journal.blocks(record["run"])))) >= first

    # -- the record -------------------------------------------------------------------------------------------------

    def record(self, run: str) -> dict[str, Any]:
        record = self.journal.run(run)
        if record is None:
            raise Refused("RUN_UNKNOWN", f"run {run}", "this node knows no such run", "cotenant protection ab list")
        return {**record, "blocks": self.journal.blocks(run)}

    def change(self, run: str, **fields: Any) -> dict[str, Any]:
        record = self.journal.run(run)
        if record is None:
            raise Refused("RUN_UNKNOWN", f"run {run}", "this node knows no such run", "cotenant protection ab list")
        record.update(fields)
        self.journal.put_run(run, record)
        return record

    def _after_all(self) -> str:
        """Now, but later than all that any run's record holds: which run came first stands, whatever the wall clock is set to."""
        if self._newest_at is None:
            kept = [when for record in self.journal.runs() if (when := came_when(record)) is not None]
            self._newest_at = max(kept, default=datetime.fromtimestamp(0, UTC))
        self._newest_at = max(utc_now(), self._newest_at + timedelta(microseconds=1))
        return utc_iso(self._newest_at)

    def blocks(self, run: str) -> list[BlockRow]:
        return [BlockRow.model_validate(row) for row in self.journal.blocks(run)]

    # -- blocks that were begun -------------------------------------------------------------------------------------

    def note_started(self, run: str, number: int, order: Order) -> None:
        """Written before a block begins, so that a cut one keeps its number and its coin is never tossed again.

        Raises:
            OSError, sqlite3.Error: there is no room to keep what it will measure, or what another one did.
        """
        for other in tuple(self.unkept):
            self.keep_unkept(other)
        begun = {"number": number, "order": order}
        self.change(run, begun=begun, driven_at=utc_iso(), came_at=self._after_all())
        self.room.take()

    def next_number(self, run: str) -> int:
        return max(self.journal.block_numbers(run), default=0) + 1

    def close_started_blocks(self, run: str) -> None:
        """A block that was begun and has no row (the agent died in it) becomes a row that says it was cut."""
        self.keep_unkept(run)
        begun = (self.journal.run(run) or {}).get("begun")
        if (
            not isinstance(begun, dict)
            or not isinstance(begun.get("number"), int)
            or begun.get("order") not in get_args(Order)
        ):
            return  # none was, or the record is damaged and does not say which
        if begun["number"] in self.journal.block_numbers(run):
            return
        left = Left.of((self.journal.run(run) or {}).get("left"))
        if left is not None and left.ended():
            self._keep_death(run, begun["number"], begun["order"], left)
            return
        row = BlockRow(
            run=run,
            number=begun["number"],
            order=begun["order"],
            state="cut",
            reason="cut",
            reason_detail="the agent stopped in the middle of it",
        )
        self.journal.put_block(run, row.number, row.model_dump())
        self.journal.write("RUN_BLOCK_CUT", {"run": run, "block": row.number, "detail": row.reason_detail})

    # -- the program between two looks at it ------------------------------------------------------------------------

    def note_left(self, run: str, left: Left | None, *, keep: bool = True) -> None:
        """For whoever goes on with the run, or ends it; None: no death speaks against an arm any more. Without ``keep`` for this
        process alone, until the row that tells what happened is kept.

        Raises:
            sqlite3.Error: it cannot be kept.
        """
        if keep:
            self.change(run, left=None if left is None else left.as_dict())
        if self.active is not None and self.active.run == run:
            self.active.left = left
        if left is None:
            self.lefts.pop(run, None)
        else:
            self.lefts[run] = left

    def remember_left(self, run: str) -> None:
        """Of an earlier process's run."""
        left = Left.of((self.journal.run(run) or {}).get("left"))
        if left is not None:
            self.lefts.setdefault(run, left)

    def note_death(self, run: str) -> None:
        """A program that ended since ON, with no block to tell it, gets a row of its own: harm must not be voided away. A run that has
        ended gets none: its rows are what its ending was judged by.
        """
        record = self.journal.run(run) or {}
        if record.get("state") != "open":
            return
        left = Left.of(record.get("left"))
        if left is not None and left.arm == "on" and left.ended():
            number = self.next_number(run)
            self._keep_death(run, number, coin(asked_of(record).get("seed", 0), number), left)

    def _keep_death(self, run: str, number: int, order: Order, left: Left) -> None:
        ended = left.ended()
        row = BlockRow(
            run=run,
            number=number,
            order=order,
            state="left_out",
            reason="program_died",
            reason_arm=left.arm,
            reason_detail=f"{left.words(ended)}, seen when nothing was measured",
            extra={"part": "closing"},
        )
        self.journal.put_block(run, number, row.model_dump())
        self.note_left(run, replace(left, program=left.program - ended))  # it is told once
        said = {"run": run, "block": number, "order": order, "reason": row.reason, "detail": row.reason_detail}
        self.journal.write("RUN_BLOCK_LEFT_OUT", said)

    def keep_block(self, row: BlockRow) -> None:
        """Raises ``sqlite3.Error`` where the journal cannot take it now; it is ``unkept`` until it did."""
        self.unkept[row.run] = row
        try:
            self.keep_unkept(row.run)
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error:
            if self.room.row() != row:
                self.room.put(row)
            raise

    def _lacks(self, row: BlockRow) -> bool:
        """Whether the row is of an open run whose journal has none of its number."""
        record = self.journal.run(row.run)
        open_still = record is not None and record["state"] == "open"
        return open_still and row.number not in self.journal.block_numbers(row.run)

    def keep_unkept(self, run: str) -> None:
        """Raises ``sqlite3.Error`` as ``keep_block`` does; ``sqlite3.IntegrityError`` where a row of that number is there already."""
        row = self.unkept.get(run)
        if row is None:
            return
        try:
            self.journal.put_block(run, row.number, row.model_dump())
        except sqlite3.IntegrityError:
            del self.unkept[run]
            raise
        del self.unkept[run]

    def end(self, run: str, ending: str, reason: str | None, verdict: dict[str, Any] | None) -> dict[str, Any]:
        """Close the record and free the lock; ending a run that has ended changes nothing."""
        if ending not in ENDINGS:
            raise Refused(
                "RUN_BAD_ENDING", f"ending {ending!r}", "it is none of a run's endings", f"one of {', '.join(ENDINGS)}"
            )
        active = self.active if self.active is not None and self.active.run == run else None
        if active is not None:
            active.ending = ending
        self.keep_unkept(run)  # it may show harm: nothing ends without it
        if active is None or active.measuring is None:
            self.close_started_blocks(run)
        if (active is None or active.measuring is None) and ending not in HARM:
            self.note_death(run)
        record = self.record(run)
        ended_before = record["state"] == "ended"
        if not ended_before:
            shown = None if ending in HARM else self._harm_shown(record)
            if shown is not None:
                # whoever ends it, and as what: what its journal shows already is its ending
                reason = f"{shown[1]}; it was ended as {ending}" + (f" ({reason})" if reason else "")
                ending = shown[0]
            ended = {"state": "ended", "ending": ending, "reason": reason, "verdict": verdict}
            reached = self.reached_look(record)
            self.change(run, **ended, reached_look=reached, ended_at=utc_iso(), came_at=self._after_all())
        if active is not None:
            # Not before its end is kept: one that cannot be is let go with its process, and then ended.
            self.active = None
            if self.reserved is not None:
                self.reserved.use()
            self.journal.write("RUN_RELEASED", {"run": run})
        if not ended_before:
            self.journal.write("RUN_ENDED", {"run": run, "ending": ending, "reason": reason}, f"run {run}: {ending}")
        return self.record(run)
