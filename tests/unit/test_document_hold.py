"""What confirms a pause by document: the CPU time of the tree, and of work on a GPU more than that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from nodes.jobs.attempt import CLOCK_TICKS, Attempt
from nodes.jobs.runnerfiles import read_document, write_document
from tests.unit.test_jobs_signals import LAUNCHER, RUNNER, World, attempt_in, proc


def paused_by_document(folder: Path) -> tuple[World, Attempt]:
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "S")}, [])
    attempt = attempt_in(world, folder, {"cooperative_pause"})
    attempt.begin(0.0, held_reason=None)
    attempt.hold("phase", 1.0)
    return world, attempt


def say(attempt: Attempt, phase: str, after_document_ns: int) -> None:
    """Write the phase so long after the document that stands now."""
    path = attempt.folder.work / "phase"
    path.write_text(phase + "\n")
    at_ns = os.stat(attempt.folder.control).st_mtime_ns + after_document_ns
    os.utime(path, ns=(at_ns, at_ns))


@pytest.mark.parametrize(
    ("off_gpu", "phase", "after_ns", "confirmed"),
    [
        (None, "working", 1, True),  # not on a GPU: its CPU time is what it does
        (False, "working", 1, False),
        (False, "paused", -1, False),  # of an earlier pause
        (False, "paused", 1, True),
        (True, "working", 1, True),
    ],
)
def test_a_pause_on_a_gpu_is_confirmed_by_the_runner_or_the_meter_and_not_by_cpu_time_alone(
    tmp_path: Path, off_gpu: bool | None, phase: str, after_ns: int, confirmed: bool
) -> None:
    _, attempt = paused_by_document(tmp_path)
    say(attempt, phase, after_ns)
    assert attempt.step(2.0, off_gpu=off_gpu) == []
    assert attempt.step(3.0, off_gpu=off_gpu) == []
    assert attempt.hold_confirmed is confirmed
    assert ("hold_failed" in attempt.step(12.0, off_gpu=off_gpu)) is not confirmed
    assert confirmed or "GPU" in attempt.not_held


def test_a_meter_that_stops_reading_leaves_no_pause_confirmed(tmp_path: Path) -> None:
    _, attempt = paused_by_document(tmp_path)
    attempt.step(2.0, off_gpu=True)
    attempt.step(3.0, off_gpu=True)
    assert attempt.hold_confirmed
    assert attempt.step(20.0, off_gpu=False) == [], "a new deadline from here"
    assert not attempt.hold_confirmed
    assert "hold_failed" in attempt.step(31.0, off_gpu=False)


def test_a_word_that_was_given_before_this_pause_began_confirms_nothing(tmp_path: Path) -> None:
    _, attempt = paused_by_document(tmp_path)
    say(attempt, "paused", 1)
    attempt.release(5.0)
    attempt.hold("phase", 6.0)
    say(attempt, "paused", -1)
    for at_s in (7.0, 8.0):
        attempt.step(at_s, off_gpu=False)
    assert not attempt.hold_confirmed


def test_limits_that_change_during_a_pause_ask_for_no_new_word(tmp_path: Path) -> None:
    _, attempt = paused_by_document(tmp_path)
    say(attempt, "paused", 1)
    os.utime(attempt.folder.work / "phase", ns=(attempt._paused_ns, attempt._paused_ns))
    attempt.set_limits(duty=0.2, threads=None)
    for at_s in (2.0, 3.0):
        attempt.step(at_s, off_gpu=False)
    assert attempt.hold_confirmed


def test_what_the_launcher_froze_and_asked_to_pause_is_told_to_go_on_after_adoption(tmp_path: Path) -> None:
    """It did both; the word that says so names the freeze alone."""
    world = World({LAUNCHER: proc(LAUNCHER, 1, 10, "S"), RUNNER: proc(RUNNER, LAUNCHER, 11, "T")}, [])
    attempt = attempt_in(world, tmp_path, {"freeze_ok", "cooperative_pause"})
    attempt.begin(0.0, held_reason=None)
    attempt.folder.write_control({"seq": 4, "stop": False, "pause": True, "reason": "the agent is gone"})
    write_document(attempt.folder.root / "lost.json", {"count": 1, "why": "the agent is gone", "how": "frozen"})
    assert attempt.step(1.0) == ["lost"]
    assert attempt.state == "held"
    held = read_document(attempt.folder.control)
    assert held is not None
    assert held["pause"] is True, "it stays paused until it is released"
    attempt.release(2.0)
    told = read_document(attempt.folder.control)
    assert told is not None
    assert (told["pause"], told["seq"] > held["seq"] > 3) == (False, True)
    assert (RUNNER, 11, signal.SIGCONT) in world.sent


@pytest.mark.parametrize(("busy_s", "calm_s", "fails"), [(0.5, 0.5, True), (2.0, 4.0, True), (0.5, 30.0, False)])
def test_bursts_of_work_within_a_pause_add_up(tmp_path: Path, busy_s: float, calm_s: float, fails: bool) -> None:
    world, attempt = paused_by_document(tmp_path)
    now_s, used_s, failed = 1.0, 0.0, False
    while now_s < 500.0 and not failed:
        for length_s, works in ((busy_s, True), (calm_s, False)):
            for _ in range(round(length_s / 0.5)):
                now_s, used_s = now_s + 0.5, used_s + (0.5 if works else 0.0)
                world.table[RUNNER] = proc(RUNNER, LAUNCHER, 11, "S")._replace(own_ticks=int(used_s * CLOCK_TICKS))
                failed = failed or "hold_failed" in attempt.step(now_s)
    assert failed is fails
    assert not fails or now_s < 60.0
