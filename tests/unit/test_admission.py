"""Whether a waiting job may start: rules, ceilings, slots, cores, memory with what is declared and what is set aside."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission import Room, Taken, admission
from policies.caps import Caps, Reserve, caps_of, reserve_of, strictest_caps, sum_of_reserves
from policies.codes import CODES
from policies.memory_guard import Pool
from policies.section import models
from policies.units import desired
from policies.views import NodeView, PhaseView, RuleView, RunView, Unit
from policies.work import WorkSelector

GB = 10**9
JOB = Unit("", 1, "dev.example.sim", "run", device=False)
RUNNING = Unit("a1", 7, "dev.example.sim", "run", device=False)
MACHINE = Pool(16 * GB, 8 * GB, "machine")
ROOM = Room(slots=4, cores=4.0, pools=(MACHINE,), soft_free_pct=12.0)


def capping(**caps: float) -> NodeView:
    return NodeView(rules=(RuleView("game", True, True, cap=Caps(**caps, by="rule game")),))  # type: ignore[arg-type]


def codes(node: NodeView = NodeView(), room: Room = ROOM, unit: Unit = JOB, mem_gb: float = 0.5) -> list[str]:  # noqa: B008
    found = [reason.code for reason in admission(unit, node, room, mem_gb * GB)]
    assert all(CODES[code].remedy for code in found), "every reason of a waiting job has a remedy"
    return found


def test_a_job_with_room_starts() -> None:
    assert codes() == []


def test_an_announced_phase_lets_nothing_start_that_it_would_pause() -> None:
    def soon(scope: str | None, **more: object) -> NodeView:
        phase = PhaseView(0, False, scope, soon=True, **more)  # type: ignore[arg-type]
        return NodeView(mode="fleet_first", rules=(RuleView("x", False, False, phases=(phase,)),))

    assert codes(soon("all")) == ["PROTECTION_PHASE_SOON"]
    assert codes(soon(None, evict="cpu")) == ["PROTECTION_PHASE_SOON"]
    assert codes(soon("gpu")) == [], "it uses no GPU"
    assert codes(soon(None)) == []
    (runs,) = desired([RUNNING], soon("all"))
    assert runs.action == "run", "what runs goes on until the phase is on"


def test_slots_and_cores_are_taken_by_what_runs() -> None:
    taken = tuple(Taken(replace(RUNNING, attempt=f"a{i}")) for i in range(4))
    assert codes(room=replace(ROOM, taken=taken, cores=8.0)) == ["JOB_NO_SLOT"]
    assert codes(room=replace(ROOM, taken=taken[:2], cores=2.0)) == ["JOB_NO_CORES"]


def test_case_075_work_that_is_held_keeps_its_slot_and_its_memory_but_no_core() -> None:
    held = tuple(Taken(replace(RUNNING, attempt=f"a{i}"), mem_bytes=2.5 * GB, held=True) for i in range(2))
    assert codes(room=replace(ROOM, taken=held, cores=1.0)) == []
    assert codes(room=replace(ROOM, taken=held, slots=2)) == ["JOB_NO_SLOT"]
    assert codes(room=replace(ROOM, taken=held), mem_gb=1.2) == ["MEMORY_SHORT"]


def test_what_feeds_a_run_takes_the_slot_of_work_that_the_run_holds() -> None:
    run = RunView("run-1", "trainer", WorkSelector("dev.x/batch"), "grant", "paused", 0.2, "dev.x/batch")
    feed = replace(JOB, feed_of="run-1")
    held, runs = (Taken(replace(RUNNING, attempt="a"), mem_bytes=2.5 * GB, held=held) for held in (True, False))
    one = replace(ROOM, slots=1, cores=1.0)
    measuring = NodeView(mode="fleet_first", run=run)
    assert codes(measuring, unit=feed, room=replace(one, taken=(held,))) == []
    assert codes(measuring, unit=feed, room=replace(one, taken=(runs,))) == ["JOB_NO_SLOT", "JOB_NO_CORES"]
    assert codes(measuring, unit=feed, room=replace(one, taken=(held,)), mem_gb=4.0) == ["MEMORY_SHORT"], (
        "memory is memory"
    )


def test_a_job_that_declares_more_cores_than_there_are_may_have_all() -> None:
    greedy = replace(JOB, cores=64.0)
    assert codes(unit=greedy) == []
    assert codes(unit=greedy, room=replace(ROOM, taken=(Taken(RUNNING),))) == ["JOB_NO_CORES"]


def test_what_a_stage_declares_counts_before_its_job_starts() -> None:
    # 8 GB are available and 12 % of 16 GB are kept free
    assert codes(mem_gb=6.0) == []
    assert codes(mem_gb=6.2) == ["MEMORY_SHORT"]


def test_what_a_running_job_has_not_taken_yet_is_not_given_away() -> None:
    young = Taken(RUNNING, mem_bytes=4 * GB, footprint_bytes=1 * GB)
    assert codes(room=replace(ROOM, taken=(young,)), mem_gb=3.0) == []
    assert codes(room=replace(ROOM, taken=(young,)), mem_gb=3.2) == ["MEMORY_SHORT"]
    unknown = replace(young, footprint_bytes=None)
    assert codes(room=replace(ROOM, taken=(unknown,)), mem_gb=3.0) == ["MEMORY_SHORT"]


def test_case_047_the_smaller_of_machine_and_control_group_binds() -> None:
    group = Pool(GB, 900_000_000, "control group /x")
    assert codes(room=replace(ROOM, pools=(MACHINE, group)), mem_gb=0.5) == []
    assert codes(room=replace(ROOM, pools=(MACHINE, group)), mem_gb=0.9) == ["MEMORY_SHORT"]


@pytest.mark.parametrize("pool", [Pool(None, None), Pool(GB, None), Pool(0, 0)])
def test_memory_that_cannot_be_read_admits_nothing(pool: Pool) -> None:
    assert codes(room=replace(ROOM, pools=(MACHINE, pool))) == ["MEMORY_UNKNOWN"]


def test_a_reserve_sets_cores_and_memory_aside() -> None:
    cores = NodeView(rules=(RuleView("game", True, True, reserve=Reserve(cores=3.0, by="rule game")),))
    assert codes(cores) == []
    assert codes(cores, replace(ROOM, taken=(Taken(RUNNING),))) == ["PROTECTION_RESERVE"]
    memory = NodeView(rules=(RuleView("game", True, True, reserve=Reserve(mem_bytes=7 * GB, by="rule game")),))
    assert codes(memory, mem_gb=1.0) == []
    assert codes(memory, mem_gb=1.1) == ["PROTECTION_RESERVE"]
    # 4 GB of them are the program's already
    assert codes(memory, replace(ROOM, programs_hold_bytes=4 * GB), mem_gb=5.0) == []


def test_case_097_what_a_job_really_took_counts_and_not_what_it_declared() -> None:
    """It declared 4 GB and took 20: nothing is promised to it any more, and what is left is what is measured."""
    liar = Taken(RUNNING, 4.0 * GB, footprint_bytes=20 * GB)
    assert liar.owed_bytes == 0.0
    honest = Taken(RUNNING, 20.0 * GB, footprint_bytes=20 * GB)
    for left_gb, expected in ((1.5, ["MEMORY_SHORT"]), (16.0, [])):
        pools = (Pool(24 * GB, int(left_gb * GB)),)
        for taken in (liar, honest):
            assert codes(NodeView(), replace(ROOM, pools=pools, taken=(taken,)), mem_gb=1.0) == expected
    unread = Taken(RUNNING, 4.0 * GB, footprint_bytes=None)
    assert unread.owed_bytes == 4.0 * GB, "unknown is not nothing: all of it is still owed"


def test_a_ceiling_admits_up_to_it_and_a_phase_may_cap_too() -> None:
    taken = (Taken(RUNNING),)
    assert codes(capping(slots=2), replace(ROOM, taken=taken)) == []
    assert codes(capping(slots=1), replace(ROOM, taken=taken)) == ["PROTECTION_CAP"]
    assert codes(capping(cpu_cores=1.5), replace(ROOM, taken=taken)) == ["PROTECTION_CAP"]
    assert codes(capping(slots=0)) == ["PROTECTION_CAP"]
    assert codes(capping(gpu_jobs=0)) == []
    assert codes(capping(gpu_jobs=0), unit=replace(JOB, gpu=True)) == ["PROTECTION_CAP"]
    phase = PhaseView(0, True, None, cap=Caps(slots=0, by="phase 1 of rule game"))
    assert codes(NodeView(rules=(RuleView("game", False, False, phases=(phase,)),))) == ["PROTECTION_CAP"]


def test_a_rule_that_is_not_active_caps_and_reserves_nothing() -> None:
    view = replace(capping(slots=0).rules[0], active=False, holding=True, reserve=Reserve(cores=4.0))
    assert codes(NodeView(rules=(view,))) == []


def test_the_strictest_of_several_ceilings_binds_and_reserves_add_up() -> None:
    caps = strictest_caps([Caps(slots=3, by="a"), Caps(slots=1, threads=4, by="b"), Caps()])
    assert (caps.slots, caps.threads, caps.by) == (1, 4, "a, b")
    assert sum_of_reserves([Reserve(1.0, 2.0, "a"), Reserve(0.5, 0.0, "b")]) == Reserve(1.5, 2.0, "a, b")


def test_what_a_section_writes_is_what_counts() -> None:
    assert caps_of(models.CapFleet(slots=1, cpu_cores=2.5), "x") == Caps(1, 2.5, None, None, "x")
    assert reserve_of(models.Reserve(mem_gb=1.5), "x") == Reserve(0.0, 1.5e9, "x")
    assert not caps_of(None, "x")
    assert not reserve_of(None, "x")


def test_the_oldest_keep_their_place_under_a_ceiling_and_all_are_told_their_threads() -> None:
    units = [replace(RUNNING, attempt=f"a{i}", cores=2.0) for i in range(3)]
    wanted = desired(units, capping(cpu_cores=4.0, threads=1))
    assert [each.action for each in wanted] == ["run", "run", "pause"]
    assert {each.threads for each in wanted} == {1}
    assert wanted[2].reasons[0].code == "PROTECTION_CAP"
    # a place that something else keeps from running is free for the next
    pausing = replace(capping(slots=1), rules=(replace(capping(slots=1).rules[0], pause="gpu"),))
    first, second = desired([replace(RUNNING, device=True, gpu=True), replace(RUNNING, attempt="b")], pausing)
    assert (first.action, second.action) == ("pause", "run")


UNITS = st.builds(
    Unit,
    attempt=st.uuids().map(str),
    job=st.just(1),
    module=st.just("m"),
    stage=st.just("s"),
    device=st.booleans(),
    cores=st.sampled_from([0.5, 1.0, 3.0]),
    gpu=st.booleans(),
)
LEVELS = st.sampled_from([None, 0, 1, 2, 8])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(UNITS, max_size=6),
    st.builds(Caps, LEVELS, LEVELS.map(lambda n: None if n is None else float(n)), LEVELS, LEVELS),
)
def test_what_runs_never_exceeds_a_ceiling(units: list[Unit], caps: Caps) -> None:
    node = NodeView(gpu_jobs="always", rules=(RuleView("r", True, True, cap=caps),))
    runs = {each.attempt for each in desired(units, node) if each.action == "run"}
    running = [unit for unit in units if unit.attempt in runs]
    assert caps.slots is None or len(running) <= caps.slots
    assert caps.cpu_cores is None or sum(unit.cores for unit in running) <= caps.cpu_cores + 1e-6
    assert caps.gpu_jobs is None or sum(unit.gpu for unit in running) <= caps.gpu_jobs
