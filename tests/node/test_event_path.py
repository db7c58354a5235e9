"""A phase of an ``immediate`` rule holds fleet work between two ticks, and the journal says how it was seen and how fast."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from nodes.agent.core import Agent
from nodes.agent.observe import Observer
from nodes.jobs import Attempt
from tests.node.agent_rig import wait_for
from tests.node.jobs_rig import foreign, state_of


class Node:
    """An agent's core without its process: ticks come only when the test asks for one."""

    def __init__(self, place: Path, capabilities: list[str], jobs: int = 2, rule: str = "immediate = true") -> None:
        self.events = place / "program" / "events.jsonl"
        self.events.parent.mkdir()
        self.events.write_bytes(b"")
        self.agent = Agent(place / "home", "local", place / "none")
        self.agent.slots = jobs
        self.agent.start()
        self.agent.tick()
        small = "{ resources = { cpu = 0.5, mem_gb = 0.05 } }"
        self.agent.modules.add(foreign(place, capabilities, requires=small))
        self.agent.set_section(
            f"""
[node]
mode = "fleet_first"
gpu_jobs = "always"
memory = {{ soft_free_pct = 0.2, hard_free_pct = 0.1 }}
[[rule]]
id = "program"
match = {{ path_prefix = "/no/such/program/" }}
{rule}
[[rule.during]]
source = {{ jsonl = "{self.events}", enter = "begin", exit = "end" }}
pause_fleet = {{ scope = "all" }}
""",
            "test",
        )
        for _ in range(jobs):
            self.agent.jobs.submit("stranger", None, {"do": "work"})
        self.agent.evaluate("tick")
        self.until(lambda: len(self.attempts) == jobs and all(a.state == "running" for a in self.attempts))

    @property
    def attempts(self) -> list[Attempt]:
        return self.agent.jobs.attempts()

    def until(self, seen: Any) -> Any:
        def look() -> Any:
            self.agent.jobs.tick(time.monotonic())
            return seen()

        return wait_for("the node", look)

    def append(self, event: str) -> None:
        with self.events.open("ab") as file:
            file.write(json.dumps({"event": event, "time": time.time()}).encode() + b"\n")

    def phases(self) -> list[dict[str, Any]]:
        return [e["data"] for e in self.agent.journal.entries(code="PROTECTION_PHASE_ON")]

    def close(self) -> None:
        self.agent.begin_shutdown()
        assert self.agent.jobs.drain(90)
        self.agent.journal.close()
        self.agent.hub.close()


def seen_by_event(node: Node) -> list[dict[str, Any]]:
    """The watcher's wake-ups alone: no tick happens in between."""

    def look() -> list[dict[str, Any]]:
        node.agent.on_source_event()
        return node.phases()

    return wait_for("the phase", look)


def test_frozen_runners_stop_between_ticks_and_the_latency_is_journaled(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"])
    began = time.time()
    node.append("begin")
    (entry,) = seen_by_event(node)
    assert (entry["how"], entry["rule"], entry["phase"]) == ("event", "program", 0)
    assert sorted(entry["paused"]) == sorted(a.attempt_id for a in node.attempts)
    assert entry["paused_to"] in ("stopped", "signalled")
    assert 0.0 < entry["latency_ms"] <= (time.time() - began) * 1e3
    wait_for("state T", lambda: all(state_of(a.runner_pid or 0) == "T" for a in node.attempts))
    (row,) = [row for row in node.agent.sources() if row["role"] == "phase"]
    assert row["latency_p50_ms"] == pytest.approx(entry["latency_ms"], abs=0.001)
    again = Observer(node.agent.journal, node.agent.hub)
    again.phases.remember_latencies()
    kept = again.phases.latencies[("program", 0)].quantile_ms(0.5)
    assert kept == pytest.approx(entry["latency_ms"]), "a restarted agent shows it, too"
    codes = [e["code"] for e in node.agent.journal.entries(limit=5000)]
    assert codes.count("PROTECTION_PAUSE") == 2
    assert codes.index("PROTECTION_PHASE_ON") < codes.index("PROTECTION_PAUSE")
    node.append("end")
    wait_for("the end", lambda: node.agent.on_source_event() or not any(a.state == "held" for a in node.attempts))
    node.close()


def test_a_runner_that_pauses_by_document_is_asked_between_ticks(tmp_path: Path) -> None:
    node = Node(tmp_path, ["cancellable", "cooperative_pause"], jobs=1)
    node.append("begin")
    (entry,) = seen_by_event(node)
    assert entry["paused_to"] == "asked"
    assert entry["latency_ms"] > 0.0
    (attempt,) = node.attempts
    assert json.loads((attempt.folder.work / "control.json").read_text())["pause"] is True
    (pause,) = node.agent.journal.entries(code="PROTECTION_PAUSE")
    assert pause["data"]["attempt"] == attempt.attempt_id
    assert pause["data"]["why"] == ["phase 1 of rule program is on"]
    node.close()


def test_without_immediate_the_tick_pauses_and_says_so(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"], jobs=1, rule="")
    node.append("begin")
    deadline = time.monotonic() + 5.0
    while not node.phases():
        assert time.monotonic() < deadline
        node.agent.on_source_event()
    (entry,) = node.phases()
    assert "paused" not in entry, "seen between ticks, and nothing was held"
    assert [a.state for a in node.attempts] == ["running"]
    node.agent.tick()
    assert [a.state for a in node.attempts] == ["held"]
    node.close()


def test_a_phase_that_ended_before_it_was_read_stops_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"], jobs=1)
    node.append("begin")
    node.append("end")
    (entry,) = seen_by_event(node)
    assert "paused" not in entry
    assert [a.state for a in node.attempts] == ["running"]
    node.close()


def test_only_the_scope_of_the_phase_is_stopped(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"], jobs=1)
    node.agent.set_section(node.agent.section_text.replace('scope = "all"', 'scope = "gpu"'), "test")
    node.append("begin")
    (entry,) = seen_by_event(node)
    assert "paused" not in entry, "the module uses no GPU"
    assert [a.state for a in node.attempts] == ["running"]
    os.kill(node.attempts[0].runner_pid or 0, 0)
    node.close()
