"""Batches of prompts through a real agent: each is answered once, whatever is killed in between."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant import store
from policies.refusal import Refused
from tasks.prompts import BatchStopped
from tests.node.agent_rig import Rig, runners_of, wait_for
from tests.node.batch_rig import go_on, make, ready, rows, work_on

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("home"))
    rig.start_agent()
    ready(rig)
    yield rig
    rig.stop()


def answered_prompts(rig: Rig, batch: str) -> list[str]:
    """Every answer that any attempt of the batch's jobs wrote down, as the agent tells it."""
    found = []
    for job in store.batch_jobs(store.open(store.default_url(rig.home)), batch):
        place = 0
        while (told := rig.client.call("job_events", job=job["job"], after=place))["lines"]:
            place = told["next"]
            events = [json.loads(line) for line in told["lines"]]
            found += [event["answer"]["id"] for event in events if event.get("name") == "prompt"]
    return found


def test_a_batch_is_answered_in_jobs_and_its_figures_add_up(rig: Rig) -> None:
    make(rig.home, "sum", 25, per_job=10)
    status = go_on(work_on(rig, "sum"))
    assert (status["done"], status["failed"], status["open"], status["jobs"]) == (25, 0, 0, 3)
    assert (status["state"], status["repeated"]) == ("done", 0)
    figures = status["figures"]
    assert figures["tokens"] == 25 * 6
    assert figures["width_most"] > 1, "prompts of a job are decoded together"
    assert figures["shared_tokens"] >= 3 * 20, "what they begin with is read once a job"
    assert figures["tokens_per_busy_s"] >= figures["tokens_per_wall_s"] > 0
    assert {row["answer"]["finish"] for row in rows(rig.home, "sum")} == {"length"}
    assert sorted(answered_prompts(rig, "sum"), key=int) == [str(number) for number in range(25)]


def test_kills_of_runner_flow_and_agent_lose_and_repeat_nothing(rig: Rig) -> None:
    """The flow's process is stood for by its steps, dropped in the middle and begun anew from the store."""
    make(rig.home, "kills", 40, max_tokens=12, per_job=20, width=4)
    work = work_on(rig, "kills")
    killed = 0

    def kill_a_runner() -> None:
        nonlocal killed
        if killed < 2:
            for pid in runners_of(rig.home):
                os.kill(pid, signal.SIGKILL)
                killed += 1

    class Dropped(Exception):
        pass

    def drop() -> None:
        kill_a_runner()
        if work.status()["done"] >= 10:
            raise Dropped

    with pytest.raises(Dropped):
        go_on(work, drop)
    assert rig.agent is not None
    rig.agent.kill()
    rig.agent.wait()
    rig.start_agent()
    status = go_on(work_on(rig, "kills", "flow-2"), kill_a_runner)
    assert killed >= 1
    assert (status["done"], status["failed"], status["open"]) == (40, 0, 0)
    # what a killed runner had in hand begins again; what it had told of never does
    told = answered_prompts(rig, "kills")
    assert len(told) == len(set(told)) == 40
    assert status["repeated"] == 0


def test_a_reboot_in_the_middle_loses_and_repeats_nothing(rig: Rig) -> None:
    """A machine that went down: every process is gone at once, the last line was cut, and the boot is another one."""
    make(rig.home, "reboot", 20, max_tokens=60, width=2)

    class Down(Exception):
        pass

    def down() -> None:
        raise Down

    with pytest.raises(Down):
        go_on(work_on(rig, "reboot"), down)
    assert rig.agent is not None
    rig.agent.kill()
    rig.agent.wait()
    for pid in processes_of(rig.home):
        os.kill(pid, signal.SIGKILL)
    wait_for("nothing of the node is left", lambda: not processes_of(rig.home))
    for events in (rig.home / "nodes").glob("*/jobs/*/work/events.ndjson"):
        with open(events, "a") as file:
            file.write('{"type": "checkpoint", "name": "prompt", "answer": {"id": "19", "te')
    (journal,) = (rig.home / "nodes").glob("*/journal.sqlite")
    with contextlib.closing(sqlite3.connect(journal)) as db, db:
        assert db.execute("UPDATE attempts SET boot_id = 'another boot' WHERE ended_at IS NULL").rowcount == 1
    rig.start_agent()
    status = go_on(work_on(rig, "reboot", "flow-2"))
    assert (status["done"], status["failed"], status["repeated"], status["jobs"]) == (20, 0, 0, 1)
    told = answered_prompts(rig, "reboot")
    assert len(told) == len(set(told)) == 20


def processes_of(home: Path) -> list[int]:
    """Launchers and runners: their command lines name the home."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and f"{home}/nodes/".encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def test_a_paused_and_an_evicted_job_give_back_only_what_was_open(rig: Rig) -> None:
    make(rig.home, "pause", 12, max_tokens=100, width=2)
    work = work_on(rig, "pause")
    met: list[object] = []

    def meddle() -> None:
        job = rig.client.call("job_list", limit=1)[0]
        if len(met) == 2 or job["state"] != "running":
            return
        rig.client.call("section_set", text="[node]\npause = true\n", by="test")
        met.append(wait_for("the job no longer runs", lambda: state_of_newest(rig) in ("held", "waiting", "ended")))
        rig.client.call("section_set", text="", by="test")

    status = go_on(work, meddle)
    assert met, "the job was over before anything was done to it"
    assert (status["done"], status["repeated"]) == (12, 0)
    assert len(answered_prompts(rig, "pause")) == 12


def state_of_newest(rig: Rig) -> str:
    return str(rig.client.call("job_list", limit=1)[0]["state"])


def test_cancelling_stops_the_job_within_its_grace_and_keeps_what_is_done(rig: Rig) -> None:
    make(rig.home, "cancel", 12, max_tokens=50, width=2)
    work = work_on(rig, "cancel")

    class Cancel(Exception):
        pass

    def some() -> None:
        raise Cancel

    with pytest.raises(Cancel):
        go_on(work, some)
    work.cancel()
    status = work.status()
    assert status["state"] == "cancelled"
    assert status["done"] >= 1
    assert status["open"] == 12 - status["done"] > 0
    job = rig.client.call("job_list", limit=1)[0]
    assert (job["state"], job["outcome"]) == ("ended", "cancelled")
    assert runners_of(rig.home) == []

    again = work_on(rig, "cancel", "flow-2")
    before = {row["number"] for row in rows(rig.home, "cancel") if row["state"] == "done"}
    status = go_on(again)
    assert (status["done"], status["state"]) == (12, "done")
    told = answered_prompts(rig, "cancel")
    assert len(told) == len(set(told)) == 12
    assert before


def test_a_job_that_somebody_cancels_stops_the_batch_and_a_retry_goes_on(rig: Rig) -> None:
    make(rig.home, "somebody", 8, max_tokens=50, width=2)
    work = work_on(rig, "somebody")

    def cancel() -> None:
        rig.client.call("job_cancel", job=rig.client.call("job_list", limit=1)[0]["job"])

    with pytest.raises(BatchStopped, match="was cancelled"):
        go_on(work, cancel)
    assert go_on(work_on(rig, "somebody", "flow-2"))["done"] == 8


def test_a_batch_for_a_backend_that_is_not_there_waits_with_the_reason(rig: Rig) -> None:
    make(rig.home, "missing", 5, backend="llamacpp", model="none.gguf")
    work = work_on(rig, "missing")
    chunk = work.next()
    assert chunk is not None
    waiting = wait_for(
        "the job says why", lambda: (job := rig.client.call("job_show", job=chunk.job))["failure"] and job
    )
    assert waiting["failure"]["reason"] == "llmserve/no_backend"
    assert "cotenant llmserve install" in waiting["failure"]["detail"]
    assert (waiting["state"], work.status()["open"]) != ("ended", 0)
    rig.client.call("job_cancel", job=chunk.job)
    with pytest.raises(BatchStopped, match="was cancelled"):
        work.follow(chunk, lambda: None)


def test_the_same_key_gives_the_same_job(rig: Rig) -> None:
    asked = {"module": "llmserve", "stage": "batch", "payload": {"prompts": ["a"], "backend": "stub"}, "key": "b/0"}
    job = rig.client.call("job_submit", **asked)["job"]
    assert rig.client.call("job_submit", **asked)["job"] == job
    assert rig.client.call("job_show", key="b/0")["job"] == job
    assert rig.client.call("job_cancel", key="b/0")["job"] == job
    with pytest.raises(Refused, match="no such job"):
        rig.client.call("job_cancel", key="b/1")
    with pytest.raises(Refused, match="by its number or by its key"):
        rig.client.call("job_show")
