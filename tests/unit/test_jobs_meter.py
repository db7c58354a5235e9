"""The CPU meter: no second lost to a child that ended, none counted twice, unknown never zero."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.identity import ProcessId
from nodes.jobs.proctree import CLOCK_TICKS, Proc
from nodes.meters.cpu import CpuMeter
from nodes.meters.reading import Unreadable


@dataclass
class Kernel:
    """Processes with CPU ticks; a child that is collected hands its ticks to its parent, as wait() does."""

    own: dict[int, int] = field(default_factory=lambda: {1: 0})
    collected: dict[int, int] = field(default_factory=lambda: {1: 0})
    parent: dict[int, int] = field(default_factory=dict)
    used: int = 0
    closed: set[int] = field(default_factory=set)

    def fork(self, parent: int, pid: int) -> None:
        self.own[pid], self.collected[pid], self.parent[pid] = 0, 0, parent

    def run(self, pid: int, ticks: int) -> None:
        self.own[pid] += ticks
        self.used += ticks

    def end(self, pid: int, *, collect: bool) -> None:
        for child, parent in self.parent.items():
            if parent == pid:
                self.parent[child] = 1  # the launcher is the subreaper
        total = self.own.pop(pid) + self.collected.pop(pid)
        parent = self.parent.pop(pid)
        if collect:
            self.collected[parent] += total

    def stat(self, pid: int) -> Proc | None:
        if pid in self.closed:
            raise PermissionError(13, "Permission denied")
        if pid not in self.own:
            return None
        return Proc(pid, 7, self.parent.get(pid, 0), "S", 1, self.own[pid], self.collected[pid])

    def children(self, pid: int) -> list[int]:
        return [child for child, parent in self.parent.items() if parent == pid]

    def kill(self, pid: int, start_ticks: int, sig: int) -> bool:
        raise AssertionError("a meter sends no signals")

    def tree(self) -> list[ProcessId]:
        return [ProcessId(pid, 7, "boot") for pid in self.own]


steps = st.lists(
    st.tuples(st.sampled_from(["fork", "run", "end", "read"]), st.integers(0, 30), st.integers(0, 50)), max_size=60
)


@settings(max_examples=300, deadline=None)
@given(steps=steps)
def test_readings_add_up_to_what_was_used(steps: list[tuple[str, int, int]]) -> None:
    kernel, meter, number = Kernel(), CpuMeter(), 2
    meter._system = kernel
    assert isinstance(meter.read({"a": kernel.tree()})["a"], Unreadable)
    told = 0.0
    for act, which, ticks in [*steps, ("read", 0, 0)]:
        pids = sorted(kernel.own)
        pid = pids[which % len(pids)]
        if act == "fork":
            kernel.fork(pid, number)
            number += 1
        elif act == "run":
            kernel.run(pid, ticks)
        elif act == "end" and pid != 1:
            kernel.end(pid, collect=True)
        elif act == "read":
            answer = meter.read({"a": kernel.tree()})["a"]
            assert isinstance(answer, float)
            assert answer >= 0.0
            told += answer
    assert round(told * CLOCK_TICKS) == kernel.used


def test_a_child_that_nobody_collected_takes_nothing_off_the_others() -> None:
    kernel = Kernel()
    meter = CpuMeter(kernel)
    kernel.fork(1, 2)
    kernel.fork(1, 3)
    kernel.run(3, 500)
    meter.read({"a": kernel.tree()})
    kernel.run(2, 100)
    kernel.end(3, collect=False)
    assert meter.read({"a": kernel.tree()})["a"] == 100 / CLOCK_TICKS


def test_unreadable_is_said_and_made_good_by_the_next_reading() -> None:
    kernel = Kernel()
    meter = CpuMeter(kernel)
    kernel.fork(1, 2)
    meter.read({"a": kernel.tree()})
    kernel.run(2, 60)
    kernel.closed.add(2)
    answer = meter.read({"a": kernel.tree()})["a"]
    assert isinstance(answer, Unreadable)
    assert "2" in answer.why
    kernel.closed.clear()
    kernel.run(2, 40)
    assert meter.read({"a": kernel.tree()})["a"] == 100 / CLOCK_TICKS


def test_a_used_pid_and_an_empty_tree_are_unreadable() -> None:
    kernel = Kernel()
    meter = CpuMeter(kernel)
    stranger = [ProcessId(1, 8, "boot")]
    for _ in range(3):  # the first reading of anything has no baseline; what follows tells
        kernel.run(1, 50)
        assert isinstance(meter.read({"a": stranger})["a"], Unreadable)
        assert isinstance(meter.total({"b": stranger})["b"], Unreadable)
    assert isinstance(meter.read({"a": []})["a"], Unreadable)


def test_case_045_the_first_reading_is_no_figure_and_totals_leave_readings_alone() -> None:
    kernel = Kernel()
    meter = CpuMeter(kernel)
    kernel.run(1, 50)
    assert meter.cpu_seconds_total("a", kernel.tree()) == 50 / CLOCK_TICKS
    assert isinstance(meter.read({"a": kernel.tree()})["a"], Unreadable)
    kernel.run(1, 20)
    assert meter.cpu_seconds_total("a", kernel.tree()) == 70 / CLOCK_TICKS
    assert meter.read({"a": kernel.tree()})["a"] == 20 / CLOCK_TICKS


def test_what_nobody_collected_is_in_the_count_of_the_trees_group() -> None:
    """A runner that ignores SIGCHLD has its children's time thrown away by the kernel: work through them would be unseen."""
    kernel, counted = Kernel(), {"a": 0.0}
    meter = CpuMeter(kernel, in_group=counted.get)
    meter.read({"a": kernel.tree()})
    kernel.fork(1, 2)
    kernel.run(2, 2 * CLOCK_TICKS)
    kernel.end(2, collect=False)
    counted["a"] = 2.0
    assert meter.read({"a": kernel.tree()}) == {"a": 2.0}
    assert meter.total({"a": kernel.tree()}) == {"a": 2.0}
    kernel.run(1, CLOCK_TICKS)
    counted["a"] = 3.0
    assert meter.read({"a": kernel.tree()}) == {"a": 1.0}, "the two counts are one, not added"
    del counted["a"]
    assert meter.read({"a": kernel.tree()}) == {"a": 0.0}, "a group that is gone takes nothing back"
