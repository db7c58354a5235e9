"""How long a death of the protected program speaks against the arm before it: until the washout after that arm is over.

Within a block the block itself looks. Between two, while one waits to begin, after the run's last, and after its process went away,
this does, each tick: with the work held (or the run gone) for as long as a washout and the program alive, what is kept of the arm ends.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodes.agent.core import Agent

__all__ = ["Aftermath"]

log = logging.getLogger(__name__)


class Aftermath:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._since_s: dict[str, float] = {}
        # Runs whose washout is over, which their records do not say yet.
        self._over: set[str] = set()
        self._said = False

    def step(self, now_s: float) -> None:
        runs = self._agent.runs
        self._since_s = {run: since_s for run, since_s in self._since_s.items() if run in runs.lefts}
        for run, left in tuple(runs.lefts.items()):
            active = runs.active if runs.active is not None and runs.active.run == run else None
            in_block = run in runs.cut or (active is not None and active.in_arms)
            if in_block or (active is not None and not self._agent.under_test.held(active)):
                self._since_s.pop(run, None)
                continue
            since_s = self._since_s.setdefault(run, now_s)
            if left.ended():
                # It stands in the record: the next block tells it, or the end of the run; of one that nobody drives we see to that.
                del runs.lefts[run]
                if active is None:
                    self._agent.unsettled.add(run)
            elif now_s - since_s >= left.washout_s:
                runs.note_left(run, None, keep=False)
                self._over.add(run)
        for run in tuple(self._over):
            self._keep(run)

    def _keep(self, run: str) -> None:
        """That it is over, behind the row that the block left, and unless another block has begun since."""
        runs = self._agent.runs
        if run in runs.unkept:
            return
        try:
            if run not in runs.lefts:
                runs.note_left(run, None)
            self._over.discard(run)
            self._said = False
        except sqlite3.Error as error:  # tried again on the next tick
            if not self._said:
                log.error("that the washout after run %s is over cannot be kept yet: %s", run, error)
            self._said = True
