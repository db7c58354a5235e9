"""A ``Duty`` on a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from cotenant.sdk import duty as module
from cotenant.sdk.duty import Duty

__all__ = ["Clock", "governed"]


@dataclass
class Clock:
    """Monotonic and CPU seconds; sleeping overshoots by what the test says and itself costs CPU."""

    now: float = 1000.0
    cpu: float = 5.0
    overshoot_s: float = 0.0
    wake_cpu_s: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.overshoot_s
        self.cpu += self.wake_cpu_s

    def work(self, wall_s: float, cpu_s: float | None = None) -> None:
        self.now += wall_s
        self.cpu += wall_s if cpu_s is None else cpu_s


def governed(
    clock: Clock, device: str, duty: float | None, monkeypatch: pytest.MonkeyPatch, cores: float = 1.0
) -> Duty:
    fake = SimpleNamespace(
        monotonic=lambda: clock.now,
        process_time=lambda: clock.cpu,
        time=lambda: clock.now,
        sleep=clock.sleep,
        thread_time=lambda: clock.cpu,
    )
    monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(module, "_has_children", lambda: False)
    monkeypatch.setattr(module, "_collected_cpu_s", lambda: 0.0)
    monkeypatch.setattr(module, "PLAIN_SLEEP_S", float("inf"))
    made = Duty(None, device=device, cores=cores)  # type: ignore[arg-type]
    made.set(duty)
    return made
