"""A signal unwinds what is going on, whatever runs at that moment, and never between a start and its note."""

from __future__ import annotations

import os
import signal
import sys
import time
import weakref
from pathlib import Path
from typing import NoReturn

import pytest

from cotenant.fleet import process
from cotenant.fleet.process import Background
from cotenant.stopping import Stopping, undisturbed


def kill(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def for_ever() -> NoReturn:
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        time.sleep(0.05)
    raise AssertionError("the signal was lost")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_of_them_unwinds_and_the_handlers_are_put_back(number: int) -> None:
    before = signal.getsignal(number)
    stopping = Stopping()
    with stopping.on_signals():
        assert stopping.run(lambda: (kill(number), for_ever())) is None
    assert signal.getsignal(number) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_a_callback_of_an_import_swallows_comes_again() -> None:
    def work() -> None:
        class Lock:
            pass

        lock = Lock()
        ref = weakref.ref(lock, lambda _: kill())  # what a callback raises is printed and forgotten
        del lock
        assert ref() is None
        for_ever()

    stopping = Stopping()
    with stopping.on_signals():
        assert stopping.run(work) is None


def test_one_that_an_except_for_everything_swallows_comes_again() -> None:
    def work() -> None:
        try:
            kill()
            time.sleep(5.0)
        except BaseException:
            pass
        for_ever()

    stopping = Stopping()
    with stopping.on_signals():
        assert stopping.run(work) is None


def test_one_that_comes_before_the_work_keeps_it_from_beginning() -> None:
    stopping = Stopping()
    with stopping.on_signals():
        kill()
        assert stopping.run(for_ever) is None


def test_nothing_is_raised_where_it_would_leave_a_process_behind() -> None:
    noted: list[str] = []

    def work() -> None:
        with undisturbed():
            kill()
            time.sleep(0.01)
            noted.append("who it is")
        noted.append("went on")

    stopping = Stopping()
    with stopping.on_signals():
        assert stopping.run(work) is None
    assert noted == ["who it is"]


def test_the_stopping_is_not_cut_short_by_more_of_them() -> None:
    stopped: list[str] = []
    stopping = Stopping()
    with stopping.on_signals():
        stopping.run(lambda: (kill(), for_ever()))
        for number in (signal.SIGTERM, signal.SIGINT):
            kill(number)
        until = time.monotonic() + 0.8  # longer than it takes to come again
        while time.monotonic() < until:
            time.sleep(0.05)
        stopped.append("all")
    assert stopped == ["all"]


def test_without_a_signal_the_answer_is_the_works() -> None:
    stopping = Stopping()
    with stopping.on_signals():
        assert stopping.run(lambda: 42) == 42
    assert not stopping.asked


def test_a_process_that_was_just_started_is_known_when_the_signal_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = process.identify

    def in_between(pid: int) -> object:
        kill()
        return really(pid)

    monkeypatch.setattr(process, "identify", in_between)
    background = Background(tmp_path / "note.json", tmp_path / "log")
    stopping = Stopping()
    with stopping.on_signals():
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        assert stopping.run(lambda: (background.start(command, dict(os.environ)), for_ever())) is None
    try:
        assert background.is_alive()
    finally:
        assert background.stop(30.0), "it is known, so it can be ended"
    assert not background.is_alive()
