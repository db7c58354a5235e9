"""``async with duty.unit()`` under a control document and under ``set``: a pause, a stop and a new duty apply at once, the loop goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.sdk.control import Control, Stopped
from cotenant.sdk.duty import Duty

LIMIT_S = 60.0


class Document:
    """The agent's side: a newer document each time, then the nudge."""

    def __init__(self, workdir: Path) -> None:
        self.workdir, self.seq = workdir, 0
        (workdir / "control.json").write_text(json.dumps({"seq": 0, "gpu_duty": 0.0}))

    def tell(self, **document: object) -> None:
        self.seq += 1
        (self.workdir / "control.tmp").write_text(json.dumps({"seq": self.seq, **document}))
        (self.workdir / "control.tmp").replace(self.workdir / "control.json")
        os.kill(os.getpid(), signal.SIGUSR1)

    def phase(self) -> str:
        path = self.workdir / "phase"
        return path.read_text().strip() if path.exists() else ""


@pytest.fixture
def document(tmp_path: Path) -> Iterator[Document]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield Document(tmp_path)
    for number, handler in before.items():
        signal.signal(number, handler)


async def until(true: object, what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)


def test_a_document_applies_to_coroutines_that_idle(document: Document) -> None:
    async def main() -> tuple[int, float]:
        ctl = Control(document.workdir)
        ctl.phase("decode")
        entered = 0

        async def work() -> None:
            nonlocal entered
            with Duty(ctl, device="gpu") as duty:
                while True:
                    async with duty.unit():
                        entered += 1
                        await asyncio.sleep(0.001)

        tasks = [asyncio.create_task(work()) for _ in range(2)]
        await asyncio.sleep(0.3)
        assert entered == 0, "duty 0 waits for one above it"
        document.tell(gpu_duty=0.5)
        await until(lambda: entered > 10, "a new duty lets them go on")
        document.tell(gpu_duty=0.5, pause=True)
        await until(lambda: document.phase() == "paused", "the pause is confirmed")
        await asyncio.sleep(0.05)
        held_at, began = entered, time.monotonic()
        await asyncio.sleep(0.5)
        assert entered == held_at, "held"
        span_s = time.monotonic() - began
        document.tell(gpu_duty=0.5)
        await until(lambda: entered > held_at, "and released")
        paused_s = ctl.paused_s
        assert document.phase() == "decode"
        document.tell(gpu_duty=0.0)
        await asyncio.sleep(0.1)
        document.tell(stop=True, reason="evicted")
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LIMIT_S)
        assert [type(end) for end in ends] == [Stopped, Stopped]
        return ctl.acknowledge_stop(), paused_s - span_s

    code, more_s = asyncio.run(main())
    assert code == 75
    assert more_s >= -0.01, "time held counts as such: speeds reported leave it out"
    assert json.loads((document.workdir / "failure.json").read_text())["detail"] == "evicted"


def test_a_duty_that_is_set_applies_to_a_coroutine_that_idles() -> None:
    """For a workload: the supervisor's thread sets it, and the loop must not wait for the idle of the old one."""

    async def main() -> None:
        duty = Duty(None)
        began = asyncio.Event()

        async def work() -> None:
            async with duty.unit():
                began.set()

        for wait in (0.0, 1e-6):  # none at all, and one that would last for days
            async with duty.unit():
                # within it: nothing of it is paid back before the next one asks, however busy the host
                duty.set(wait)
                time.sleep(0.05)
            began.clear()
            task = asyncio.create_task(work())
            await asyncio.sleep(0.2)
            assert not began.is_set()
            await asyncio.to_thread(duty.set, 0.9)
            await asyncio.wait_for(task, LIMIT_S)
        duty.close()

    asyncio.run(main())


def test_a_loop_that_was_closed_under_a_unit_takes_no_nudge_from_others(document: Document) -> None:
    ctl = Control(document.workdir)
    duty = Duty(ctl)
    loop = asyncio.new_event_loop()

    async def work() -> None:
        async with duty.unit():
            pass

    waiting = loop.create_task(work())
    loop.run_until_complete(asyncio.sleep(0.2))
    loop.close()
    document.tell(pause=True)
    ended = threading.Event()

    def held() -> None:
        ctl.safe_point()
        ended.set()

    threading.Thread(target=held, daemon=True).start()
    end = time.monotonic() + LIMIT_S
    while document.phase() != "paused":
        assert time.monotonic() < end
        time.sleep(0.02)
    document.tell()
    assert ended.wait(LIMIT_S), "nobody reads the nudges any more"
    assert not waiting.done()
