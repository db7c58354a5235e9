"""What a run measures must be beside the program that it protects: on its device, and work of that device."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.agent.block import BlockRunner, _Edge
from nodes.agent.under_test import TestedUnit as Metered
from nodes.agent.under_test import UnderTest
from nodes.meters.reading import Unreadable
from policies.units import duties, reasons
from policies.views import NodeView, RuleView, RunView, Unit
from policies.work import WorkSelector

TRAINER = RuleView(
    "trainer", active=True, holding=True, uses_device=True, protects_progress=True, devices=frozenset("a")
)
ON_A = Unit("a1", 1, "dev.cotenant.llmserve", "batch", device=True, gpu=True, devices=frozenset("a"))
ON_B = replace(ON_A, attempt="a2", devices=frozenset("b"))
ANYWHERE = replace(ON_A, attempt="a3", devices=None)
OFF_DEVICE = Unit("a4", 4, "dev.example.sim", "run", device=False)
GRANT = RunView("r1", "trainer", WorkSelector("all"), "grant", duty=0.4)


def test_work_under_test_on_another_device_than_the_programs_is_held() -> None:
    node = NodeView(rules=(TRAINER,), run=GRANT)
    assert reasons(ON_A, node) == ()
    assert reasons(ANYWHERE, node) == ()
    (why,) = reasons(ON_B, node)
    assert (why.code, why.run) == ("RUN_HOLD", True)
    for unknown in (None, frozenset()):
        assert reasons(ON_B, replace(node, rules=(replace(TRAINER, devices=unknown),))) == ()


def test_work_off_the_device_takes_no_duty_from_work_on_it() -> None:
    node = NodeView(rules=(TRAINER,), run=GRANT)
    assert duties([ON_A, OFF_DEVICE, ON_B], node) == {"a1": 0.4}
    assert duties([OFF_DEVICE], node) == {"a4": 0.4}


class Track:
    longest_step_s = 0.1
    void_s = 0.0

    def count_between(self, *_: float) -> Any:
        return SimpleNamespace(closed=True, events=600.0, void_s=self.void_s, unknown_s=0.0)

    def steps_between(self, start_s: float, end_s: float) -> int:
        return int(end_s - start_s)


class AgentStub:
    """Of the agent what a window asks."""

    def __init__(self, *, device_work: bool, sim: float | Unreadable = 60.0) -> None:
        self.device_work, self.sim = device_work, sim
        self.only: list[frozenset[str] | None] = []
        self.calls = 0
        self.under_test = self.observer = self
        self.track = Track()
        self.program = frozenset({(7, 1), (8, 1)})

    def members(self, rule: str, older_s: float) -> frozenset[tuple[int, int]]:
        return self.program

    def program_devices(self, rule: str) -> frozenset[str] | None:
        self.calls += 1
        return frozenset({f"GPU-{self.calls}"})

    def program_seen_on(self, rule: str, since_s: float) -> frozenset[str]:
        return frozenset({"b", "a"}) if since_s == 0.0 else frozenset()

    def has_device_work(self, run: Any) -> bool:
        return self.device_work

    def progress(self, rule: str) -> Any:
        return SimpleNamespace(track=self.track, readable=True)

    def ran_s(self, run: Any, begin_s: float, end_s: float) -> float:
        return end_s - begin_s

    def busy_totals(self, run: Any, since_s: float | None, only: frozenset[str] | None) -> dict[str, Metered]:
        self.only.append(only)
        far = len(self.only) > 1
        llm = Metered(
            "llmserve",
            "batch",
            1.0,
            None,
            6.0 if far else 0.0,
            "d",
            model="m.gguf",
            by_device={"a": 16.0 if far else 10.0, "b": 3.0 * far},
        )
        sim: float | Unreadable = self.sim if far else 0.0
        return {"a1": llm, "a4": Metered("sim", "run", 1.0, None, sim, "d", device=False)}


def window(agent: AgentStub, part: str) -> Any:
    spec = SimpleNamespace(rule="trainer", window_s=0.0)
    run = SimpleNamespace(run="r1", part=part, spec=spec, now=None, left=None)
    block = BlockRunner(cast(Any, agent), cast(Any, run), 1, "on_first")
    edges = iter([0.0, 60.0])

    async def at_once(*_: Any) -> None:
        return None

    def edge(since_s: float | None, only: frozenset[str] | None) -> _Edge:
        return _Edge(next(edges), agent.under_test.busy_totals(run, since_s, only))

    block._until, block._edge, block._leave = at_once, edge, lambda **_: None  # type: ignore[method-assign, assignment]
    return asyncio.run(block._window(1))


def test_the_dose_of_device_work_counts_no_work_off_the_device() -> None:
    agent = AgentStub(device_work=True)
    row = window(agent, "grant")
    assert row.dose == 0.1
    assert agent.only == [frozenset({"GPU-1"})] * 2, "the same devices at both edges"
    assert [unit.share for unit in row.units] == [0.1, 1.0], "all of it is in the report"
    unread = window(AgentStub(device_work=True, sim=Unreadable("why")), "grant")
    assert unread.dose == 0.1


def test_a_window_says_on_which_devices_program_and_work_were_seen() -> None:
    row = window(AgentStub(device_work=True), "grant")
    assert row.program_on == ("a", "b")
    assert row.steps == 60
    assert [unit.model for unit in row.units] == ["m.gguf", None]
    assert row.units[0].by_device == pytest.approx({"a": 0.1, "b": 0.05})
    assert row.units[1].by_device == {}


def test_all_work_counts_where_none_of_it_is_device_work_and_in_off() -> None:
    assert window(AgentStub(device_work=False), "grant").dose == 1.1
    off = AgentStub(device_work=True)
    assert window(off, "hold").dose == 1.1
    assert off.only == [None, None]


def test_whether_a_run_tests_device_work_is_told_by_its_record() -> None:
    """The record names module and stage alone; a run of work off the device has its dose by what that used."""
    for gpu, expected in ((False, False), (True, True)):
        record = {"work": [{"module": "sim", "stage": "run"}, *([{"module": "llm", "stage": "batch"}] if gpu else [])]}
        agent = SimpleNamespace(
            runs=SimpleNamespace(record=lambda run, record=record: record),
            units=SimpleNamespace(device_work=lambda module, stage: module == "llm"),
        )
        run = cast(Any, SimpleNamespace(run="r1"))
        assert UnderTest(cast(Any, agent)).has_device_work(run) is expected


@pytest.mark.parametrize(
    ("before", "now", "gap"),
    [
        ({7, 8}, {7, 8}, True),
        ({7, 8}, {7, 8, 9}, True),
        ({7, 8}, {7}, False),
        ({7, 8}, {7, 9}, False),
    ],
)
def test_a_source_that_begins_anew_as_a_worker_of_the_program_ended_is_no_rotation(
    before: set[int], now: set[int], gap: bool
) -> None:
    """The launcher above it stays, so no root died: the new file is the only trace, and it must not be voided away."""
    agent = AgentStub(device_work=True)
    agent.track.void_s, agent.program = 1.0, frozenset((pid, 1) for pid in now)
    run = SimpleNamespace(
        run="r1", part="grant", spec=SimpleNamespace(rule="trainer", window_s=0.0), now=None, left=None
    )
    block = BlockRunner(cast(Any, agent), cast(Any, run), 1, "on_first")
    block.members = frozenset((pid, 1) for pid in before)
    edges = iter([0.0, 60.0])

    async def at_once(*_: Any) -> None:
        return None

    def edge(since_s: float | None, only: frozenset[str] | None) -> _Edge:
        return _Edge(next(edges), agent.busy_totals(run, since_s, only))

    block._until, block._edge, block._leave = at_once, edge, lambda **_: None  # type: ignore[method-assign, assignment]
    row = asyncio.run(block._window(1))
    assert row.events is None
    assert block.gaps == ({"on"} if gap else set())
