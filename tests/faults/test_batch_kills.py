"""A batch of prompts as an owner queues it, while something kills a process of the node again and again.

``COTENANT_SABOTAGE_PROMPTS`` sets how many prompts (`make test-sabotage`: 500). Each is answered once, and no answer that was recorded
is asked for again, whatever was killed: runner, flow, agent, worker, Prefect server.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant import store
from nodes.client import AgentUnreachable
from tests.faults.test_whole_node import START_S, Owner
from tests.node.agent_rig import runners_of, wait_for

PROMPTS = int(os.environ.get("COTENANT_SABOTAGE_PROMPTS", "100"))
# at least this long between two kills, and no kill before some prompt was answered since the last
KILL_EVERY_S = float(os.environ.get("COTENANT_SABOTAGE_EVERY_S", "5"))
KILLED = ("runner", "prefect.engine", "nodes.agent", "prefect worker start", "prefect server start")
# after each kill the node must come to answer prompts again; starting Prefect takes minutes on a busy host
RECOVER_S = 900.0


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    found = Owner(tmp_path)
    # At idle priority a flow on a busy machine takes minutes to start; that it is lowered has a test of its own.
    found.env["COTENANT_FLOW_PRIORITY"] = "normal"
    yield found
    found.types("down", limit_s=180)
    found.rig.stop()
    for pid in found.pids():
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)


def strike(owner: Owner, what: str) -> bool:
    """Whether there was one to kill."""
    pids = runners_of(owner.home) if what == "runner" else owner.pids(what)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return bool(pids)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_prompt_is_answered_once_whatever_is_killed(owner: Owner) -> None:
    up = owner.types("up", "--detach", limit_s=START_S)
    assert up.returncode == 0, up.stderr
    wait_for("llmserve is ready", lambda: owner.rig.client.call("modules")[0]["state"] == "ready", 300)
    file = owner.home / "prompts.jsonl"
    file.write_text(
        "".join(json.dumps({"id": f"p{n}", "prompt": f"Tell me about {n}."}) + "\n" for n in range(PROMPTS))
    )
    asked = (
        "llmserve",
        "queue",
        str(file),
        "--backend",
        "stub",
        "--max-tokens",
        "24",
        "--width",
        "4",
        "--per-job",
        "25",
    )
    queued = owner.types(*asked, "--json", limit_s=RECOVER_S)
    assert queued.returncode == 0, queued.stderr
    batch = json.loads(queued.stdout)["data"]["batch"]
    engine = store.open(store.default_url(owner.home))
    kills = sabotage(owner, engine, batch)

    status = store.batch_status(engine, batch)
    assert status is not None
    assert (status["done"], status["failed"], status["open"]) == (PROMPTS, 0, 0), status
    assert status["repeated"] == 0, "an answer that was recorded came again"
    rows = list(store.prompt_rows(engine, batch))
    assert [row["number"] for row in rows] == list(range(PROMPTS))
    assert all(row["answer"]["tokens"] == 24 for row in rows)
    # the last that was killed may have been the agent, which is started again
    wait_for("the agent is back", lambda: agent_answers(owner), RECOVER_S)
    answered = Counter(number for job in store.batch_jobs(engine, batch) for number in answers_of(owner, job["job"]))
    assert answered == Counter({str(number): 1 for number in range(PROMPTS)})
    out = owner.home / "out.jsonl"
    got = owner.types("llmserve", "results", batch, "-o", str(out), limit_s=RECOVER_S)
    assert got.returncode == 0, got.stderr
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [f"p{n}" for n in range(PROMPTS)]
    assert sum(kills.values()) >= len(KILLED), kills
    print(f"killed: {dict(kills)}; flow runs and jobs: {status['jobs']} jobs")


def sabotage(owner: Owner, engine: Any, batch: str) -> Counter[str]:
    """Kill one thing after the other until the batch is done; an owner's only part is to retry a flow run that gave up."""
    kills: Counter[str] = Counter()
    order = itertools.cycle(KILLED)
    what, last_s, closed = next(order), 0.0, 0
    since_s = time.monotonic()
    until = since_s + RECOVER_S
    killed: tuple[str, float] | None = None

    def tell(words: str) -> None:
        print(f"[{time.monotonic() - since_s:5.0f} s] {words}", flush=True)

    while True:
        status = store.batch_status(engine, batch)
        assert status is not None
        if status["state"] == "done":
            return kills
        now_closed = status["done"] + status["failed"]
        if now_closed > closed:
            until = time.monotonic() + RECOVER_S
            if killed is not None:
                after_s = time.monotonic() - killed[1]
                tell(f"{now_closed} of {PROMPTS} answered; the first {after_s:.0f} s after {killed[0]}")
                killed = None
        assert time.monotonic() < until, f"no prompt was answered for {RECOVER_S:g} s after {dict(kills)}: {status}"
        if now_closed > closed and time.monotonic() - last_s >= KILL_EVERY_S and strike(owner, what):
            kills[what] += 1
            killed = (f"kill {kills.total()}, {what}", time.monotonic())
            what, last_s, closed = next(order), time.monotonic(), now_closed
        elif time.monotonic() - last_s > 60.0 and not owner.pids("prefect.engine"):
            # refused while its flow run has not ended
            again = owner.types("llmserve", "retry", batch, limit_s=RECOVER_S)
            tell("retried" if again.returncode == 0 else f"not retried: {again.stderr.strip()}")
            last_s = time.monotonic()
        time.sleep(0.3)


def agent_answers(owner: Owner) -> bool:
    try:
        return bool(owner.rig.client.call("hello"))
    except AgentUnreachable:
        return False


def answers_of(owner: Owner, job: int) -> list[str]:
    found: list[str] = []
    place = 0
    while (told := owner.rig.client.call("job_events", job=job, after=place))["lines"]:
        place = told["next"]
        events = [json.loads(line) for line in told["lines"]]
        found += [event["answer"]["id"] for event in events if event.get("name") == "prompt"]
    return found
