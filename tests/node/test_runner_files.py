"""Whatever a runner leaves where files are expected, its attempt ends, nobody waits for it, and the others are looked after."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nodes.jobs.clearing import remove_tree
from nodes.jobs.runnerfiles import phase_of, read_document, write_document
from nodes.jobs.workdir import AttemptDir, newest_lines
from tests.descriptors import open_descriptors
from tests.node.jobs_rig import Rig, state_of, wait_for

ODD = ("fifo", "dir", "loop", "link:/etc/hostname")


def ticks_of(rig: Rig, times: int = 5, patience_s: float = 30.0) -> None:
    """So many ticks end within the time: one that waits for a FIFO would wait for ever."""
    done = threading.Event()

    def tick() -> None:
        for _ in range(times):
            rig.jobs.tick(time.monotonic())
            time.sleep(0.05)
        done.set()

    # sqlite's connection belongs to this thread, so the watchdog is the other one
    watchdog = threading.Timer(patience_s, os._exit, (70,))
    watchdog.daemon = True
    watchdog.start()
    tick()
    watchdog.cancel()
    assert done.is_set()


@pytest.mark.parametrize("kind", ODD)
def test_no_document_is_read_from_what_is_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "result.json"
    make(path, kind)
    before = open_descriptors()
    for _ in range(3):
        assert read_document(path) is None
        assert newest_lines(path) == []
    assert open_descriptors() == before, "no descriptor is left open"


def make(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "dir":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "loop" else kind.partition(":")[2])


@pytest.mark.parametrize("kind", ["fifo", "loop", "link"])
def test_a_document_is_never_written_through_what_stood_at_its_draft(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    draft = tmp_path / f"control.json.{os.getpid()}.tmp"
    make(draft, f"link:{victim}" if kind == "link" else kind)
    write_document(tmp_path / "control.json", {"seq": 1})
    assert json.loads((tmp_path / "control.json").read_text()) == {"seq": 1}
    assert victim.read_text() == "mine"


def ended(tmp_path: Path, payload: dict[str, Any]) -> dict[str, Any]:
    rig = Rig.with_foreign(tmp_path, ["cancellable", "progress_events", "resumable"])
    job = rig.run(payload)
    assert rig.jobs.unkillable() == []
    rig.close()
    assert list((tmp_path / "node" / "jobs").glob("*-*-*")) == [], "the work folder is gone"
    assert not [code for code, _ in rig.journal if code == "JOURNAL_LOST"]
    return job


@pytest.mark.parametrize("kind", ODD)
def test_an_attempt_whose_files_are_something_else_ends_all_the_same(tmp_path: Path, kind: str) -> None:
    odd = dict.fromkeys(("result.json", "failure.json", "events.ndjson", "phase"), kind)
    job = ended(tmp_path, {"do": "exit", "code": 0, "odd": odd})
    assert "no JSON object in a regular file" in job["attempts"][0]["verdict"]
    assert job["attempts"][0]["exit_code"] == 0


def test_an_artifact_in_a_ring_of_links_is_refused_by_name(tmp_path: Path) -> None:
    job = ended(tmp_path, {"do": "files", "files": {}, "odd": {"ring": "loop"}, "artifacts": ["ring"]})
    assert "'ring'" in job["attempts"][0]["verdict"]


@pytest.mark.parametrize("kind", ["deep", "closed"])
def test_a_work_folder_is_cleared_away_however_deep_or_closed_it_is(tmp_path: Path, kind: str) -> None:
    job = ended(tmp_path, {"do": "exit", "code": 0, "result": {"x": 1}, "odd": {"left": kind}})
    assert (job["state"], job["outcome"]) == ("ended", "done")


def test_what_cannot_be_removed_is_left_and_said_by_nobody(tmp_path: Path) -> None:
    remove_tree(tmp_path / "never was")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to("/")
    AttemptDir(tmp_path / "a").remove()
    assert not (tmp_path / "a").exists()
    assert Path("/").is_dir()


def test_a_phase_that_is_no_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    assert phase_of(str(tmp_path)) is None, "a folder, and no descriptor of it is kept"
    rig = Rig.with_foreign(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work", "odd": {"phase": "fifo"}})
    path = attempt.folder.work / "phase"
    wait_for(path.is_fifo)
    before = open_descriptors()
    ticks_of(rig)
    assert open_descriptors() <= before + 1
    assert attempt.state in ("starting", "running")
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    rig.close()


@pytest.mark.parametrize("kind", ["fifo", "dir"])
def test_a_runner_that_takes_its_control_document_away_is_stopped_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    rig = Rig.with_foreign(tmp_path, ["cooperative_pause"], stop_grace_s="1")
    attempt = rig.start({"do": "work", "deaf": True, "odd": {"control.json": kind}})
    rig.until(lambda: attempt.state == "running")
    runner = attempt.runner_pid or 0
    rig.jobs.set_duty(attempt.attempt_id, 0.3)
    ticks_of(rig)
    rig.jobs.attempts() and rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: not rig.jobs.attempts())
    assert state_of(runner) == "gone", "it did not pause, so it was ended"
    rig.close()


@pytest.mark.parametrize("kind", ["fifo", "dir", "loop"])
def test_its_launcher_does_not_wait_for_it_either(tmp_path: Path, kind: str) -> None:
    """The agent falls silent: the launcher has to write its own pause over what the runner put there."""
    rig = Rig.with_foreign(tmp_path, ["cooperative_pause"], stop_grace_s="1")
    rig.jobs.silence_s = 1.0
    odd = {"control.json": kind, "control.json.launcher.tmp": kind}
    attempt = rig.start({"do": "work", "deaf": True, "odd": odd})
    rig.until(lambda: attempt.state == "running")
    runner = attempt.runner_pid or 0
    # no tick from here on
    wait_for(lambda: state_of(runner) == "gone")
    rig.until(lambda: not rig.jobs.attempts())
    rig.close()
