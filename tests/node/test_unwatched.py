"""Nobody watches an attempt: what a launcher held stays held, whatever a stranger does to it."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import nodes.jobs
from nodes.jobs.cgroup import PREFIX, Group, parents
from nodes.jobs.proctree import Proc
from tests.node.jobs_rig import state_of, wait_for
from tests.node.test_jobs_holding import BOTH_WAYS, frozen_by_the_kernel
from tests.node.test_launcher import StandIn, begin, calm, end

PARTS = ("below", "cgroup", "guardian", "output", "proctree", "runnerfiles", "runnerstart", "unwatched")
ME, RUNNER, CHILD = (
    Proc(100, 5, 1, "S", 100, 0, 0),
    Proc(101, 6, 100, "T", 101, 0, 0),
    Proc(102, 7, 101, "T", 101, 0, 0),
)


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """A file of the launcher's, loaded as the launcher does."""
    monkeypatch.syspath_prepend(str(Path(nodes.jobs.__file__ or "").parent))
    yield importlib.import_module
    for name in PARTS:
        sys.modules.pop(name, None)


@pytest.fixture
def agents() -> Iterator[list[StandIn]]:
    made: list[StandIn] = []
    yield made
    for agent in made:
        agent.kill()


@pytest.mark.parametrize("places", BOTH_WAYS)
def test_what_a_stranger_lets_go_on_is_stopped_again(
    tmp_path: Path, agents: list[StandIn], places: list[str] | None
) -> None:
    options = ["--no-cgroup"] if places == [] else []
    home, agent, attempt_id, pids = begin(tmp_path, agents, ["freeze_ok"], *options)
    paths = [os.path.join(place, PREFIX + attempt_id) for place in (parents() if places is None else [])]
    groups = [Group(path, attempt_id) for path in paths if os.path.isdir(path)]

    def held() -> bool:
        if groups:  # which may be closed again before the signals are sent
            return all(frozen_by_the_kernel(group.path) for group in groups)
        return {state_of(pid) for pid in pids[1:]} == {"T"}

    agent.kill()
    wait_for(held)
    time.sleep(1.0)  # the launcher has seen it
    for _ in range(3):
        for group in groups:
            group.thaw()
        for pid in pids[1:]:
            os.kill(pid, signal.SIGCONT)
        # neither is there any more when the write and the call return, so what comes now is new
        wait_for(held, patience_s=20.0)
    assert calm(pids)
    end(home)


class Table:
    """A process table that a test fills."""

    def __init__(self, *rows: Proc) -> None:
        self.rows = {row.pid: row for row in rows}

    def stat(self, pid: int) -> Proc | None:
        return self.rows.get(pid)

    def children(self, pid: int) -> list[int]:
        return [row.pid for row in self.rows.values() if row.ppid == pid]


@pytest.mark.parametrize(
    ("seen", "rest"), [((), False), ((CHILD._replace(ppid=100),), False), ((RUNNER,), True), ((RUNNER, CHILD), True)]
)
def test_a_look_that_does_not_find_the_runner_finds_no_rest(
    part: Callable[[str], ModuleType], seen: tuple[Proc, ...], rest: bool
) -> None:
    """The kernel may leave children out of its list while processes end."""
    below = part("below").Below(Table(ME, *seen), ME)
    below.runner = RUNNER
    assert below.at_rest(since_s=5.0) is rest


class Costly:
    """A tree at rest, each look at which takes so much CPU time."""

    def __init__(self, look_s: float) -> None:
        self.look_s = look_s

    def stop(self) -> None:
        pass

    def at_rest(self, since_s: float) -> bool:
        until = time.thread_time() + self.look_s
        while time.thread_time() < until:
            pass
        return True


@pytest.mark.parametrize(("look_s", "least_s", "most_s"), [(0.0, 0.2, 0.4), (0.005, 0.5, 1.0), (0.1, 1.0, 1.0)])
def test_looks_at_a_large_tree_take_a_hundredth_of_a_core_and_are_never_more_than_a_second_apart(
    part: Callable[[str], ModuleType], look_s: float, least_s: float, most_s: float
) -> None:
    unwatched = part("unwatched").Unwatched(
        Costly(look_s), ["freeze_ok"], gpu=False, adopt_s=600.0, phase="", ask_to_pause=lambda why: 0
    )
    now = unwatched.begin()
    assert unwatched.brake("the agent is gone", now) == "frozen"
    assert unwatched.step(now) is None
    assert least_s <= unwatched.poll_s <= most_s


class Listed:
    """What successive looks at a paused tree find."""

    def __init__(self, *looks: list[Proc]) -> None:
        self.looks = list(looks)

    def processes(self) -> list[Proc]:
        return self.looks.pop(0)


def test_a_look_that_finds_nothing_is_no_measure_of_a_pause(part: Callable[[str], ModuleType]) -> None:
    paused = RUNNER._replace(state="S", own_ticks=1000)
    below = Listed([paused], [], [paused], [paused._replace(own_ticks=1100)])
    unwatched = part("unwatched").Unwatched(
        below, ["cooperative_pause"], gpu=False, adopt_s=600.0, phase="", ask_to_pause=lambda why: 1
    )
    now = unwatched.begin()
    assert unwatched.brake("the agent is gone", now) == "paused"
    assert [unwatched.step(now + after_s) for after_s in (2.0, 2.5, 3.0)] == [None] * 3
    assert unwatched.step(now + 3.5) == "paused by document and still using CPU"
