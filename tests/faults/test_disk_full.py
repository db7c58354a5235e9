"""A disk without room, under a real agent: fleet work is held and let go as ever, and what a runner finished is kept for later."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.agent.reserve import Reserve
from nodes.client import node_dir
from nodes.jobs.manager import SILENCE_S
from policies.harness.rows import BlockRow
from policies.refusal import Refused
from tests.faults.beside import PATIENCE_S, Beside
from tests.node.agent_rig import wait_for

SIZE_MIB = 24
RESULT_BYTES = 3 << 20


def mounted(place: Path) -> bool:
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=700", "none", str(place)],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Beside]:
    home, place = tmp_path / "small", tmp_path / "program"
    place.mkdir()
    if os.geteuid() != 0 or not mounted(home):
        pytest.skip("a small file system can be mounted by root alone, and not in every container")
    found = Beside(home, place)
    try:
        yield found
    finally:
        found.stop()
        subprocess.run(["umount", "-l", str(home)], check=True)


def working(node: Beside) -> int:
    """The number of a job whose runner has written all that it writes before its work: it needs no room from here on."""
    (job,) = node.begin(["freeze_ok"], {"do": "work"})
    wait_for(
        "it works", lambda: [path for path in node.home.rglob("phase") if path.read_text() == "spinning\n"], PATIENCE_S
    )
    return job


class Filler:
    """Takes all the room that is left, and goes on taking what comes free, until ``close``."""

    def __init__(self, home: Path) -> None:
        self.file = (home / "filler").open("ab", buffering=0)
        self.fill()

    def fill(self) -> None:
        for size in (1 << 20, 4096, 1):
            try:
                while self.file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue

    def close(self) -> None:
        self.file.truncate(0)
        self.file.close()


def test_work_is_held_and_goes_on_without_room_and_a_result_is_recorded_when_there_is_some(node: Beside) -> None:
    works = working(node)
    done = node.client.call(
        "job_submit", module="stranger", stage=None, payload={"do": "work", "seconds": 2, "big": RESULT_BYTES}
    )["job"]
    node.until(done, "running")
    assert node.agent is not None
    # The runner ends while its agent looks away; then there is no room to record what it did.
    attempt = node.job(done)["attempt"]
    os.kill(node.agent.pid, signal.SIGSTOP)
    try:
        exit_file = node_dir(node.home, "local") / "jobs" / attempt / "exit.json"
        wait_for("the runner has ended", exit_file.exists, 60)
        filler = Filler(node.home)
    finally:
        os.kill(node.agent.pid, signal.SIGCONT)
    node.goes_on()
    filler.fill()
    for _ in range(2):
        node.say("busy")
        node.is_held()
        filler.fill()
        node.say("idle")
        node.goes_on()
    assert exit_file.exists(), "its folder stays until its end is recorded"
    with pytest.raises(Refused) as refused:
        node.client.call("job_submit", module="stranger", stage=None, payload={"do": "work", "pad": "x" * 900_000})
    assert "full" in refused.value.why
    assert node.job(works)["state"] == "running"

    filler.close()
    node.until(done, "ended")
    shown = node.job(done)
    assert shown["outcome"] == "done"
    assert len(shown["result"]["payload"]["big"]) == RESULT_BYTES
    assert len(shown["attempts"]) == 1
    node.say("busy")
    node.is_held()
    lost = [entry["data"] for entry in node.timeline("JOURNAL_LOST")]
    assert lost, "that something could not be written is said once it can be"
    # the signals are out before the entry is written
    wait_for("what comes then is journaled", lambda: node.timeline("PROTECTION_PHASE_ON"), PATIENCE_S)
    assert not list((node_dir(node.home, "local") / "jobs").glob(f"{attempt}*"))


def test_a_job_that_waits_without_room_keeps_no_other_from_being_looked_after(node: Beside) -> None:
    """Its start cannot be recorded, nor why it waits: the launcher of one that runs must hear from the agent all the same."""
    working(node)
    node.say("busy")
    node.is_held()
    waits = node.client.call("job_submit", module="stranger", stage=None, payload={"do": "work"})["job"]
    filler = Filler(node.home)
    node.say("idle")
    node.goes_on()
    until_s = time.monotonic() + 1.5 * SILENCE_S
    while time.monotonic() < until_s:
        filler.fill()
        assert node.still(lambda: not node.stopped())
    filler.close()
    node.until(waits, "running")
    assert not [entry for entry in node.timeline("PROTECTION_PAUSE") if entry["data"].get("cause") == "agent silent"]


def test_what_a_block_showed_is_kept_on_a_disk_that_takes_nothing_more(tmp_path: Path) -> None:
    """Its room was taken while there was some, and is written over."""
    place = tmp_path / "small"
    if os.geteuid() != 0 or not mounted(place):
        pytest.skip("a small file system can be mounted by root alone, and not in every container")
    try:
        reserve = Reserve(place / "block.reserve")
        reserve.take()
        filler = Filler(place)
        with pytest.raises(OSError, match="No space"):
            (place / "another").write_bytes(b"x")
        row = BlockRow(run="r", number=1, order="on_first", state="left_out", reason="program_died", reason_arm="on")
        assert reserve.put(row)
        assert Reserve(reserve.path).row() == row
        filler.close()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
