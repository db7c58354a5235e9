"""The agent dies or falls silent with four runners at full load, one of each kind: each is held as the ladder says, then judged anew."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.agent_death import KINDS, FourRunners, runners_of, until
from tests.node.jobs_rig import cpu_ticks, state_of

SECTION = """
[[rule]]
id = "phases"
match = {{ argv_regex = "no-such-program-runs-here" }}
[[rule.during]]
source = {{ jsonl = "{source}", event = "status", field = "phase", on = ["busy"] }}
pause_fleet = {{ scope = "all" }}
"""


@pytest.fixture
def four(tmp_path: Path) -> Iterator[FourRunners]:
    found = FourRunners(tmp_path)
    found.start_agent()
    yield found
    found.close()


def note(four: FourRunners, what: str, seen: dict[str, float]) -> None:
    print(f"{what}: " + ", ".join(f"{kind} {at:.3f} s" for kind, at in sorted(seen.items())))


def test_each_kind_is_held_by_its_ladder_and_let_go_on(four: FourRunners) -> None:
    four.submit()
    until(four.running)
    assert four.agent is not None
    seqs = {kind: four.control(kind)["seq"] for kind in KINDS}
    first, began = dict(four.attempts), time.monotonic()
    four.agent.kill()
    held = four.time_to_hold(began)
    note(four, "killed", held)
    assert set(held) == set(KINDS), "each was held"
    assert four.control("pause")["seq"] == four.control("both")["seq"] == seqs["pause"] + 1
    assert four.control("both")["pause"] is True
    before = {kind: cpu_ticks(four.pids[kind]) for kind in KINDS}
    time.sleep(2.5)  # past the launcher's own look at a pause
    for kind in ("freeze", "both"):
        assert cpu_ticks(four.pids[kind]) == before[kind]
    assert all(state_of(pid) != "gone" for pid in four.pids["pause"]), "one that paused is not ended"
    four.agent.wait()
    on_again = four.time_to_go_on(four.start_agent())
    note(four, "started again", on_again)
    assert set(on_again) == {"freeze", "pause", "both"}
    until(four.running)
    assert {kind: four.attempts[kind] == first[kind] for kind in KINDS} == {
        "freeze": True, "pause": True, "both": True, "neither": False,
    }  # fmt: skip
    (ended,) = [job for job in four.client.call("job_list", limit=50) if job["module"].endswith("neither")]
    shown = four.client.call("job_show", job=ended["job"])
    assert shown["attempts"][0]["ended_by"] in ("launcher", "itself")
    assert shown["attempts"][0]["verdict"], "what happened is recorded"
    codes = [entry["code"] for entry in four.client.call("timeline", limit=5000)["entries"]]
    assert codes.count("AGENT_ADOPTED") == 3
    assert "S16_GUARD" not in codes


def test_a_silent_agent_counts_as_dead(four: FourRunners) -> None:
    four.submit()
    until(four.running)
    assert four.agent is not None
    began = time.monotonic()
    four.agent.send_signal(signal.SIGSTOP)
    held = four.time_to_hold(began)
    note(four, "silent", held)
    assert set(held) == set(KINDS)
    began = time.monotonic()
    four.agent.send_signal(signal.SIGCONT)
    on_again = four.time_to_go_on(began)
    note(four, "continued", on_again)
    assert set(on_again) == {"freeze", "pause", "both"}


def test_what_a_rule_holds_by_now_is_adopted_and_stays_held(four: FourRunners, tmp_path: Path) -> None:
    source = tmp_path / "events.jsonl"
    source.write_text(json.dumps({"event": "status", "phase": "idle"}) + "\n")
    four.client.call("section_set", text=SECTION.format(source=source), by="test")
    four.submit()
    until(four.running)
    assert four.agent is not None
    four.agent.kill()
    assert set(four.time_to_hold(time.monotonic())) == set(KINDS)
    four.agent.wait()
    with source.open("a") as file:
        file.write(json.dumps({"event": "status", "phase": "busy"}) + "\n")
    before = {kind: cpu_ticks(four.pids[kind]) for kind in ("freeze", "both")}
    four.start_agent()
    until(lambda: sum(job["state"] == "held" for job in four.client.call("job_list", limit=50)) == 3)
    time.sleep(3.0)
    assert {kind: cpu_ticks(four.pids[kind]) for kind in before} == before, "nothing ran, not for a moment"
    with source.open("a") as file:
        file.write(json.dumps({"event": "status", "phase": "idle"}) + "\n")
    assert set(four.time_to_go_on(time.monotonic())) == {"freeze", "pause", "both"}


def test_agent_launcher_and_guardian_killed_at_once_and_nothing_goes_on(four: FourRunners) -> None:
    """A grandchild with a session of its own included; the restarted agent clears away what the kernel left."""
    four.submit()
    until(four.running)
    assert four.agent is not None
    time.sleep(4.5)  # two ticks: the trees stand in the registry
    keepers = {
        int((four.folder(kind) / "launcher.json").read_text().split('"pid": ')[1].split(",")[0]) for kind in KINDS
    }
    guardians = {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in keepers}
    attempts, pids = dict(four.attempts), [pid for kind in KINDS for pid in four.pids[kind]]
    four.agent.kill()
    for pid in (*guardians, *keepers):
        os.kill(pid, signal.SIGKILL)
    four.agent.wait()
    four.start_agent()
    until(lambda: all(state_of(pid) == "gone" for pid in pids))
    assert all(runners_of(attempt) == [] for attempt in attempts.values())
