"""Units of several threads and coroutines, units within units, and a duty that changes meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time as real_time
from types import SimpleNamespace

import pytest

from cotenant.sdk import duty as module
from cotenant.sdk.duty import CREDIT_S, Duty
from tests.unit.duty_rig import Clock, governed


def test_duty_0_waits_for_one_above_0() -> None:
    governor = Duty(None)
    governor.set(0.0)
    entered = threading.Event()

    def work() -> None:
        with governor.unit():
            entered.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert not entered.wait(0.3)
    governor.set(0.5)
    assert entered.wait(60)
    thread.join(60)


def test_threads_that_idle_at_once_idle_once_and_from_the_first() -> None:
    governor = Duty(None)
    governor.set(0.0)

    def work() -> None:
        with governor.unit():
            pass

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    begun = real_time.monotonic()
    threads[0].start()
    while not governor.idle_s:
        real_time.sleep(0.01)
    first = real_time.monotonic()
    real_time.sleep(0.3)
    threads[1].start()
    real_time.sleep(0.3)
    since_first_s = real_time.monotonic() - first
    assert governor.idle_s >= since_first_s
    governor.set(1.0)
    for thread in threads:
        thread.join(60)
    assert since_first_s <= governor.idle_s <= real_time.monotonic() - begun


def test_units_of_several_threads_are_counted_once() -> None:
    governor = Duty(None)
    governor.set(0.5)
    begin = real_time.monotonic()

    def work() -> None:
        for _ in range(10):
            with governor.unit():
                real_time.sleep(0.02)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    wall = real_time.monotonic() - begin
    assert governor.busy_s <= 0.5 * (wall + CREDIT_S) + 0.2, "overlapping units add up to no more than the duty"
    assert governor.busy_s <= wall


def test_asyncio_units_idle_without_blocking_the_loop() -> None:
    async def main() -> tuple[int, float, float]:
        governor = Duty(None)
        governor.set(0.2)
        ticks = 0
        done = asyncio.Event()

        async def count() -> None:
            nonlocal ticks
            while not done.is_set():
                ticks += 1
                await asyncio.sleep(0.005)

        counter = asyncio.create_task(count())
        begin = real_time.monotonic()
        for _ in range(4):
            async with governor.unit():
                real_time.sleep(0.02)
        done.set()
        await counter
        return ticks, governor.busy_s, real_time.monotonic() - begin

    ticks, busy_s, wall_s = asyncio.run(main())
    assert ticks > 4
    # the last unit's own idle lies behind the end
    assert busy_s - 0.02 <= 0.2 * (wall_s + CREDIT_S) + 0.02


def test_a_control_of_another_host_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what protocol 1 names is there: ``gpu_duty`` and ``safe_point``."""

    class Foreign:
        workdir = "/nowhere"
        gpu_duty: float | None = 0.0
        looked = 0

        def safe_point(self) -> None:
            self.looked += 1
            if self.looked == 5:
                self.gpu_duty = 0.5
            if self.looked == 100:
                raise KeyError("stopped")

    clock = Clock()
    fake = SimpleNamespace(
        monotonic=lambda: clock.now, process_time=lambda: 0.0, time=lambda: clock.now, sleep=clock.sleep
    )
    monkeypatch.setattr(module, "time", fake)
    foreign = Foreign()
    governor = Duty(foreign, device="gpu")  # type: ignore[arg-type]
    starts = []

    def work() -> None:
        while True:
            with governor.unit():
                starts.append(clock.now)
                clock.work(0.05)

    with pytest.raises(KeyError):
        work()
    assert starts[0] == pytest.approx(1000.0 + 4 * module.LOOK_S)
    assert [b - a for a, b in itertools.pairwise(starts)] == pytest.approx([0.1] * (len(starts) - 1), abs=0.011)


class Listened:
    """A control whose duty the test changes, as a nudge does."""

    def __init__(self, duty: float | None) -> None:
        self.gpu_duty, self.callbacks = duty, []  # type: ignore[var-annotated]

    def safe_point(self) -> None: ...

    def listen(self, callback: object) -> object:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def change(self, duty: float) -> None:
        self.gpu_duty = duty
        for callback in self.callbacks:
            callback()


@pytest.mark.parametrize("before", [None, 0.9])
def test_a_change_within_a_unit_counts_from_there_on(before: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governed(clock, "gpu", None, monkeypatch)
    ctl = Listened(before)
    duty = Duty(ctl)  # type: ignore[arg-type]
    with duty.unit():
        clock.work(0.1)
        ctl.change(0.1)
        changed = clock.now
        clock.work(0.9)
    with duty.unit():
        assert clock.now - changed >= 0.9 / 0.1 - 1e-6, "0.9 s at a duty of 0.1 are paid by 9 s"
    duty.close()
    assert ctl.callbacks == []


def test_a_unit_within_a_unit_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    duty = governed(clock, "gpu", 0.5, monkeypatch)
    began = clock.now
    with duty.unit():
        clock.work(0.5)
        with monkeypatch.context() as patch:
            patch.setattr(duty, "_sleep", lambda *_: pytest.fail("it waits for a debt that only grows"))
            with duty.unit():
                clock.work(0.5)
    assert duty.busy_s == pytest.approx(1.0), "counted once"
    with duty.unit():
        assert clock.now - began == pytest.approx(2.0)


def test_a_child_forked_within_a_unit_is_not_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    duty = governed(clock, "cpu", 0.5, monkeypatch)
    slept: list[float] = []

    def asleep(_seen: int, _changes: int, wait_s: float) -> bool:
        slept.append(wait_s)
        clock.sleep(wait_s)
        return True

    with duty.unit():
        clock.work(1.0)
        parent = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: parent + 1)
            patch.setattr(duty, "_sleep", asleep)
            with duty.unit():
                assert slept == [pytest.approx(1.0)]
