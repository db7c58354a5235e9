"""What a unit of fleet work may do, and why: hold and grant, rules, phases, the duty device, admission."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.admission import admission
from policies.units import desired, duties, reasons
from policies.views import NodeView, PhaseView, RuleView, RunView, Unit
from policies.work import WorkSelector

LLM = Unit("a1", 1, "dev.cotenant.llmserve", "selftest", device=True)
CPU = Unit("a2", 2, "dev.example.sim", "run", device=False)
TRAINER = RuleView("trainer", active=True, holding=True, uses_device=True, protects_progress=True)


def grant(**changes: object) -> RunView:
    return replace(RunView("r1", "trainer", WorkSelector("llmserve"), "grant"), **changes)  # type: ignore[arg-type]


def codes(unit: Unit, node: NodeView) -> list[str]:
    return [reason.code for reason in reasons(unit, node)]


def test_nothing_holds_work_on_a_node_without_rules() -> None:
    assert reasons(LLM, NodeView()) == ()
    assert reasons(CPU, NodeView()) == ()


@pytest.mark.parametrize("uses", [True, None])
def test_a_program_that_uses_the_device_or_may_holds_device_work_back(uses: bool | None) -> None:
    assert reasons(LLM, NodeView(rules=(replace(TRAINER, uses_device=uses),)))


def test_a_program_that_does_not_use_the_device_holds_no_device_work() -> None:
    assert reasons(LLM, NodeView(rules=(replace(TRAINER, uses_device=False),))) == ()


def test_the_grant_exempts_the_work_under_test_from_its_own_rule_only() -> None:
    node = NodeView(rules=(TRAINER,), run=grant())
    assert reasons(LLM, node) == ()
    other = replace(TRAINER, id="renderer")
    assert "renderer" in reasons(LLM, replace(node, rules=(TRAINER, other)))[0].why


@pytest.mark.parametrize(
    "node",
    [
        NodeView(rules=(TRAINER,), run=grant(), pause=True),
        NodeView(rules=(TRAINER,), run=grant(), gpu_jobs="never"),
        NodeView(rules=(replace(TRAINER, pause="gpu"),), run=grant()),
        NodeView(rules=(replace(TRAINER, pause="io"),), run=grant()),
        NodeView(rules=(replace(TRAINER, phases=(PhaseView(0, True, "gpu"),)),), run=grant()),
        NodeView(rules=(TRAINER,), run=grant(), mode="strict_yield"),
    ],
    ids=["owner", "never", "pause gpu", "pause io", "phase", "strict_yield"],
)
def test_the_grant_exempts_from_nothing_else(node: NodeView) -> None:
    assert reasons(LLM, node)


def test_off_holds_the_work_under_test_without_a_limit_and_evicts_it_when_asked() -> None:
    node = NodeView(rules=(TRAINER,), run=grant(part="hold"))
    (wanted,) = desired([LLM], node)
    assert (wanted.action, wanted.unlimited) == ("pause", True)
    (wanted,) = desired([LLM], replace(node, run=grant(part="hold", off="evicted")))
    assert wanted.action == "evict"


@pytest.mark.parametrize("part", ["hold", "grant"])
def test_other_device_work_is_held_in_both_arms(part: str) -> None:
    stranger = Unit("b1", 9, "dev.example.other", "train", device=True)
    assert codes(stranger, NodeView(gpu_jobs="always", run=grant(part=part))) == ["RUN_HOLD"]


def test_the_owners_pause_beside_a_run_counts_against_the_ten_minutes() -> None:
    (wanted,) = desired([LLM], NodeView(pause=True, run=grant(part="hold")))
    assert wanted.unlimited is False


def test_a_feed_runs_in_its_own_runs_on_windows_only() -> None:
    feeding = replace(LLM, feed_of="r1")
    assert desired([feeding], NodeView(run=grant(feed="llmserve/selftest")))[0].action == "run"
    assert desired([feeding], NodeView(run=grant(feed="llmserve/selftest", part="hold")))[0].action == "pause"
    assert desired([feeding], NodeView(run=None, gpu_jobs="always"))[0].action == "evict"
    assert desired([feeding], NodeView(run=grant(run="r2", feed="llmserve/selftest")))[0].action == "evict"


def test_with_a_feed_queued_work_of_the_same_name_is_not_the_work_under_test() -> None:
    node = NodeView(run=grant(feed="llmserve/selftest"), rules=(TRAINER,))
    assert "RUN_HOLD" in codes(LLM, node)


def test_null_and_self_runs_hold_all_device_work() -> None:
    node = NodeView(gpu_jobs="always", run=grant(part="hold", tests_work=False, work=WorkSelector("all")))
    assert codes(LLM, node) == ["RUN_HOLD"]


def test_the_duty_is_shared_equally_among_those_that_may_run() -> None:
    units = [replace(LLM, attempt=f"a{i}") for i in range(3)]
    node = NodeView(run=grant(duty=0.3), rules=(TRAINER,))
    assert duties(units, node) == pytest.approx({"a0": 0.1, "a1": 0.1, "a2": 0.1})
    assert sum(duties(units, node).values()) == pytest.approx(0.3)
    assert duties(units, replace(node, run=grant(duty=None))) == {}


def test_work_that_cannot_throttle_is_not_admitted_to_a_run_with_a_duty() -> None:
    dumb = replace(LLM, attempt="", cooperative=False)
    assert admission(dumb, NodeView(run=grant(duty=0.3)))
    assert admission(replace(dumb, cooperative=True), NodeView(run=grant(duty=0.3))) == ()


def test_nothing_is_admitted_while_the_node_admits_nothing() -> None:
    why = admission(CPU, NodeView(admits=False, admits_why="memory is short"))
    assert [reason.why for reason in why] == ["memory is short"]


def test_other_work_beside_a_program_that_was_not_judged_is_held_unless_fleet_first() -> None:
    assert codes(CPU, NodeView(rules=(TRAINER,))) == ["PROTECTION_BASELINE"]
    assert codes(CPU, NodeView(rules=(TRAINER,), mode="fleet_first")) == []


def test_harm_lowers_or_holds_other_work_and_leaves_device_work_to_the_device_rules() -> None:
    calm = replace(TRAINER, uses_device=False, reaction="free")
    node = NodeView(rules=(calm,))
    assert [codes(unit, node) for unit in (CPU, LLM)] == [[], []]
    assert not desired([CPU], node)[0].lowered
    lowered = replace(node, rules=(replace(calm, reaction="lowered"),))
    assert [(each.action, each.lowered) for each in desired([CPU, LLM], lowered)] == [("run", True), ("run", False)]
    held = replace(node, rules=(replace(calm, reaction="paused", reaction_code="PROTECTION_HARM"),))
    assert [codes(unit, held) for unit in (CPU, LLM)] == [["PROTECTION_HARM"], []]
    assert [codes(unit, replace(held, mode="fleet_first")) for unit in (CPU, LLM)] == [[], []]


def test_a_baseline_holds_all_fleet_work_but_what_no_rule_may_hold() -> None:
    node = NodeView(rules=(replace(TRAINER, uses_device=False, reaction="paused", measures=True),))
    assert [codes(unit, node) for unit in (CPU, LLM)] == [["PROTECTION_BASELINE"]] * 2
    assert codes(LLM, replace(node, gpu_jobs="always")) == []
    # a run decides by itself what runs
    assert codes(LLM, replace(node, run=grant())) == []


def test_the_grant_exempts_other_work_under_test_from_its_own_rules_reaction_only() -> None:
    slow = replace(TRAINER, reaction="paused", reaction_code="PROTECTION_HARM")
    node = NodeView(rules=(slow,), run=grant(work=WorkSelector("sim")))
    assert codes(CPU, node) == []
    assert not desired([CPU], node)[0].lowered
    both = replace(node, rules=(slow, replace(slow, id="renderer")))
    assert codes(CPU, both) == ["PROTECTION_HARM"]


def test_strict_yield_holds_all_work_through_the_cooldown() -> None:
    cooling = RuleView("game", active=False, holding=True)
    assert codes(CPU, NodeView(mode="strict_yield", rules=(cooling,))) == ["PROTECTION_PAUSE"]
    assert codes(CPU, NodeView(mode="moderate", rules=(cooling,))) == []


def test_phases_have_every_action() -> None:
    phase = PhaseView(0, True, None, evict="cpu", lower="gpu")
    node = NodeView(rules=(RuleView("game", False, False, phases=(phase,)),))
    assert [each.action for each in desired([CPU, LLM], node)] == ["evict", "run"]
    assert [each.lowered for each in desired([CPU, LLM], node)] == [False, True]
    off = replace(node, rules=(replace(node.rules[0], phases=(replace(phase, on=False),)),))
    assert [(each.action, each.lowered) for each in desired([CPU, LLM], off)] == [("run", False)] * 2
    both = desired([CPU], replace(node, pause=True))[0]
    assert {each.action for each in both.reasons} == {"pause", "evict"}
    assert both.action == "evict", "what another reason pauses is evicted all the same"


@pytest.mark.parametrize(
    ("text", "module", "stage", "device", "selected"),
    [
        ("all", "a.b", "s", False, True),
        ("gpu", "a.b", "s", True, True),
        ("gpu", "a.b", "s", False, False),
        ("cpu", "a.b", "s", False, True),
        ("cpu", "a.b", "s", True, False),
        ("b", "a.b", "s", True, True),
        ("a.b", "a.b", "s", True, True),
        ("b/s", "a.b", "s", True, True),
        ("b/t", "a.b", "s", True, False),
        ("c", "a.b", "s", True, False),
    ],
)
def test_naming_work(text: str, module: str, stage: str, device: bool, selected: bool) -> None:
    assert WorkSelector(text).selects(module, stage, device=device) is selected


RULES = st.builds(
    RuleView,
    id=st.sampled_from(["trainer", "renderer"]),
    active=st.booleans(),
    holding=st.booleans(),
    uses_device=st.sampled_from([True, False, None]),
    protects_progress=st.booleans(),
    pause=st.sampled_from([None, "all", "cpu", "gpu", "io"]),
    evict=st.sampled_from([None, "all", "gpu"]),
    phases=st.lists(
        st.builds(PhaseView, st.just(0), st.booleans(), st.sampled_from(["all", "cpu", "gpu", "io"])), max_size=2
    ).map(tuple),
)
NODES = st.builds(
    NodeView,
    mode=st.sampled_from(["fleet_first", "moderate", "strict_yield"]),
    pause=st.booleans(),
    gpu_jobs=st.sampled_from(["never", "when_no_gpu_protected", "certified", "always"]),
    duty_device=st.sampled_from(["gpu", "cpu"]),
    rules=st.lists(RULES, max_size=3).map(tuple),
    run=st.sampled_from([None, grant(), grant(part="hold"), grant(duty=0.4)]),
)
UNITS = st.builds(
    Unit,
    attempt=st.sampled_from(["a", "b"]),
    job=st.just(1),
    module=st.sampled_from(["dev.cotenant.llmserve", "dev.example.sim"]),
    stage=st.sampled_from(["selftest", "run"]),
    device=st.booleans(),
)


@given(UNITS, NODES)
def test_more_trouble_never_lets_work_loose(unit: Unit, node: NodeView) -> None:
    """A unit that is held stays held when a signal gets worse: a pause, an unreadable phase, an unknown device use."""
    if not reasons(unit, node):
        return
    worse = [replace(node, pause=True), replace(node, gpu_jobs="never")]
    if node.rules:
        first = node.rules[0]
        worse += [
            replace(node, rules=(replace(first, uses_device=None, holding=True, active=True), *node.rules[1:])),
            replace(node, rules=(replace(first, phases=(PhaseView(0, True, "all", readable=False),)), *node.rules[1:])),
        ]
    assert all(reasons(unit, view) for view in worse)


@given(st.lists(UNITS, max_size=3, unique_by=lambda unit: unit.attempt), NODES)
def test_shares_add_up_to_the_duty_and_only_running_units_have_one(units: list[Unit], node: NodeView) -> None:
    shares = duties(units, node)
    running = {wanted.attempt for wanted in desired(units, node) if wanted.action == "run"}
    assert set(shares) <= running
    if shares:
        assert node.run is not None
        assert sum(shares.values()) == pytest.approx(node.run.duty)


def test_what_cannot_hold_a_duty_is_held_in_a_run_that_asks_for_one() -> None:
    dumb = replace(LLM, cooperative=False)
    assert codes(dumb, NodeView(run=grant(duty=0.3))) == ["RUN_HOLD"]
    assert codes(dumb, NodeView(run=grant())) == []


def test_with_a_feed_the_queue_of_the_same_work_is_held_in_both_arms_though_it_uses_no_device() -> None:
    run = grant(work=WorkSelector("cpu"), feed="sim/run")
    assert "RUN_HOLD" in codes(CPU, NodeView(mode="fleet_first", run=run))
    assert "RUN_HOLD" in codes(CPU, NodeView(mode="fleet_first", run=replace(run, part="hold")))


def test_null_and_self_runs_hold_work_that_uses_no_device_too() -> None:
    run = grant(part="hold", tests_work=False, work=WorkSelector("all"))
    assert codes(CPU, NodeView(mode="fleet_first", run=run)) == ["RUN_HOLD"]


def test_a_limit_on_stall_binds_work_where_the_cpu_is_the_duty_device() -> None:
    """There all work is device work, and a rule with this limit alone holds no device work back: it must not mean nothing."""
    unit = replace(CPU, device=True)
    rule = RuleView("db", active=True, holding=True, uses_device=True, protects_stall=True, stall="paused")
    node = NodeView(duty_device="cpu", rules=(rule,))
    assert codes(unit, node) == ["PROTECTION_BASELINE"]
    assert reasons(unit, replace(node, rules=(replace(rule, stall=None),))), "not judged yet"
    (lowered,) = desired([unit], replace(node, rules=(replace(rule, stall="lowered"),)))
    assert (lowered.action, lowered.lowered) == ("run", True)
    assert reasons(unit, replace(node, rules=(replace(rule, stall="free"),))) == ()
    assert reasons(unit, replace(node, mode="fleet_first")) == ()
    assert reasons(unit, replace(node, gpu_jobs="always")) == ()
    assert reasons(LLM, replace(node, duty_device="gpu")) == (), "GPU work on a GPU's node is no other work"
    graded = replace(rule, protects_stall=False, protects_progress=True, uses_device=False, reaction="paused")
    assert reasons(unit, replace(node, rules=(graded,))) == (), "device work beside progress is the governor's"


def test_a_phases_limit_on_stall_binds_beside_progress_and_in_a_runs_on_windows() -> None:
    """A rule that protects progress, and whose phase adds a limit on ``cpu_stall``: the one does not stand for the other."""
    rule = replace(
        TRAINER, reaction="paused", protects_stall=True, stall="paused", stall_code="PROTECTION_HARM", uses_device=False
    )
    on_cpu = replace(LLM, gpu=False)
    node = NodeView(duty_device="cpu", rules=(rule,))
    assert codes(on_cpu, node) == ["PROTECTION_HARM"], "without a certificate's or a run's exemption in play"
    assert codes(on_cpu, replace(node, run=grant())) == ["PROTECTION_HARM"], (
        "exempt from the reaction to progress alone"
    )
    assert codes(on_cpu, replace(node, run=grant(), rules=(replace(rule, stall="free"),))) == []
    (lowered,) = desired([on_cpu], replace(node, run=grant(), rules=(replace(rule, stall="lowered"),)))
    assert (lowered.action, lowered.lowered) == ("run", True)
    off = replace(on_cpu, device=False, module="dev.example.sim")
    run = grant(work=WorkSelector("cpu"))
    assert codes(off, NodeView(rules=(rule,), run=run)) == ["PROTECTION_HARM"]
    assert codes(off, NodeView(rules=(replace(rule, stall="free"),), run=run)) == []
    both = NodeView(rules=(replace(rule, reaction_code="PROTECTION_BASELINE"),))
    assert codes(off, both) == ["PROTECTION_HARM", "PROTECTION_BASELINE"], "all that holds it is told"
    assert codes(LLM, replace(both, duty_device="gpu")) == [], "on a GPU's node it says nothing of GPU work"
