"""The NVIDIA meter in a thread of its own: a driver that hangs stops no tick, it makes readings old."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodes.meters.reading import DeviceReading

__all__ = ["NvmlThread"]

log = logging.getLogger(__name__)


class NvmlThread:
    """One reading at a time.

    ``readings`` are the newest; ``fault`` is set once the meter is of no use any more.
    """

    def __init__(self, proc: Path, machine_memory: Callable[[], tuple[int | None, int | None]]) -> None:
        self._proc, self._machine_memory = proc, machine_memory
        self._thread: threading.Thread | None = None
        self._meter: Any = None
        self.readings: tuple[DeviceReading, ...] = ()
        self.fault: str | None = None
        self.cost_ms_per_s: float | None = None

    def ask(self, now_s: float, wanted: frozenset[int], wait_s: float) -> None:
        """Start a reading unless one is under way, and wait a moment for it."""
        if self._thread is None or not self._thread.is_alive():
            # a daemon: a driver that never answers does not keep the agent from ending
            self._thread = threading.Thread(target=self._read, args=(now_s, wanted), name="nvml", daemon=True)
            self._thread.start()
        self._thread.join(wait_s)

    def _read(self, now_s: float, wanted: frozenset[int]) -> None:
        from nodes.meters.nvml import NvmlMeter, Unusable

        try:
            if self._meter is None:
                self._meter = NvmlMeter(self._proc, machine_memory=self._machine_memory)
            self.readings = self._meter.read(now_s, wanted)
            self.cost_ms_per_s = round(self._meter.gate.cost_ms_per_s(), 3)
        except Unusable as error:
            self.fault = str(error)
        except Exception as error:
            log.exception("the NVIDIA meter failed")
            self.fault = f"the meter failed: {error}"
