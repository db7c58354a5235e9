"""Three nodes of one fleet while its server, then its database, is gone for a minute: nothing is lost, nothing unleashed.

Each node has something under way: one a harness run, one batches of prompts, one fleet work that nothing certifies. The minute is
longer than every lease in play but the flows' heartbeat (a launcher's pipe 10 s, a run's holder 2 s, a worker's query 2 s and
heartbeat 30 s, the mirror's longest pause 60 s); flows beat every 600 s and count as dead after 1,800 s, on purpose.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant import store
from tests.faults.test_batch_kills import answers_of
from tests.node.agent_rig import cpu_s, runners_of, wait_for
from tests.postgres.conftest import Cluster
from tests.postgres.fleet_rig import AUTH, START_S, Hub, Member

AWAY_S = 60.0
STEP_S, END_S = 600.0, 1200.0
PROMPTS = 60
RUN = (
    "--window",
    "5",
    "--washout",
    "1",
    "--margin",
    "0.5",
    "--duty",
    "0.1",
    "--max-hours",
    "0.054",
    "--first-look",
    "16",
)
WORK = ("--work", "llmserve/selftest", "--feed", "llmserve/selftest")
ANSWERS = {"no slowdown shown", "slowdown", "inconclusive", "refused", "no_dose", "harm_suspected"}


class Fleet:
    """The three, and what each has under way."""

    def __init__(self, folder: Path, postgres: Cluster) -> None:
        self.postgres = postgres
        self.hub = Hub(folder / "hub", "hub", postgres)  # measures
        self.mac = Member(folder / "mac-01", "mac-01")  # answers prompts
        self.pc = Member(folder / "pc-02", "pc-02")  # has work that nothing certifies
        self.members = (self.hub, self.mac, self.pc)
        self.started_s = time.monotonic()
        self.batches: list[str] = []
        self.run = ""
        self.job = 0

    def say(self, words: str) -> None:
        print(f"{time.monotonic() - self.started_s:6.0f} s  {words}", flush=True)

    def start(self) -> None:
        self.hub.up()
        for member in (self.mac, self.pc):
            where = ("--server", self.hub.server, "--auth-string", AUTH, "--store", self.postgres.url("cotenant"))
            member.asks("node", "join", member.node, *where)
            member.run()
        for member in (self.mac, self.pc):
            wait_for(f"{member.node} is up", member.is_up, 3 * START_S)
        for member in self.members:
            wait_for("llmserve is ready", lambda m=member: m.rig.client.call("modules")[0]["state"] == "ready", STEP_S)

    def stop(self) -> None:
        for member in (self.pc, self.mac, self.hub):
            member.stop()

    # -- what is under way ------------------------------------------------------------------------------------------

    def begin_run(self) -> None:
        self.hub.rig.start_program()
        self.protect(self.hub)
        begun = self.hub.asks("protection", "ab", "start", "hub", "--rule", "stepper", *WORK, *RUN, "--yes")
        self.run = begun["run"]

    def begin_batch(self) -> str:
        file = self.mac.home / "prompts.jsonl"
        lines = [json.dumps({"id": f"p{n}", "prompt": f"Tell me about {n}."}) for n in range(PROMPTS)]
        file.write_text("\n".join(lines) + "\n")
        how = ("--backend", "stub", "--max-tokens", "256", "--width", "4", "--per-job", "20")
        self.batches.append(self.mac.asks("llmserve", "queue", str(file), *how)["batch"])
        return self.batches[-1]

    def begin_uncertified(self) -> None:
        # busy enough to be seen to use the device (5 % of it), else nothing is held beside it
        stepper = self.pc.rig.stepper
        stepper.write_text(stepper.read_text().replace("range(20000)", "range(400000)"))
        self.program = self.pc.rig.start_program()
        self.protect(self.pc, 'gpu_jobs = "certified"')
        payload = {"prompts": 1_000_000, "max_tokens": 32, "seed": 7}
        asked = self.pc.rig.client.call("job_submit", module="llmserve", stage="selftest", payload=payload)
        self.job = int(asked["job"])
        wait_for("the job waits for a certificate", self.is_held, STEP_S)

    @staticmethod
    def protect(member: Member, extra: str = "") -> None:
        rig = member.rig
        rig.client.call("section_set", text=rig.section(extra_node=extra), by="test")

        def seen() -> bool:
            status = rig.client.call("status")
            return bool(status["rules"] and status["rules"][0]["active"] and status["sources"][0]["rate"])

        wait_for(f"the program of {member.node} is read", seen, STEP_S)

    # -- what is to be seen -----------------------------------------------------------------------------------------

    def is_held(self) -> bool:
        reasons = self.pc.rig.client.call("explain", job=self.job)["reasons"]
        return self.job_state() != "running" and "GPU_NOT_CERTIFIED" in {each["code"] for each in reasons}

    def job_state(self) -> str:
        return str(self.pc.rig.client.call("job_show", job=self.job)["state"])

    def counted(self) -> int:
        """Blocks that count so far; none while the run's flow is on its way."""
        if self.run not in {row["run"] for row in self.hub.rig.client.call("run_list")}:
            return 0
        record: dict[str, Any] = self.hub.rig.client.call("run_show", run=self.run)
        return len([row for row in record["blocks"] if row["state"] == "counted"])

    def run_is_open(self) -> bool:
        return bool(self.hub.rig.client.call("run_show", run=self.run)["state"] == "open")

    def rest_of(self, until_s: float, check: Callable[[], None]) -> None:
        """Until the minute is over, every agent answers and what must hold holds."""
        while time.monotonic() < until_s:
            for member in self.members:
                assert member.answers(), f"the agent of {member.node} does not answer"
            check()
            time.sleep(1.0)


@pytest.fixture
def fleet(tmp_path: Path, postgres: Cluster) -> Iterator[Fleet]:
    found = Fleet(tmp_path, postgres)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_a_minute_without_the_server_and_one_without_the_database(fleet: Fleet, postgres: Cluster) -> None:
    engine = store.open(postgres.url("cotenant"))
    hub, mac, pc = fleet.members
    fleet.say("three nodes are up")
    fleet.begin_uncertified()
    batch = fleet.begin_batch()
    fleet.begin_run()

    def done(name: str) -> int:
        status = store.batch_status(engine, name)
        assert status is not None
        return int(status["done"])

    wait_for("the run counts blocks", lambda: fleet.counted() >= 1, STEP_S)
    wait_for("prompts are answered", lambda: done(batch) >= 1, STEP_S)
    assert not runners_of(pc.home), "nothing runs that no certificate covers"
    assert fleet.run_is_open()
    before = (fleet.counted(), done(batch))

    # a minute without the server; meanwhile the protected program of one node ends, and its agent lets the work go
    hub.kill_server()
    over_s = time.monotonic() + AWAY_S
    fleet.say(f"the server is gone; {before[0]} blocks, {before[1]} prompts")
    refused = mac.is_refused("protection", "set", "pc-02", str(write_section(mac)), "--yes")
    assert refused["code"] == "SERVER_UNREACHABLE", refused
    assert refused["remedy"]
    assert fleet.is_held()
    fleet.program.terminate()
    fleet.program.wait(60)
    wait_for("the job runs: nothing is protected any more", lambda: fleet.job_state() == "running", STEP_S)
    fleet.rest_of(over_s, lambda: None)
    assert fleet.counted() > before[0] or not fleet.run_is_open(), "blocks were counted without the server"
    assert done(batch) > before[1] or done(batch) == PROMPTS, "prompts were answered without the server"
    fleet.say(f"back after {time.monotonic() - over_s + AWAY_S:.0f} s; {fleet.counted()} blocks, {done(batch)} prompts")
    hub.up()
    fleet.say("the server is up again")

    # a minute without the database, Prefect's and the store; meanwhile the program starts again, and its agent holds the work
    second = fleet.begin_batch()
    wait_for("prompts of the second batch are answered", lambda: done(second) >= 1, STEP_S)
    fleet.say(
        f"the database goes; the run is {'open' if fleet.run_is_open() else 'over'}, {done(second)} prompts of {PROMPTS}"
    )
    assert done(second) < PROMPTS
    postgres.stop()
    over_s = time.monotonic() + AWAY_S
    lost = mac.is_refused("protection", "ab", "list", "--fleet")
    assert lost["code"] == "STORE_UNREACHABLE", lost
    assert "secret" not in str(lost)
    refused = mac.is_refused("protection", "set", "pc-02", str(write_section(mac)), "--yes")
    assert refused["code"] == "SERVER_UNREACHABLE", refused
    fleet.program = pc.rig.start_program()
    wait_for("the job is held again", fleet.is_held, STEP_S)
    time.sleep(2.0)
    used_s = cpu_s(runners_of(pc.home))

    def nothing_is_unleashed() -> None:
        assert fleet.is_held()

    fleet.rest_of(over_s, nothing_is_unleashed)
    postgres.start()
    fleet.say(f"the database is back after {time.monotonic() - over_s + AWAY_S:.0f} s")
    # of a runner that is frozen, or that reads its pause document; one that works would use tens of seconds
    assert cpu_s(runners_of(pc.home)) - used_s <= 0.02 * AWAY_S, "held work ran"

    # right afterwards the fleet can be looked at, and what was under way comes to its end
    listed = wait_for("the fleet is listed", lambda: listed_nodes(mac), STEP_S)
    assert set(listed) == {"hub", "mac-01", "pc-02"}
    fleet.say("the fleet is listed")
    wait_for("the run has its answer", lambda: not fleet.run_is_open(), END_S)
    for name in fleet.batches:
        wait_for(f"batch {name} is done", lambda name=name: is_done(mac, engine, name), END_S)
    fleet.say("run and batches are done")
    run_is_whole(fleet, engine)
    for name in fleet.batches:
        batch_is_whole(fleet, engine, name)
    for member in fleet.members:
        wait_for(
            f"the journal of {member.node} is copied", lambda m=member: journal_is_whole(m, engine, postgres), STEP_S
        )
    fleet_commands(fleet)
    assert fleet.is_held()
    fleet.say("nothing is lost")
    engine.dispose()


def write_section(member: Member) -> Path:
    file = member.home / "section.toml"
    file.write_text(member.rig.section(name="typed"))
    return file


def listed_nodes(member: Member) -> dict[str, Any] | None:
    done = member.types("node", "list", "--fleet", "--json")
    answer = json.loads(done.stdout)
    rows = {row["node"]: row for row in answer["data"] or []}
    online = [row for row in rows.values() if row["worker"] == "online" and row["last_seq"]]
    return rows if len(online) == 3 else None


def is_done(member: Member, engine: Any, batch: str) -> bool:
    """An owner's only part is to retry a flow run that gave up while the database was away."""
    status = store.batch_status(engine, batch)
    assert status is not None
    if status["state"] == "done":
        return True
    member.types("llmserve", "retry", batch)  # refused while its flow run has not ended
    time.sleep(5.0)
    return False


def run_is_whole(fleet: Fleet, engine: Any) -> None:
    """Ended with an answer, no block twice, the store has what the agent has, and the verdict follows from the windows."""
    record: dict[str, Any] = fleet.hub.rig.client.call("run_show", run=fleet.run)
    assert record["ending"] in ANSWERS, record["ending"]
    numbers = [row["number"] for row in record["blocks"]]
    assert numbers == list(range(1, len(numbers) + 1)), "a block is missing or stands there twice"

    def kept() -> bool:
        row = store.load_run(engine, fleet.run)
        return row is not None and row["state"] == "ended" and [b["number"] for b in row["blocks"]] == numbers

    wait_for("the store has the run as the agent has it", kept, STEP_S)
    verify = fleet.hub.types("protection", "ab", "verify", fleet.run)
    assert verify.returncode == 0, verify.stdout + verify.stderr
    fleet.say(f"the run: {record['ending']}, {len(numbers)} blocks")


def batch_is_whole(fleet: Fleet, engine: Any, batch: str) -> None:
    """Every prompt is answered once and no answer was asked for again."""
    status = store.batch_status(engine, batch)
    assert status is not None
    assert (status["done"], status["failed"], status["open"]) == (PROMPTS, 0, 0), status
    assert status["repeated"] == 0
    answered = [number for job in store.batch_jobs(engine, batch) for number in answers_of(fleet.mac, job["job"])]
    assert sorted(answered, key=int) == [str(number) for number in range(PROMPTS)]


def journal_is_whole(member: Member, engine: Any, postgres: Cluster) -> bool:
    """Each entry of the agent's journal stands in the store once, and was sent as an event at least once."""
    own = journal_of(member)
    kept: list[dict[str, Any]] = []
    while more := store.timeline_entries(engine, member.node, kept[-1]["seq"] if kept else 0):
        kept += more
    assert [each["seq"] for each in kept] == list(range(1, len(kept) + 1))
    if len(kept) < len(own):
        return False
    assert [(each["seq"], each["code"]) for each in kept[: len(own)]] == [(each["seq"], each["code"]) for each in own]
    asked = f"SELECT count(DISTINCT id) FROM events WHERE resource_id = 'cotenant.node.{member.node}'"
    return int(postgres.query("prefect", asked)) >= len(own)


def journal_of(member: Member) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["seq"] if found else 0
        told = member.rig.client.call("timeline", after_seq=after, limit=5000)["entries"]
        if not told:
            return found
        found += told


def fleet_commands(fleet: Fleet) -> None:
    """From any of the homes, the whole fleet."""
    runs = {row["run"]: row for row in fleet.mac.asks("protection", "ab", "list", "--fleet")}
    assert runs[fleet.run]["node"] == "hub"
    owned = fleet.pc.asks("protection", "certificates", "--fleet")
    record: dict[str, Any] = fleet.hub.rig.client.call("run_show", run=fleet.run)
    assert [row["run"] for row in owned] == ([fleet.run] if record["certificate"] else [])
    duty = {row["node"]: row for row in fleet.mac.asks("protection", "duty", "--fleet")["nodes"]}
    assert set(duty) == {"hub", "mac-01", "pc-02"}
    assert duty["pc-02"]["duty"]["state"] == "closed"
    assert not duty["pc-02"]["duty"]["budget"]
