"""The doctor on this very machine, whatever it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nodes.jobs.cgroup import parents
from nodes.machine import read_machine
from policies.doctor import judge_machine
from tests.node.agent_rig import Rig

ROOT = Path(__file__).resolve().parents[2]


def leftovers() -> list[str]:
    return [
        name for place in parents() for name in os.listdir(place) if name.startswith(f"cotenant-doctor-{os.getpid()}-")
    ]


def test_the_machine_is_read_by_trying_and_nothing_is_left_behind() -> None:
    facts = read_machine(programs=[os.getpid()])
    assert facts.machine_cores == (os.cpu_count() or 1)
    assert facts.machine_bytes is not None
    assert facts.freezes or facts.freezer_why
    assert {check.state for check in judge_machine(facts)} <= {"ok", "falls_back", "missing"}
    assert leftovers() == []


def test_the_command_speaks_of_the_agents_rights_where_one_runs_and_of_ones_own_where_none_does(rig: Rig) -> None:
    def doctor() -> tuple[int, dict[str, object]]:
        done = subprocess.run(
            [sys.executable, "-m", "cotenant.cli.main", "doctor", "local", "--json"],
            env=os.environ | {"COTENANT_HOME": str(rig.home)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, dict(json.loads(done.stdout)["data"])

    alone_code, alone = doctor()
    rig.start_agent()
    code, asked = doctor()
    assert (alone["tried_by"], asked["tried_by"]) == ("command", "agent")
    for returned, found in ((alone_code, alone), (code, asked)):
        assert returned == (1 if found["lacking"] else 0)
        assert found["checks"]
