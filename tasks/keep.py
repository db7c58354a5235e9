"""Copying a run into the store while it goes on. A store that is away never stops a run: the agent's journal has it all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from cotenant import store

__all__ = ["Keeper"]

AT_THE_END_S = 60.0


class Keeper:
    """Writes the run and whatever blocks the store lacks; what could not be written is written with the next block."""

    def __init__(
        self,
        url: str,
        log: logging.Logger | logging.LoggerAdapter[Any],
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self.log = log
        self.sleep = sleep
        self.clock = clock
        self._engine: Any = None
        self._told = False

    def keep(self, record: Mapping[str, Any]) -> bool:
        """True when the store has all of it now."""
        try:
            if self._engine is None:
                self._engine = store.open(self.url)
            store.sync_run(self._engine, record)
            if record.get("certificate"):
                store.put_certificate(self._engine, record["certificate"])
        except Exception as error:
            # Any failure of a database, or a row that it holds differently: the run itself is sound.
            self.log.log(logging.DEBUG if self._told else logging.WARNING, "the store did not take the run: %s", error)
            self._told = True
            return False
        self._told = False
        return True

    def keep_at_the_end(self, record: Mapping[str, Any], within_s: float = AT_THE_END_S) -> bool:
        """As ``keep``, tried again for a while; after that the worker's mirror fills it in when the store is back."""
        end = self.clock() + within_s
        while not self.keep(record):
            if self.clock() > end:
                return False
            self.sleep(2.0)
        return True
