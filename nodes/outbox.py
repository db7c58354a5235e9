"""What a node sends to the server, at least once: sent, looked up until it was seen there, and sent again where it did not stay.

A server keeps events in memory before its database has them, and drops them where that is away. So what was sent is looked up,
and sent again where it is not there after a minute, or the server went away this soon after it was sent; whoever gets an event
twice can tell by its id. What never comes (older than the server keeps) is given up after some times. The mark that the next
process begins at follows what was seen there.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from nodes.clock import monotonic_s
from nodes.mirror_events import Entry, Sent, event_id
from policies.json_text import parse_json

__all__ = ["Outbox"]

log = logging.getLogger(__name__)

SETTLES_S = 60.0
LOOK_UP_EVERY_S = 10.0
LOOK_UP_IDS = 50
LOOK_UPS_AT_ONCE = 20
UNSETTLED_AT_MOST = 1000
# A server that lived on leaves out for five minutes what it took once, also where it lost it since. So the first time, which helps
# with one that was started anew, comes soon, and the later ones beyond that.
REMEMBERS_S = 330.0
SENT_AGAIN_AT_MOST = 3
# What the server says no to for what it is, not for now: malformed, too large (alone, or a proxy says so of a whole batch).
REFUSED = {400, 413, 422}
TRIED_BEYOND = 8


class Outbox:
    """Of one node. Not for several threads.

    Args:
        mark: file that keeps how far events were sent, and seen to stay where they are looked up.
        send: takes node and entries; raises where the server did not take them.
        look_up: which of some events the server has; raises where it is away. None: what it took is not looked up.

    Attributes:
        sent: the number of the last entry that the server took.
        given_up: how many entries it refused, or took and never had.
    """

    def __init__(
        self,
        node: str,
        mark: Path | None,
        send: Callable[[str, list[Entry]], None],
        look_up: Callable[[Sequence[UUID]], set[UUID]] | None,
    ) -> None:
        self.node, self.mark = node, mark
        self.send, self.look_up = send, look_up
        self.sent = self._read_mark()
        self.given_up = 0
        self._marked: int | None = None  # what the file says, as far as this process wrote it
        self._unsettled: deque[Sent] = deque()
        self._again = (0, 0)  # the mark that was gone back to last for what had not come, and how often
        self._away = (0, 0)  # the same for what was sent shortly before something was away
        self._asked_s = float("-inf")

    @property
    def is_overdue(self) -> bool:
        """Whether something waits to be looked up for longer than it takes to settle."""
        return bool(self._unsettled) and monotonic_s() - self._unsettled[0].at_s > SETTLES_S

    def give(self, entries: list[Entry]) -> None:
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
        if self.look_up is not None:
            self._unsettled.append(Sent.of(monotonic_s(), self.sent, (int(entry["seq"]) for entry in part)))
            if len(self._unsettled) > UNSETTLED_AT_MOST:  # none is forgotten: the oldest are looked up as one
                oldest, next_one = self._unsettled.popleft(), self._unsettled.popleft()
                self._unsettled.appendleft(oldest.and_then(next_one))
        self.sent = int(part[-1]["seq"])
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

    def look_after(self, stop: threading.Event) -> None:
        """Whether the server kept what it was sent. It may have been away unnoticed meanwhile."""
        now_s = monotonic_s()
        if self.look_up is None or not self._unsettled or now_s - self._asked_s < LOOK_UP_EVERY_S:
            return
        self._asked_s = now_s
        for _ in range(LOOK_UPS_AT_ONCE):
            if not self._unsettled or not self._look_up_next(now_s):
                break
            if stop.is_set() or monotonic_s() - now_s >= LOOK_UP_EVERY_S:
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
        mark, times = self._again
        so_far = times if mark == sent.before else 0
        if now_s - sent.at_s <= (REMEMBERS_S if so_far else SETTLES_S):
            return False
        self._again = (sent.before, so_far + 1)
        if so_far >= SENT_AGAIN_AT_MOST:
            self._give_up(missing, f"the server took each {1 + SENT_AGAIN_AT_MOST} times and does not have them")
            return True
        log.info("events of %s after entry %d did not come to stay and are sent again", self.node, sent.before)
        self._go_back(sent.before)
        return False

    def send_again(self) -> None:
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
        self.sent = mark
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
        sent = self._unsettled[0].before if self._unsettled else self.sent
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
