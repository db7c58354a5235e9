"""Jobs that run or wait are found however many came after them: in a list by state, in the status, by a run's plan."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.agent.candidates import candidates
from nodes.agent.verbs import WAITING_SHOWN, Verbs
from policies.work import WorkSelector
from tests.node.jobs_rig import Rig

MODULE, STAGE = "dev.example.m", "frame"


class Listed(Rig):
    """Rows alone, no process; ``verbs`` are those of an agent that has nothing else."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.db.execute("PRAGMA synchronous=OFF")  # thousands of rows
        agent: Any = SimpleNamespace(
            jobs=self.jobs, shares={}, journal=SimpleNamespace(runs=list), certificates=SimpleNamespace(key=b"")
        )
        self.verbs = Verbs(agent)

    def add(self, state: str, count: int = 1, feed_of: str | None = None) -> int:
        """The last of ``count`` new jobs in that state."""
        registry, newest = self.jobs.registry, 0
        for _ in range(count):
            newest = registry.add_job(MODULE, "m", STAGE, {}, None, 1, feed_of).job
            if state != "waiting":
                registry.change_job(newest, state=state)
        return newest


@pytest.fixture
def listed(tmp_path: Path) -> Listed:
    return Listed(tmp_path / "node")


def test_a_list_by_state_looks_past_newer_jobs_in_other_states(listed: Listed) -> None:
    runs, waits = listed.add("running"), listed.add("waiting")
    ended = listed.add("ended", 5)

    def numbers(**asked: Any) -> list[int]:
        return [job["job"] for job in listed.verbs.job_list(**asked)]

    assert numbers(state="running", limit=2) == [runs]
    assert numbers(state="waiting", limit=2) == [waits]
    assert numbers(state="ended", limit=2) == [ended, ended - 1]
    assert numbers(state="held") == []
    assert numbers(limit=2) == [ended, ended - 1]


def test_the_status_has_every_job_that_runs(listed: Listed) -> None:
    runs = listed.add("running")
    newest = listed.add("waiting", WAITING_SHOWN + 1)
    listed.add("ended")
    shown = [job["job"] for job in listed.verbs._open_jobs()]
    assert (shown[0], shown[-1], len(shown)) == (newest, runs, WAITING_SHOWN + 1)


def test_a_plan_finds_work_that_waits_behind_a_thousand_others(listed: Listed) -> None:
    listed.add("waiting", feed_of="run-1")
    listed.add("waiting")
    listed.add("running")
    listed.add("ended", 1001)
    needs = SimpleNamespace(use="none")
    manifest = SimpleNamespace(named_services={}, gpu_of=lambda stage: needs, ways_of=lambda stage: frozenset())
    module = SimpleNamespace(
        module=MODULE, short="m", version="1", digest="d", state="ready", stages=[STAGE], manifest=manifest
    )
    agent = SimpleNamespace(
        jobs=listed.jobs, modules=SimpleNamespace(list=lambda: [module]), units=SimpleNamespace(is_device=bool)
    )
    (found,) = candidates(cast(Any, agent), WorkSelector("all"))
    assert (found["queued"], found["running"]) == (1, 1), "what feeds a run is none of it"
