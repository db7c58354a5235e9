"""``explain``: of a node by name, of a job by number; every reason with its code and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policies.codes import CODES
from policies.explain import awaiting_parts, awaiting_words
from policies.refusal import Refused
from policies.views import Reason
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


def test_a_section_that_was_lost_is_said_with_what_to_do(cli: Cli, home: Path) -> None:
    lost = REASON | {"code": "JOURNAL_SET_ASIDE", "why": "it was lost", "remedy": "cotenant protection set local FILE"}
    with FakeAgent(home, explain=lambda job=None: NODE | {"unknown_sections": [lost]}).serving():
        said = cli("explain")
    assert (
        "all fleet work is held: JOURNAL_SET_ASIDE: it was lost; next: cotenant protection set local FILE" in said.out
    )
    assert "paused by its owner" not in said.out


def test_a_job_by_its_number(cli: Cli, home: Path) -> None:
    with FakeAgent(home, explain=answer).serving():
        said = cli("explain", "7")
        assert "job 7 (sim/run): waits" in said.out
        assert "remedy: wait until a job ends" in said.out
        assert cli("explain", "7", "--json").json["data"]["reasons"] == [REASON]
        assert cli("explain", "9").code == 2


@pytest.mark.parametrize(
    "code", ["RUN_LOCKED", "AGENT_UNREACHABLE", "FLOW_OUTSIDE_HOURS", "FLOW_OTHER_NODE", "FLOW_PUT_BACK"]
)
@pytest.mark.parametrize("why", ["run r1: block 3; it counts", "no agent answers on /a/b.sock: it is not running"])
def test_what_awaiting_node_says_is_read_back_as_code_reason_and_remedy(code: str, why: str) -> None:
    message = awaiting_words("mac-01", Reason(code, why))
    parts = awaiting_parts(message)
    assert parts == {"node": "mac-01", "code": code, "why": why, "remedy": CODES[code].remedy.replace("NODE", "mac-01")}
    own = awaiting_words("mac-01", Reason(code, why, "cotenant protection ab abort r1"))
    assert own.endswith("; next: cotenant protection ab abort r1"), "the reason's own remedy comes first"
    assert awaiting_parts("busy") is None


def test_why_no_flow_run_starts_is_said_as_its_worker_is_told(cli: Cli, home: Path) -> None:
    flows = {
        "code": "RUN_LOCKED",
        "why": "run r1 is measuring on node local",
        "remedy": "cotenant protection ab abort r1",
    }
    with FakeAgent(home, explain=lambda job=None: NODE | {"flows": flows}).serving():
        said = cli("explain")
    assert (
        "flow runs wait: RUN_LOCKED: run r1 is measuring on node local; next: cotenant protection ab abort r1"
        in said.out
    )
