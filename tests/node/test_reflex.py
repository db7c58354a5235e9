"""What the lookout's thread stops before the loop has read a line, and what the loop makes of it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.agent.core import Agent
from nodes.agent.reflex import Reflex, Wanted
from nodes.identity import identify
from nodes.jobs.proctree import ProcSystem
from nodes.sources.follower import Follower
from policies.section.sources import JsonlEventPhase
from tests.descriptors import open_descriptors
from tests.node.jobs_rig import Rig, state_of, wait_for
from tests.node.test_event_path import Node


def states(node: Node) -> set[str]:
    return {state_of(attempt.runner_pid or 0) for attempt in node.attempts}


def look_out(node: Node) -> None:
    assert node.agent.at_once.look_out(lambda: None)


def handed_over(node: Node) -> None:
    """The thread is done with what was written: the loop could read now."""
    assert select.select([node.agent.hub.fileno()], [], [], 60.0)[0]


def codes(node: Node) -> list[str]:
    return [entry["code"] for entry in node.agent.journal.entries(limit=5000)]


def test_runners_stop_before_the_loop_has_read_the_line(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"])
    look_out(node)
    began = time.time()
    node.append("begin")
    wait_for(lambda: states(node) == {"T"})
    assert node.phases() == [], "the loop knows nothing of it yet"
    assert {a.state for a in node.attempts} == {"running"}
    handed_over(node)
    node.agent.on_source_event()
    assert {a.state for a in node.attempts} == {"held"}
    (entry,) = node.phases()
    assert (entry["how"], sorted(entry["paused"])) == ("event", sorted(a.attempt_id for a in node.attempts))
    assert entry["paused_to"] in ("stopped", "signalled")
    assert 0.0 < entry["latency_ms"] <= (time.time() - began) * 1e3
    assert codes(node).count("PROTECTION_PAUSE") == 2
    node.append("end")
    node.until(lambda: node.agent.on_source_event() or {a.state for a in node.attempts} == {"running"})
    wait_for(lambda: "T" not in states(node))
    node.append("begin")
    wait_for(lambda: states(node) == {"T"})
    node.close()


def test_what_is_over_when_the_loop_reads_it_goes_on_and_is_told(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"], jobs=1)
    look_out(node)
    node.append("begin")
    wait_for(lambda: states(node) == {"T"})
    handed_over(node)
    node.append("end")
    node.until(lambda: node.agent.on_source_event() or "PROTECTION_PHASE_OFF" in codes(node))
    wait_for(lambda: "T" not in states(node))
    assert [a.state for a in node.attempts] == ["running"]
    assert not node.attempts[0].braked
    (entry,) = node.phases()
    assert entry["paused"] == [node.attempts[0].attempt_id]
    assert entry["latency_ms"] > 0.0
    assert "PROTECTION_PAUSE" not in codes(node)
    assert codes(node).count("PROTECTION_RESUME") == 1
    node.close()


def test_a_brake_that_no_line_explains_is_undone_by_the_next_judgement(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"], jobs=1)
    (attempt,) = node.attempts
    os.kill(attempt.runner_pid or 0, signal.SIGSTOP)
    node.agent.jobs.note_brakes([attempt.attempt_id, "1-1-gone"])
    wait_for(lambda: states(node) == {"T"})
    node.agent.evaluate("event")
    wait_for(lambda: "T" not in states(node))
    assert not attempt.braked
    node.close()


def test_while_nobody_sees_the_programs_a_brake_stays_on(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"], jobs=1)
    (attempt,) = node.attempts
    attempt.brake()
    wait_for(lambda: states(node) == {"T"})
    node.agent.observer.stale_after_s = -1.0
    node.agent.evaluate("event")
    assert attempt.braked
    assert states(node) == {"T"}
    node.agent.observer.stale_after_s = 60.0
    node.agent.evaluate("event")
    wait_for(lambda: "T" not in states(node))
    node.close()


@pytest.mark.parametrize("what", ["not immediate", "another scope", "asked by document"])
def test_only_what_an_immediate_phase_freezes_is_stopped_ahead(tmp_path: Path, what: str) -> None:
    node = Node(
        tmp_path,
        ["cancellable", "cooperative_pause"] if what == "asked by document" else ["freeze_ok"],
        jobs=1,
        rule="" if what == "not immediate" else "immediate = true",
    )
    if what == "another scope":
        node.agent.set_section(node.agent.section_text.replace('scope = "all"', 'scope = "gpu"'), "test")
    look_out(node)
    node.append("begin")
    handed_over(node)
    assert not node.agent.at_once.notice()
    assert states(node) != {"T"}
    node.close()


def test_an_attempt_that_is_being_stopped_is_not_kept_from_its_end(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, ["freeze_ok"], stop_grace_s="600")
    attempt = rig.start({"do": "work", "deaf": True})
    rig.until(lambda: attempt.state == "running")
    runner = attempt.runner_pid or 0
    assert attempt.within_reach()[0][0] == runner
    rig.jobs.stop(attempt.attempt_id, "cancelled", requeue=False, fault=False)
    assert attempt.within_reach() == ()
    os.kill(runner, signal.SIGSTOP)  # as a thread does whose table is a moment old
    wait_for(lambda: state_of(runner) == "T")
    rig.jobs.note_brakes([attempt.attempt_id])
    wait_for(lambda: state_of(runner) != "T")
    assert state_of(runner) != "gone", "and its grace is not over"
    os.kill(runner, signal.SIGKILL)
    rig.until(lambda: not rig.jobs.attempts())
    rig.close()


def test_killed_between_signal_and_record_it_is_found_held_and_let_go(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"], jobs=1)
    look_out(node)
    node.append("begin")
    wait_for(lambda: states(node) == {"T"})
    handed_over(node)
    runner = node.attempts[0].runner_pid or 0
    # that agent never comes to write anything; the next one finds what it left
    node.agent.hub.close()
    node.agent.journal.close()
    node.agent = Agent(tmp_path / "home", "local", tmp_path / "none")
    node.agent.slots = 1
    node.agent.start()
    assert [a.state for a in node.attempts] == ["held"]
    assert state_of(runner) == "T"
    node.agent.tick()
    node.until(lambda: node.attempts[0].hold_confirmed)
    assert state_of(runner) == "T", "the phase is on"
    node.append("end")
    node.until(lambda: node.agent.on_source_event() or node.attempts[0].state == "running")
    wait_for(lambda: state_of(runner) != "T")
    node.close()


def test_more_than_a_glance_can_take_in_is_left_to_the_loop(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"], jobs=1)
    look_out(node)
    with node.events.open("ab") as file:  # over by its end, which lies beyond
        file.write(b'{"event": "begin"}\n' + b'{"event": "step_done"}\n' * 4000 + b'{"event": "end"}\n')
    handed_over(node)
    assert not node.agent.at_once.notice()
    assert states(node) != {"T"}
    node.until(lambda: node.agent.on_source_event() or "PROTECTION_PHASE_OFF" in codes(node))
    node.agent.tick()
    node.append("begin")
    wait_for(lambda: states(node) == {"T"})  # it has found its place again
    assert node.attempts[0].state == "running"
    node.close()


def test_it_follows_the_file_that_the_loop_follows(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"], jobs=1)
    look_out(node)
    node.events.rename(node.events.with_suffix(".1"))
    node.append("step_done")
    for _ in range(2):
        node.agent.tick()
    node.append("begin")
    wait_for(lambda: states(node) == {"T"})
    assert node.attempts[0].state == "running"
    node.close()


class Bench:
    """A reflex aimed at one sleeping child of this test, without an agent."""

    def __init__(self, place: Path, aims: bool = True) -> None:
        self.path = place / "events.jsonl"
        self.path.touch()
        self.follower = Follower(str(self.path))
        self.follower.poll(0.0)
        self.child = subprocess.Popen(["sleep", "600"])
        who = identify(self.child.pid)
        assert who is not None
        self.who = (who.pid, who.start_ticks)
        self.asked: list[tuple[int, int]] = []
        self.given: list[int] = []
        self.aims = aims
        self.reflex = Reflex(self.hold_of)

    def hold_of(self, pid: int, ticks: int) -> int | None:
        self.asked.append((pid, ticks))
        fd = ProcSystem().hold_of(pid, ticks) if self.aims else None
        self.given += [fd] if fd is not None else []
        return fd

    def arm(self, *whom: tuple[int, int]) -> None:
        source = JsonlEventPhase(jsonl=str(self.path), enter="begin", exit="end")
        reader = self.follower.reader
        assert reader is not None
        self.follower.poll(0.0)
        attempts = (("1-1-aa", whom or (self.who,)),)
        self.reflex.arm([Wanted(("rule", 0), source, reader, reader.restarts, frozenset({self.path.name}), attempts)])

    def says(self, *events: str) -> bool:
        with self.path.open("a") as file:
            file.writelines(json.dumps({"event": event}) + "\n" for event in events)
        return self.reflex.glance(b"..." + self.path.name.encode() + b"\0\0")

    @property
    def state(self) -> str:
        return state_of(self.child.pid)

    def go_on(self) -> None:
        self.child.send_signal(signal.SIGCONT)
        wait_for(lambda: self.state != "T")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.reflex.arm([])
    bench.follower.close()
    bench.child.kill()
    bench.child.wait(60)


def test_only_new_lines_that_end_in_a_phase_that_is_on_stop_anything(bench: Bench) -> None:
    bench.says("begin", "end")
    bench.arm()
    assert not bench.says("step_done")
    assert not bench.says("begin", "end")
    assert not bench.says("end")
    assert not bench.reflex.glance(bench.path.name.encode()), "the same bytes say nothing twice"
    with bench.path.open("a") as file:
        file.write('{"event": "begin"}')
    assert not bench.reflex.glance(bench.path.name.encode()), "the line has no end yet"
    assert bench.reflex.take() == []
    assert bench.state != "T"
    with bench.path.open("a") as file:
        file.write("\n")
    assert not bench.reflex.glance(b"another-file\0"), "nobody said that this one has grown"
    assert bench.reflex.glance(bench.path.name.encode())
    wait_for(lambda: bench.state == "T")
    (stopped,) = bench.reflex.take()
    assert (stopped.key, stopped.attempts) == (("rule", 0), ("1-1-aa",))
    assert bench.reflex.take() == []
    bench.go_on()
    bench.arm()
    assert bench.says("end", "begin")
    wait_for(lambda: bench.state == "T")


def test_what_the_loop_has_read_stops_nothing_later(bench: Bench) -> None:
    bench.arm()
    with bench.path.open("a") as file:
        file.write('{"event": "begin"}\n')
    bench.arm()  # the loop has read it in between
    assert not bench.says("step_done")
    assert bench.state != "T"


def test_a_process_that_is_gone_is_no_reason_to_spare_the_others(bench: Bench) -> None:
    other = subprocess.Popen(["sleep", "600"])
    who = identify(other.pid)
    assert who is not None
    bench.arm((who.pid, who.start_ticks), bench.who)
    other.kill()
    other.wait(60)
    assert bench.says("begin")
    wait_for(lambda: bench.state == "T")
    assert bench.reflex.take()[0].to == "stopped"


def test_only_processes_that_the_guard_gives_out_are_signalled(tmp_path: Path, bench: Bench) -> None:
    """Whatever it is told to aim at: without a pidfd there is no signal, and those come from the guard alone."""
    bench.aims = False
    bench.arm()
    assert bench.asked == [bench.who]
    assert not bench.says("begin")
    assert bench.reflex.take() == []
    assert bench.state != "T"


def test_descriptors_are_kept_while_they_are_aimed_with_and_closed_after(bench: Bench) -> None:
    before = open_descriptors()
    bench.arm()
    (first,) = bench.given
    during = open_descriptors()
    for _ in range(5):
        bench.arm()
    assert (bench.given, open_descriptors()) == ([first], during)
    bench.reflex.arm([])
    assert open_descriptors() == before
