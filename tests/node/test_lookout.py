"""The thread that reads inotify: what cannot wait is done first, the loop hears of everything, in order."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import inotify_simple
import pytest

from nodes.sources.lookout import Lookout
from nodes.sources.watch import Watch
from tests.node.jobs_rig import wait_for

MODIFY = 0x2


@pytest.fixture
def inotify() -> Iterator[inotify_simple.INotify]:
    made = inotify_simple.INotify(nonblocking=True)
    yield made
    made.close()


def readable(fd: int, within_s: float) -> bool:
    return bool(select.select([fd], [], [], within_s)[0])


def test_it_acts_before_the_loop_hears_of_it(tmp_path: Path, inotify: inotify_simple.INotify) -> None:
    path = tmp_path / "events"
    path.touch()
    inotify.add_watch(str(tmp_path), MODIFY)
    asked, go_on = threading.Event(), threading.Event()

    def seen(events: bytes) -> bool:
        assert b"events" in events
        asked.set()
        return go_on.wait(60)

    lookout = Lookout(inotify, seen)
    with path.open("a") as file:
        file.write("x")
    assert asked.wait(60)
    assert not readable(lookout.fileno(), 0.0), "it is still at it"
    assert lookout.take() == []
    go_on.set()
    assert readable(lookout.fileno(), 60.0)
    assert [event.name for event in lookout.take()] == ["events"]
    assert not readable(lookout.fileno(), 0.0)
    lookout.close()
    assert not lookout.alive


def test_every_event_comes_once_and_in_order_also_from_a_flood(tmp_path: Path, inotify: inotify_simple.INotify) -> None:
    inotify.add_watch(str(tmp_path), MODIFY)
    lookout = Lookout(inotify, lambda events: False)
    names = [f"f{number:04}" for number in range(400)]
    for name in names:
        (tmp_path / name).write_text("x")
    found: list[str] = []

    def all_there() -> bool:
        found.extend(event.name for event in lookout.take() if event.name not in found[-1:])
        return len(found) >= len(names)

    wait_for(all_there)
    assert found == names
    lookout.close()


def test_an_error_in_what_it_calls_costs_no_event(tmp_path: Path, inotify: inotify_simple.INotify) -> None:
    inotify.add_watch(str(tmp_path), MODIFY)

    def seen(events: bytes) -> bool:
        raise ValueError("no")

    lookout = Lookout(inotify, seen)
    for name in ("a", "b"):
        (tmp_path / name).write_text("x")
        assert readable(lookout.fileno(), 60.0)
        assert {event.name for event in lookout.take()} == {name}
    assert lookout.alive
    lookout.close()


def test_a_watch_whose_thread_has_ended_polls_and_says_so(tmp_path: Path) -> None:
    watch = Watch()
    assert watch.look_out(lambda events: False, lambda: None)
    assert not watch.look_out(lambda events: False, lambda: None), "one is enough"
    watch.set_dirs({str(tmp_path)})
    (tmp_path / "a").write_text("x")
    assert readable(watch.fileno(), 60.0)
    assert str(tmp_path / "a") in watch.changed()[0]
    assert (watch.polls, watch.how([str(tmp_path)]), watch.describe()) == (False, "inotify", "inotify")
    assert watch._lookout is not None
    watch._lookout._ending = True  # for whatever reason
    (tmp_path / "b").write_text("x")
    watch._lookout._thread.join(60)
    assert watch.changed()[1], "from here on everything is looked at"
    assert (watch.polls, watch.how([str(tmp_path)])) == (True, "poll")
    assert "thread" in watch.describe()
    assert readable(watch.fileno(), 60.0), "the 250 ms check"
    watch.close()


def test_one_inotify_instance_and_one_thread(tmp_path: Path) -> None:
    def instances() -> int:
        links = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        return links.count("anon_inode:inotify")

    before, threads = instances(), threading.active_count()
    watch = Watch()
    watch.look_out(lambda events: False, lambda: None)
    watch.set_dirs({str(tmp_path)})
    assert (instances() - before, threading.active_count() - threads) == (1, 1)
    watch.close()
    deadline = time.monotonic() + 60.0
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (instances() - before, threading.active_count() - threads) == (0, 0)
