"""The one door for signals: over random process tables nothing outside the spawn registry's trees is ever reached."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.jobs.guard import Guard
from nodes.jobs.keeping import once_each
from nodes.jobs.proctree import Proc, walk

PIDS = range(2, 14)


@dataclass
class Table:
    """A process table; pids in ``unreadable`` are there and cannot be read."""

    rows: dict[int, Proc]
    unreadable: set[int] = field(default_factory=set)
    sent: list[tuple[int, int, int]] = field(default_factory=list)

    def stat(self, pid: int) -> Proc | None:
        if pid in self.unreadable:
            raise PermissionError(13, "denied")
        return self.rows.get(pid)

    def children(self, pid: int) -> list[int]:
        return [other for other in self.rows if other != pid]

    def kill(self, pid: int, start_ticks: int, sig: int) -> bool:
        found = self.rows.get(pid)
        if found is None or found.start_ticks != start_ticks:
            return False
        self.sent.append((pid, start_ticks, sig))
        return True

    def hold_of(self, pid: int, start_ticks: int) -> int | None:
        return 7 if self.kill(pid, start_ticks, 0) else None


def proc(pid: int, ppid: int, ticks: int, state: str = "S") -> Proc:
    return Proc(pid, ticks, ppid, state, pid, 0, 0)


rows = st.dictionaries(
    st.sampled_from(PIDS),
    st.tuples(st.sampled_from([0, 1, *PIDS]), st.integers(1, 6), st.sampled_from("RSDTZ")),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from(PIDS), st.integers(1, 6)),
        st.tuples(st.just("learn"), st.sampled_from(PIDS), st.integers(1, 6)),
        st.tuples(st.just("kill"), st.sampled_from(PIDS), st.one_of(st.none(), st.integers(1, 6))),
        st.tuples(st.just("hold"), st.sampled_from(PIDS), st.one_of(st.none(), st.integers(1, 6))),
        st.tuples(st.just("become"), st.sampled_from(PIDS), rows),
        st.tuples(st.just("hide"), st.sampled_from(PIDS), st.booleans()),
    ),
    max_size=25,
)


def below(table: dict[int, Proc], ours: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """By the definition and not by the code under test: grow the set by children that started after a parent in it."""
    found = set(ours)
    while True:
        more = {
            (row.pid, row.start_ticks)
            for row in table.values()
            if (parent := table.get(row.ppid)) is not None
            and (parent.pid, parent.start_ticks) in found
            and parent.start_ticks <= row.start_ticks
        }
        if more <= found:
            return found
        found |= more


@settings(max_examples=120, deadline=None)
@given(first=rows, acts=steps)
def test_no_signal_leaves_the_trees_over_any_process_table(first: dict[int, tuple], acts: list[tuple]) -> None:
    def made(raw: dict[int, tuple]) -> dict[int, Proc]:
        return {pid: proc(pid, *rest) for pid, rest in raw.items()}

    world = Table(made(first))
    refusals: list[tuple[int, int | None, int, str]] = []
    guard = Guard(world, lambda *told: refusals.append(told))
    started: set[tuple[int, int]] = set()
    ever: set[tuple[int, int]] = set()  # was below something we started, in some table so far
    for act, pid, what in acts:
        ever |= below(world.rows, started | ever)
        if act == "register":
            guard.register("1-1-aa", pid, what)
            started.add((pid, what))
        elif act == "learn":
            # what a caller believes to be the tree, true or not: the guard checks each
            guard.learn("1-1-aa", [row for row in world.rows.values() if row.start_ticks >= what])
        elif act == "become":
            world.rows = made(what)  # pids used again, other parents
        elif act == "hide":
            (world.unreadable.add if what else world.unreadable.discard)(pid)
        else:
            before, told = len(world.sent), len(refusals)
            # a descriptor that may be signalled is a signal
            reached = guard.kill(pid, what, signal.SIGKILL) if act == "kill" else guard.hold_of(pid, what) is not None
            assert reached == (len(world.sent) > before)
            for target in world.sent[before:]:
                assert target[:2] in started | ever, "a stranger was signalled"
            if what is None:
                assert not reached, "case 42: unknown start time"
                assert len(refusals) == told + 1


def test_case_041_a_pid_that_was_used_again_is_somebody_else() -> None:
    world = Table({5: proc(5, 1, 10), 6: proc(6, 5, 11)})
    guard = Guard(world, lambda *told: None)
    guard.register("a", 5, 10)
    assert guard.kill(6, 11, signal.SIGSTOP)
    world.rows = {5: proc(5, 1, 90), 6: proc(6, 5, 91)}
    assert not guard.kill(6, 91, signal.SIGSTOP), "its parent has our pid and another start time"
    assert not guard.kill(5, 10, signal.SIGSTOP)
    assert len(world.sent) == 1


def test_who_started_after_a_process_is_not_its_parent() -> None:
    """A pid used again between two reads of the table: the child read first, then a parent that is younger than it."""
    world = Table({5: proc(5, 1, 20), 6: proc(6, 5, 19)})
    guard = Guard(world, lambda *told: None)
    guard.register("a", 5, 20)
    assert not guard.owns(6, 19)
    assert not guard.kill(6, 19, signal.SIGSTOP)
    assert world.sent == []


def test_case_042_unknown_is_refused_and_said_once() -> None:
    world = Table({5: proc(5, 1, 10), 7: proc(7, 1, 12)}, unreadable={7})
    told: list[tuple[str, dict]] = []
    guard = Guard(world, once_each(lambda code, data: told.append((code, data))))
    guard.register("a", 5, 10)
    for _ in range(3):
        assert not guard.kill(5, None, signal.SIGTERM)  # type: ignore[arg-type]
        assert not guard.kill(7, 12, signal.SIGTERM)
    assert [code for code, _ in told] == ["S16_GUARD", "S16_GUARD"]
    assert {data["pid"] for _, data in told} == {5, 7}
    assert world.sent == []


def test_an_orphan_that_was_seen_below_a_launcher_stays_ours_until_the_attempt_ends() -> None:
    world = Table({5: proc(5, 1, 10), 6: proc(6, 5, 11), 7: proc(7, 6, 12), 9: proc(9, 1, 8)})
    refused: list[tuple] = []
    guard = Guard(world, lambda *told: refused.append(told))
    guard.register("a", 5, 10)
    guard.learn("a", walk(guard, [(5, 10)]))
    world.rows = {7: proc(7, 1, 12), 9: proc(9, 1, 8)}
    assert guard.kill(7, 12, signal.SIGKILL)
    assert not guard.kill(9, 8, signal.SIGKILL)
    assert len(refused) == 1
    guard.forget("a")
    assert not guard.kill(7, 12, signal.SIGKILL)
