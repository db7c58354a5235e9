"""``explain``: of a node by name, of a job by number; every reason with its code and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policies.refusal import Refused
from tests.cli_runner import Cli, cli, home
from tests.fake_agent import FakeAgent

__all__ = ["cli", "home"]

REASON = {
    "code": "JOB_NO_SLOT",
    "severity": "info",
    "means": "as many jobs run as the node has slots",
    "why": "all 2 slots of the node are taken",
    "remedy": "wait until a job ends",
}
JOB = {
    "job": 7,
    "module": "dev.example.sim",
    "stage": "run",
    "state": "waiting",
    "reasons": [REASON],
    "words": "waits: JOB_NO_SLOT: all 2 slots of the node are taken",
}
NODE = {
    "node": "local",
    "mode": "moderate",
    "pause": False,
    "gpu_jobs": "never",
    "admits": True,
    "admits_why": "",
    "memory": {"level": "clear", "why": "40 % of memory is free"},
    "rules": [{"rule": "game", "state": "active", "does": ["pauses fleet work of scope all"]}],
    "limits": ["at most 1 jobs at once (rule game)"],
    "run": None,
    "jobs": [JOB, JOB | {"job": 8, "state": "running", "reasons": [], "words": "runs"}],
}


def answer(job: int | None = None) -> Any:
    if job is None:
        return NODE
    return JOB if job == 7 else Refused("JOB_UNKNOWN", f"job {job}", "there is no such job", "cotenant job list")


def test_a_node_with_its_rules_limits_and_jobs(cli: Cli, home: Path) -> None:
    with FakeAgent(home, explain=answer).serving():
        for arguments in ((), ("local",)):
            said = cli("explain", *arguments)
            assert said.code == 0
            for words in (
                "game",
                "pauses fleet work",
                "at most 1 jobs",
                "JOB_NO_SLOT",
                "wait until a job ends",
                "runs",
            ):
                assert words in said.out


def test_a_job_by_its_number(cli: Cli, home: Path) -> None:
    with FakeAgent(home, explain=answer).serving():
        said = cli("explain", "7")
        assert "job 7 (sim/run): waits" in said.out
        assert "remedy: wait until a job ends" in said.out
        assert cli("explain", "7", "--json").json["data"]["reasons"] == [REASON]
        assert cli("explain", "9").code == 2
