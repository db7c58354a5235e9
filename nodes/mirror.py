"""Copies the agent's journal into the store (exactly once) and on as Prefect events (at least once), and the node's duty.

Node and sequence number are an entry's key in the store, and the event's id is derived from them, so that whoever gets
an event twice can tell. The store itself knows how far it is filled; how far events were sent stands in a file. The
mirror is a thread of the worker's process: it rests while a window is counted, and comes back by itself when store,
server or agent were away.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from nodes.client import AgentUnreachable
from nodes.clock import monotonic_s
from nodes.mirror_events import Entry, Sent, event_id, event_of
from policies.duty_text import duty_key, has_budget
from policies.json_text import parse_json
from policies.refusal import Refused

__all__ = ["Mirror", "event_id", "event_of"]

log = logging.getLogger(__name__)

EVERY_S = 2.0
LONGEST_PAUSE_S = 60.0
BATCH = 500
# A server keeps events in memory before its database has them, and drops them where that is away. So what was sent is looked up,
# and sent again where it is not there after this long, or the server went away this soon after it was sent; whoever gets an event
# twice can tell by its id. What never comes (older than the server keeps) is given up after some times. The mark that the next
# process begins at follows what was seen there.
SETTLES_S = 60.0
LOOK_UP_EVERY_S = 10.0
LOOK_UP_IDS = 50
LOOK_UPS_AT_ONCE = 20
UNSETTLED_AT_MOST = 1000
SENT_AGAIN_AT_MOST = 5
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


def send_events(node: str, entries: list[Entry]) -> None:
    """Post the events and wait for the server's answer: an event that was not taken is sent again."""
    from prefect.client.orchestration import get_client
    from prefect.events import Event

    events = [Event.model_validate(event_of(node, entry)) for entry in entries]
    with get_client(sync_client=True) as client:
        answer = client._client.post("/events", json=[event.model_dump(mode="json") for event in events])
        answer.raise_for_status()


def kept_events(ids: Sequence[UUID]) -> set[UUID]:
    """Which of these events the server's database has. Raises ``httpx.HTTPError`` unless server and database answer."""
    from prefect.client.orchestration import get_client

    whenever = {"since": "2000-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z"}
    question = {"filter": {"id": {"id": [str(each) for each in ids]}, "occurred": whenever}, "limit": len(ids)}
    with get_client(sync_client=True) as client:
        answer = client._client.post("/events/filter", json=question)
        answer.raise_for_status()
        return {UUID(event["id"]) for event in answer.json()["events"]}


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
        self.mark = mark
        self.send = send
        self.look_up = kept_events if look_up is None and send is send_events else look_up
        self.every_s = every_s
        self._engine: Any = None
        self._sent: int | None = None
        self._marked: int | None = None  # what the file says, as far as this process wrote it
        self._unsettled: deque[Sent] = deque()
        self._again = (0, 0)  # the mark that was gone back to last for what had not come, and how often
        self._same_journal: bool | None = None  # None: not looked yet
        self._asked_s = float("-inf")
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
        # after an outage the mirrors of a fleet must not all come back at the same moment
        while not self._stop.wait(pause_s if not complained else random.uniform(0.5, 1.0) * pause_s):
            try:
                behind = self.step()
                pause_s = 0.05 if behind else self.every_s
                complained = False
            except Exception as error:
                # Whatever was away (agent, store, server): the marks say where to go on.
                pause_s = min(max(2.0 * pause_s, self.every_s), LONGEST_PAUSE_S)
                log.log(logging.DEBUG if complained else logging.WARNING, "mirror of %s waits: %s", self.node, error)
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
            self._send_again()
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
        """Says it where the store's newest entry is not the one of this number in the journal: a journal that was lost, put
        back from a backup or cut short with the power begins again with numbers that the store has.
        """
        from cotenant import store

        if kept == 0 or self._same_journal is not None:
            return
        ours = self.agent.call("timeline", _timeout_s=QUICK_TIMEOUT_S, after_seq=kept - 1, limit=1)["entries"]
        theirs = store.timeline_entries(self._engine, self.node, kept - 1, 1)
        self._same_journal = [_is_of(each) for each in ours] == [_is_of(each) for each in theirs]
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
            except (Refused, LookupError, TypeError, ValueError, StatementError) as error:
                if _may_pass(error):
                    raise  # the next step copies it
                log.warning("run %s was not copied: %s", run, error)

    def _copy_duty(self) -> None:
        from cotenant import store

        now_s = self._duty_seen_s = monotonic_s()
        try:
            view = self.agent.call("duty", _timeout_s=QUICK_TIMEOUT_S)
            key, every_s = duty_key(view), DUTY_EVERY_S if has_budget(view) else NO_DUTY_EVERY_S
        except (Refused, LookupError, TypeError) as other:  # an agent of another version: its journal is copied all the same
            log.debug("the duty of %s was not copied: %r", self.node, other)
            return
        if key == self._duty_key and now_s - self._duty_at_s < every_s:
            return
        store.put_duty(self._engine, self.node, view, datetime.now(UTC))
        self._duty_key, self._duty_at_s = key, now_s

    def _send_kept(self) -> bool:
        """Send what the store has and the server did not get yet. True when there may be more."""
        from cotenant import store

        if self._sent is None:
            self._sent = self._read_mark()
        if self._unsettled and monotonic_s() - self._unsettled[0].at_s > SETTLES_S:
            self._look_after()  # on a node that always has something to send, too
        entries = store.timeline_entries(self._engine, self.node, self._sent, BATCH)
        if not entries:
            self._look_after()
            return False
        self.send(self.node, entries)
        if self.look_up is not None:
            self._unsettled.append(Sent.of(monotonic_s(), self._sent, (int(entry["seq"]) for entry in entries)))
            if len(self._unsettled) > UNSETTLED_AT_MOST:  # none is forgotten: the oldest are looked up as one
                oldest, next_one = self._unsettled.popleft(), self._unsettled.popleft()
                self._unsettled.appendleft(oldest.and_then(next_one))
        self._sent = int(entries[-1]["seq"])
        self._write_mark()
        return len(entries) == BATCH

    def _look_after(self) -> None:
        """Nothing is to be sent: whether the server kept what it was sent. It may have been away unnoticed meanwhile."""
        now_s = monotonic_s()
        if self.look_up is None or not self._unsettled or now_s - self._asked_s < LOOK_UP_EVERY_S:
            return
        self._asked_s = now_s
        for _ in range(LOOK_UPS_AT_ONCE):
            if not self._unsettled or not self._look_up_next(now_s):
                break
        self._write_mark()

    def _look_up_next(self, now_s: float) -> bool:
        """Ask for the next entries, from the oldest sending on. False where one is not there (yet)."""
        assert self.look_up is not None
        asked: list[list[int]] = []
        room = LOOK_UP_IDS
        for each in self._unsettled:
            if room == 0:
                break
            asked.append(each.next(room))
            room -= len(asked[-1])
        kept = self.look_up([event_id(self.node, seq) for seqs in asked for seq in seqs])
        for seqs in asked:
            each = self._unsettled[0]
            if not all(event_id(self.node, seq) in kept for seq in seqs):
                if now_s - each.at_s > SETTLES_S:
                    self._did_not_come(each)
                return False
            left = each.beyond(seqs[-1])
            if left.runs:
                self._unsettled[0] = left
            else:
                self._unsettled.popleft()
        return True

    def _did_not_come(self, sent: Sent) -> None:
        mark, times = self._again
        self._again = (sent.before, times + 1 if mark == sent.before else 1)
        if self._again[1] > SENT_AGAIN_AT_MOST:
            log.warning("events of %s after entry %d do not come to stay on the server", self.node, sent.before)
            self._unsettled.popleft()
            return
        log.info("events of %s after entry %d did not come to stay and are sent again", self.node, sent.before)
        self._go_back(sent.before)

    def _send_again(self) -> None:
        """The server or a database is away: what was sent shortly before goes again, since it may be lost with them."""
        since_s = monotonic_s() - SETTLES_S
        lost = next((each.before for each in self._unsettled if each.at_s >= since_s), None)
        if lost is not None:
            self._go_back(lost)

    def _go_back(self, mark: int) -> None:
        self._sent = mark
        while self._unsettled and self._unsettled[-1].before >= mark:
            self._unsettled.pop()
        self._write_mark()

    def _read_mark(self) -> int:
        """0 where nothing readable is kept: events are sent again rather than left out."""
        try:
            return int(parse_json(self.mark.read_text())["sent"]) if self.mark is not None else 0
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return 0

    def _write_mark(self) -> None:
        """Where the next process begins: at what nobody has seen on the server yet, which may be lost with it and with us."""
        if self.mark is None:
            return
        sent = self._unsettled[0].before if self._unsettled else self._sent
        if sent == self._marked:
            return
        try:
            self.mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = self.mark.with_suffix(".new")
            draft.write_text(json.dumps({"sent": sent}))
            os.replace(draft, self.mark)
        except OSError as error:
            # a full disk: what this process sent it knows, and the next one sends more of it again
            log.debug("how far the events of %s were sent cannot be kept yet: %s", self.node, error)
            return
        self._marked = sent
