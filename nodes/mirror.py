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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
# Not fewer: a server leaves out for five minutes what it took once, also where it lost it since, so only the last of these arrives.
SENT_AGAIN_AT_MOST = 5
# What the server says no to for what it is, not for now: malformed, too large (alone, or a proxy says so of a whole batch).
REFUSED = {400, 413, 422}
TRIED_BEYOND = 8
# Where Prefect's client waits as long as it is told to and asks again.
ASK_LATER = {408, 429, 502, 503}
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


@contextmanager
def _server() -> Iterator[Any]:
    """The HTTP client of the server, which is asked once. Prefect's tries again for minutes, or waits for as long as a header
    says: the mirror comes back by itself, and copies into the store in between.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    once: dict[str, Any] = {"event_hooks": {"response": [_refuse_at_once]}}
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(once, sync_client=True) as client:
        yield client._client


def _refuse_at_once(response: Any) -> None:
    if response.status_code in ASK_LATER:
        response.raise_for_status()


def send_events(node: str, entries: list[Entry]) -> None:
    """Post the events and wait for the server's answer: an event that was not taken is sent again."""
    from prefect.events import Event

    events = [Event.model_validate(event_of(node, entry)) for entry in entries]
    with _server() as server:
        answer = server.post("/events", json=[event.model_dump(mode="json") for event in events])
        answer.raise_for_status()


def kept_events(ids: Sequence[UUID]) -> set[UUID]:
    """Which of these events the server's database has. Raises ``httpx.HTTPError`` unless server and database answer."""
    whenever = {"since": "2000-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z"}
    question = {"filter": {"id": {"id": [str(each) for each in ids]}, "occurred": whenever}, "limit": len(ids)}
    with _server() as server:
        answer = server.post("/events/filter", json=question)
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
        self._away = (0, 0)  # the same for what was sent shortly before something was away
        self.given_up = 0
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
        entries = store.timeline_entries(self._engine, self.node, self._sent, BATCH)
        if entries:
            self._give(entries)
        behind = bool(entries) and (len(entries) == BATCH or self._sent < int(entries[-1]["seq"]))
        # What is new goes out before anything is looked up, which may fail; on a node that always has something to send, too.
        if not entries or (self._unsettled and monotonic_s() - self._unsettled[0].at_s > SETTLES_S):
            self._look_after()
        return behind

    def _give(self, entries: list[Entry]) -> None:
        """Send them, or of what the server refuses the longest beginning that it takes. Nothing waits for an entry that is
        refused alone while a later one is taken.
        """
        part = entries
        while (why := self._refusal(part)) is not None and len(part) > 1:
            part = part[: len(part) // 2]
        if why is not None:
            for left_out in range(1, min(len(entries), 1 + TRIED_BEYOND)):
                part = entries[left_out : left_out + 1]
                if self._refusal(part) is None:
                    self._give_up([int(entry["seq"]) for entry in entries[:left_out]], f"the server says {why}")
                    break
            else:
                raise why
        assert self._sent is not None
        if self.look_up is not None:
            self._unsettled.append(Sent.of(monotonic_s(), self._sent, (int(entry["seq"]) for entry in part)))
            if len(self._unsettled) > UNSETTLED_AT_MOST:  # none is forgotten: the oldest are looked up as one
                oldest, next_one = self._unsettled.popleft(), self._unsettled.popleft()
                self._unsettled.appendleft(oldest.and_then(next_one))
        self._sent = int(part[-1]["seq"])
        self._write_mark()

    def _refusal(self, entries: list[Entry]) -> Exception | None:
        """Send them. Why the server does not take these; None: it did. Raises where it is away, or says no to whoever asks."""
        try:
            self.send(self.node, entries)
        except Exception as error:
            if getattr(getattr(error, "response", None), "status_code", None) not in REFUSED:
                raise
            return error
        return None

    def _give_up(self, seqs: list[int], why: str) -> None:
        self.given_up += len(seqs)
        log.warning(
            "%d event(s) of %s, entries %d to %d, are given up (%d in all): %s",
            *(len(seqs), self.node, seqs[0], seqs[-1], self.given_up, why),
        )

    def _look_after(self) -> None:
        """Whether the server kept what it was sent. It may have been away unnoticed meanwhile."""
        now_s = monotonic_s()
        if self.look_up is None or not self._unsettled or now_s - self._asked_s < LOOK_UP_EVERY_S:
            return
        self._asked_s = now_s
        for _ in range(LOOK_UPS_AT_ONCE):
            if not self._unsettled or not self._look_up_next(now_s):
                break
            if self._stop.is_set() or monotonic_s() - now_s >= LOOK_UP_EVERY_S:
                break  # a slow server: the store is filled in between
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
            missing = [seq for seq in seqs if event_id(self.node, seq) not in kept]
            if missing and not self._did_not_come(each, missing, now_s):
                return False
            left = each.beyond(seqs[-1])
            if left.runs:
                self._unsettled[0] = left
            else:
                self._unsettled.popleft()
        return True

    def _did_not_come(self, sent: Sent, missing: list[int], now_s: float) -> bool:
        """True where these are given up; else they are waited for, or sent again."""
        if now_s - sent.at_s <= SETTLES_S:
            return False
        mark, times = self._again
        self._again = (sent.before, times + 1 if mark == sent.before else 1)
        if self._again[1] > SENT_AGAIN_AT_MOST:
            self._give_up(missing, f"the server took each {1 + SENT_AGAIN_AT_MOST} times and does not have them")
            return True
        log.info("events of %s after entry %d did not come to stay and are sent again", self.node, sent.before)
        self._go_back(sent.before)
        return False

    def _send_again(self) -> None:
        """The server or a database is away: what was sent shortly before goes again, since it may be lost with them.

        Some times, where that comes and goes: what is lost all the same is not there when it is looked up.
        """
        since_s = monotonic_s() - SETTLES_S
        lost = next((each.before for each in self._unsettled if each.at_s >= since_s), None)
        if lost is None:
            return
        mark, times = self._away
        self._away = (lost, times + 1 if mark == lost else 1)
        if self._away[1] <= SENT_AGAIN_AT_MOST:
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
