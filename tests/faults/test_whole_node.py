"""The whole product on one node, as an owner runs it, with each of its processes killed in turn during one harness run.

Nothing is scripted here but the kills: ``cotenant up`` starts and supervises, the program and the fleet work are real. The
run must go on by itself and come to an answer; no block may be counted twice; nothing may be left running.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.client import AgentClient, AgentUnreachable, socket_path
from tests.node.agent_rig import Rig, runners_of, typed, wait_for

SPEC = ("--window", "5", "--washout", "1", "--margin", "0.5", "--duty", "0.1", "--max-hours", "0.027")
WORK = ("--work", "llmserve/selftest", "--feed", "llmserve/selftest")
# Starting Prefect and a flow takes minutes on a busy host; these limits only end a test that would hang.
START_S, RECOVER_S, RUN_S = 420.0, 420.0, 900.0


class Owner:
    """Types commands in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.rig = Rig(home)
        self.env = os.environ | {"COTENANT_HOME": str(home), "NO_COLOR": "1"}
        self.env.pop("PREFECT_API_URL", None)

    def types(self, *words: str, limit_s: float = 240.0) -> subprocess.CompletedProcess[str]:
        return typed(self.env, *words, limit_s=limit_s)

    def asks(self, *words: str) -> dict[str, Any]:
        done = self.types(*words, "--json")
        return dict(json.loads(done.stdout)["data"])

    def pids(self, *marks: str) -> list[int]:
        """Processes of this home whose command line holds all marks."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environ = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(self.home) in environ + command and all(mark in command for mark in marks):
                found.append(int(entry.name))
        return found

    def kills(self, *marks: str) -> None:
        pids = wait_for(f"a process of {marks}", lambda: self.pids(*marks), RECOVER_S)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def run(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = AgentClient(socket_path(self.home, "local")).call("run_show", run=name)
        except AgentUnreachable:
            return None
        return found


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    found = Owner(tmp_path)
    yield found
    found.types("down", limit_s=180)
    found.rig.stop()
    for pid in found.pids():
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)


def part(owner: Owner) -> tuple[str | None, str | None, int | None]:
    try:
        status = AgentClient(socket_path(owner.home, "local")).call("run_status")
    except AgentUnreachable:
        return None, None, None
    now = status["now"] if status and status["now"] else {}
    return now.get("arm"), now.get("part"), now.get("block")


@pytest.mark.timeout(2400)
def test_a_run_comes_to_an_answer_though_each_process_is_killed_once(owner: Owner) -> None:
    owner.rig.start_program()
    up = owner.types("up", "--detach", limit_s=START_S)
    assert up.returncode == 0, up.stderr
    (owner.home / "section.toml").write_text(owner.rig.section())
    done = owner.types("protection", "set", "local", str(owner.home / "section.toml"), "--yes")
    assert done.returncode == 0, done.stderr
    wait_for("llmserve is ready", lambda: owner.rig.client.call("modules")[0]["state"] == "ready", 300)
    started = owner.types("protection", "ab", "start", "local", "--rule", "stepper", *WORK, *SPEC, "--yes", "--json")
    assert started.returncode == 0, started.stderr
    run = json.loads(started.stdout)["data"]["run"]

    def in_on(after: int) -> int:
        """The block that is in an ON window, once there is one later than ``after``."""
        found: dict[str, int] = {}

        def seen() -> bool:
            arm, where, block = part(owner)
            if arm == "on" and where == "window" and block is not None and block > after:
                found["block"] = block
            return bool(found)

        wait_for(f"an ON window after block {after}", seen, RECOVER_S)
        return found["block"]

    block = in_on(0)
    owner.kills("prefect.engine")  # the flow's process
    wait_for("no work runs on without its run", lambda: not runners_of(owner.home), 60)
    block = in_on(block)
    owner.kills("prefect worker start")
    block = in_on(block)
    owner.kills("prefect server start")
    block = in_on(block)
    owner.kills("nodes.agent")
    block = in_on(block)

    wait_for("an answer", lambda: (owner.run(run) or {}).get("state") == "ended", RUN_S)
    record = owner.run(run)
    assert record is not None
    assert record["ending"] in {
        "no slowdown shown",
        "slowdown",
        "inconclusive",
        "refused",
        "no_dose",
        "harm_suspected",
        "interrupted",
    }
    numbers = [row["number"] for row in record["blocks"]]
    assert numbers == sorted(set(numbers)), "a block stands there twice"
    assert [row for row in record["blocks"] if row["state"] == "cut"], "the kills came in the middle of blocks"
    wait_for("nothing is left running", lambda: not runners_of(owner.home), 60)
    verify = owner.types("protection", "ab", "verify", run)
    assert verify.returncode == 0, verify.stdout + verify.stderr

    def kept() -> bool:
        from cotenant import store

        row = store.load_run(store.open(f"sqlite:///{owner.home}/store.sqlite"), run)
        return row is not None and [b["number"] for b in row["blocks"]] == numbers

    wait_for("the store has what the agent has, once", kept, 120)
