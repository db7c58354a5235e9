"""Copies the agent's journal into the store (exactly once) and on as Prefect events (at least once), and the node's duty.

Node and sequence number are an entry's key in the store, and the event's id is derived from them, so that whoever gets
an event twice can tell. The store itself knows how far it is filled; how far events were sent stands in a file. The
mirror is a thread of the worker's process: it rests while a window is counted, and comes back by itself when store,
server or agent were away.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from nodes.client import AgentUnreachable
from nodes.clock import monotonic_s
from nodes.mirror_events import Entry
from nodes.outbox import Outbox
from nodes.server_events import kept_events, send_events
from policies.duty_text import duty_key, has_budget
from policies.refusal import Refused

__all__ = ["Mirror"]

log = logging.getLogger(__name__)

EVERY_S = 2.0
LONGEST_PAUSE_S = 60.0
BATCH = 500
SAID_AGAIN_AFTER_S = 600.0
QUICK_TIMEOUT_S = 5.0
STOP_WITHIN_S = 10.0
# The duty is written when it changed, and else so often that its age says whether the node is still there. What was measured
# changes with every tick, and a fleet's store is not asked to follow that. A change of the budget is an entry too, so the
# agent is asked when it wrote one, and seldom else.
DUTY_LOOK_EVERY_S = 10.0
DUTY_EVERY_S = 30.0
NO_DUTY_EVERY_S = 300.0
# What changed enough that the whole record of its run is copied again.
RUN_CODES = {
    "RUN_STARTED",
    "RUN_RESUMED",
    "RUN_BLOCK",
    "RUN_BLOCK_LEFT_OUT",
    "RUN_BLOCK_CUT",
    "RUN_LOOK",
    "RUN_ENDED",
    "CERT_ISSUED",
}


class Agent(Protocol):
    def call(self, method: str, /, _timeout_s: float = ..., **params: Any) -> Any: ...


def _is_of(entry: Entry) -> tuple[str, datetime]:
    return str(entry["code"]), datetime.fromisoformat(str(entry["at"]))


def _may_pass(error: Exception) -> bool:
    """Whether the same may be taken a moment later, or is what it is."""
    from sqlalchemy.exc import DataError, DBAPIError

    if isinstance(error, Refused):
        return error.code == "AGENT_BUSY"
    return isinstance(error, DBAPIError) and not isinstance(error, DataError)


class Mirror:
    """``start()`` and ``stop()`` its thread, or ``step()`` once.

    Args:
        send: takes node and entries; raises where the server did not take them.
        mark: file that keeps how far events were sent, and seen to stay where they are looked up.
        look_up: which of some events the server has; raises where it is away. None: what it took is not looked up.
    """

    def __init__(
        self,
        agent: Agent,
        store_url: str,
        node: str,
        *,
        mark: Path | None = None,
        send: Callable[[str, list[Entry]], None] = send_events,
        look_up: Callable[[Sequence[UUID]], set[UUID]] | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self.agent = agent
        self.store_url = store_url
        self.node = node
        self.outbox = Outbox(node, mark, send, kept_events if look_up is None and send is send_events else look_up)
        self.every_s = every_s
        self._engine: Any = None
        self._same_journal: bool | None = None  # None: not looked yet
        self._duty_key: Any = None
        self._duty_at_s = self._duty_seen_s = float("-inf")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="cotenant-mirror", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_WITHIN_S)
            self._thread = None

    def close(self) -> None:
        """Let go of the store; a further ``step`` opens it again."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _run(self) -> None:
        pause_s = self.every_s
        complained = False
        said, said_s = "", float("-inf")
        # after an outage the mirrors of a fleet must not all come back at the same moment
        while not self._stop.wait(pause_s if not complained else random.uniform(0.5, 1.0) * pause_s):
            try:
                behind = self.step()
                pause_s = 0.05 if behind else self.every_s
                complained = False
            except Exception as error:
                # Whatever was away (agent, store, server): the marks say where to go on.
                pause_s = min(max(2.0 * pause_s, self.every_s), LONGEST_PAUSE_S)
                # What is away at every other step is one outage, said once.
                is_said = complained or (str(error) == said and monotonic_s() - said_s < SAID_AGAIN_AFTER_S)
                log.log(logging.DEBUG if is_said else logging.WARNING, "mirror of %s waits: %s", self.node, error)
                if not is_said:
                    said, said_s = str(error), monotonic_s()
                complained = True

    def step(self) -> bool:
        """Copy one batch. True when there may be more.

        Raises:
            AgentUnreachable, SQLAlchemyError, httpx.HTTPError, Refused: nothing is lost, the next step goes on.
        """
        try:
            return self._step()
        except AgentUnreachable:
            self._same_journal = None  # it may come back with another one
            raise
        except Refused:
            raise
        except Exception:
            self.outbox.send_again()
            raise

    def _step(self) -> bool:
        if self._window_is_counted():
            return False
        from cotenant import store

        if self._engine is None:
            self._engine = store.open(self.store_url)
        kept = store.last_seq(self._engine, self.node)
        self._look_at_journal(kept)
        entries = self._entries(kept)
        if entries:
            # The runs first: once the entries are kept, nobody looks at them again.
            self._copy_runs(entries)
            store.put_timeline(self._engine, self.node, entries)
        if entries or monotonic_s() - self._duty_seen_s >= DUTY_LOOK_EVERY_S:
            self._copy_duty()
        sent_more = self._send_kept()
        return len(entries) == BATCH or sent_more

    def _window_is_counted(self) -> bool:
        status = self.agent.call("run_status", _timeout_s=QUICK_TIMEOUT_S)
        return bool(status and (status.get("now") or {}).get("part") == "window")

    def _look_at_journal(self, kept: int) -> None:
        """Says it where the journal has not gone beyond the store's newest entry, or has another one of that number. A journal that
        was lost, put back from a backup or cut short with the power goes on with higher numbers (``nodes.journal_numbers``),
        unless that was done by hand.
        """
        from cotenant import store

        if kept == 0 or self._same_journal is not None:
            return
        ours = self.agent.call("timeline", _timeout_s=QUICK_TIMEOUT_S, after_seq=kept - 1, limit=1)["entries"]
        theirs = store.timeline_entries(self._engine, self.node, kept - 1, 1)
        went_on = bool(ours) and int(ours[0]["seq"]) > kept
        self._same_journal = went_on or [_is_of(each) for each in ours] == [_is_of(each) for each in theirs]
        if not self._same_journal:
            log.warning(
                "the journal of %s is another one than the store has up to entry %d: its entries up to there are not copied, and "
                "their events are taken for known ones. Where its home was made anew, let it join under a new name",
                self.node,
                kept,
            )

    def _entries(self, after_seq: int) -> list[Entry]:
        answer = self.agent.call("timeline", _timeout_s=QUICK_TIMEOUT_S, after_seq=after_seq, limit=BATCH)
        return list(answer["entries"])

    def _copy_runs(self, entries: list[Entry]) -> None:
        """The flow writes its run itself; this fills in what it could not (it died, or the store was away)."""
        from sqlalchemy.exc import StatementError

        from cotenant import store

        runs = {
            str(entry["data"]["run"]) for entry in entries if entry["code"] in RUN_CODES and entry["data"].get("run")
        }
        for run in sorted(runs):
            try:
                record = self.agent.call("run_show", run=run)
                store.sync_run(self._engine, record)
                if record.get("certificate"):
                    store.put_certificate(self._engine, record["certificate"])
            except (Refused, LookupError, TypeError, ValueError, AttributeError, StatementError) as error:
                if _may_pass(error):
                    raise  # the next step copies it
                log.warning("run %s was not copied: %s", run, error)

    def _copy_duty(self) -> None:
        from cotenant import store

        now_s = self._duty_seen_s = monotonic_s()
        try:
            view = self.agent.call("duty", _timeout_s=QUICK_TIMEOUT_S)
            key, every_s = duty_key(view), DUTY_EVERY_S if has_budget(view) else NO_DUTY_EVERY_S
        except (Refused, LookupError, TypeError) as other:
            # an agent of another version: its journal is copied all the same
            log.debug("the duty of %s was not copied: %r", self.node, other)
            return
        if key == self._duty_key and now_s - self._duty_at_s < every_s:
            return
        store.put_duty(self._engine, self.node, view, datetime.now(UTC))
        self._duty_key, self._duty_at_s = key, now_s

    def _send_kept(self) -> bool:
        """Send what the store has and the server did not get yet. True when there may be more."""
        from cotenant import store

        entries = store.timeline_entries(self._engine, self.node, self.outbox.sent, BATCH)
        if entries:
            self.outbox.give(entries)
        behind = bool(entries) and (len(entries) == BATCH or self.outbox.sent < int(entries[-1]["seq"]))
        # What is new goes out before anything is looked up, which may fail; on a node that always has something to send, too.
        if not entries or self.outbox.is_overdue:
            self.outbox.look_after(self._stop)
        return behind
