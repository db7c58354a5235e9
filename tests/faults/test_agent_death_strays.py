"""Agent, launcher and guardian are killed at once, and what the runner left bears no mark: its row tells who it is."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agent_death import FourRunners, until
from nodes.client import node_dir
from nodes.jobs.proctree import Proc, ProcSystem, walk
from tests.node.jobs_rig import foreign, state_of

SYSTEM = ProcSystem()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FourRunners]:
    found = FourRunners(tmp_path)
    found.start_agent()
    yield found
    found.close()


def row_of(home: Path, attempt: str) -> dict[str, Any]:
    db = sqlite3.connect(f"file:{node_dir(home, 'bench') / 'journal.sqlite'}?mode=ro", uri=True)
    try:
        db.row_factory = sqlite3.Row
        return dict(db.execute("SELECT * FROM attempts WHERE attempt = ?", (attempt,)).fetchone())
    finally:
        db.close()


def sorted_out(row: dict[str, Any]) -> tuple[list[Proc], list[Proc]]:
    """Guardian and launcher; what is below the launcher without being its runner."""
    if row["launcher_pid"] is None or row["runner_pid"] is None:
        return [], []
    guardian, *below = walk(SYSTEM, [(row["launcher_pid"], row["launcher_ticks"])])
    keepers = [guardian, *(proc for proc in below if proc.ppid == guardian.pid)]
    above = {proc.pid for proc in keepers} | {row["runner_pid"]}
    return keepers, [proc for proc in below if proc.pid not in above]


def test_strays_without_a_mark_are_ended_by_the_next_agent(node: FourRunners, tmp_path: Path) -> None:
    """Orphans in sessions of their own, with nothing in their environment, in no group of ours and with no parent that is ours."""
    resources = "{ resources = { cpu = 0.1, mem_gb = 0.02 } }"
    bundle = foreign(tmp_path / "wild", ["freeze_ok"], id='"org.example.wild"', requires=resources)
    node.client.call("module_add", path=str(bundle))
    node.client.call("job_submit", module="wild", stage=None, payload={"do": "work", "strays": 2, "deaf": True})
    until(lambda: node.client.call("job_list", limit=5)[0]["state"] == "running")
    (job,) = node.client.call("job_list", limit=5)

    def kept() -> bool:
        row = row_of(tmp_path, job["attempt"])
        tree = json.loads(row["tree"] or "{}")
        _, strays = sorted_out(row)
        return len(strays) == 2 and all(tree.get(str(proc.pid)) == proc.start_ticks for proc in strays)

    until(kept)
    row = row_of(tmp_path, job["attempt"])
    keepers, strays = sorted_out(row)
    try:
        if row["cgroup"] is not None:  # else the machine has none that could be made
            for proc in strays:
                (Path(row["cgroup"]).parent / "cgroup.procs").write_text(str(proc.pid))
        assert node.agent is not None
        node.agent.kill()
        for proc in keepers:
            SYSTEM.kill(proc.pid, proc.start_ticks, signal.SIGKILL)
        node.agent.wait()
        time.sleep(0.5)
        # the launcher may have come to stop them before its own turn; nobody is left who would let them go on, or end them
        for proc in strays:
            SYSTEM.kill(proc.pid, proc.start_ticks, signal.SIGCONT)
        assert all(state_of(proc.pid) in "RS" for proc in strays)
        node.start_agent()
        until(lambda: all(state_of(proc.pid) == "gone" for proc in strays))
        until(lambda: node.client.call("job_show", job=job["job"])["attempts"][0]["verdict"])
        shown = node.client.call("job_show", job=job["job"])
        assert shown["outcome"] is None, "it is put back"
        codes = [entry["code"] for entry in node.client.call("timeline", limit=5000)["entries"]]
        assert {"JOB_LAUNCHER_LOST", "JOB_REQUEUED"} <= set(codes)
        assert "S16_GUARD" not in codes
    finally:
        for proc in strays:
            SYSTEM.kill(proc.pid, proc.start_ticks, signal.SIGKILL)
