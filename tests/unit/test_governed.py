"""What governor and compliance check mean for each unit: coverage, shares, refusals, and what a restart keeps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission import admission
from policies.compliance import CLEAR, ComplianceState, Record, Verdict
from policies.governed import Governed, InForce, Work, bounding, where_they_hold
from policies.governor import INITIAL, Baseline
from policies.kept import compliance_from, compliance_kept, governor_from, governor_kept
from policies.units import desired, duties, reasons
from policies.views import NodeView, RuleView, RunView, Unit
from policies.work import WorkSelector
from tests.unit.certificates import DIGEST, GPU, MODULE, certificate, record

TRAINER = RuleView(
    "trainer", active=True, holding=True, uses_device=True, protects_progress=True, devices=frozenset({GPU})
)
HALF = InForce(certificate(record(), duty=0.5), 10.0)
HERE = frozenset({GPU})
LLM = Unit("a1", 1, MODULE, "batch", device=True, digest=DIGEST, devices=HERE)
RUNNING = Governed("mac-01", "running", "governor", 0.3, (HALF,))
NODE = NodeView(gpu_jobs="certified", rules=(TRAINER,), governed=RUNNING)


def other_module(duty: float, rule: str = "trainer") -> InForce:
    work = certificate(record()).work[0].model_copy(update={"module": "dev.example.sim", "short": "sim"})
    made = certificate(record(run="r2"), duty=duty).model_copy(update={"rule": rule, "work": (work,)})
    return InForce(made, 10.0)


def test_equal_shares_of_the_budget_for_what_a_certificate_covers() -> None:
    second = replace(LLM, attempt="a2")
    assert duties([LLM, second], NODE) == {"a1": 0.15, "a2": 0.15}
    assert [each.action for each in desired([LLM, second], NODE)] == ["run", "run"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"digest": "c" * 64}, "GPU_NOT_CERTIFIED"),
        ({"digest": None}, "GPU_NOT_CERTIFIED"),
        ({"stage": "grid"}, "GPU_NOT_CERTIFIED"),
        ({"cooperative": False}, "PROTECTION_PAUSE"),
    ],
    ids=["another bundle", "bundle unknown", "another stage", "cannot throttle"],
)
def test_what_no_certificate_covers_waits_and_takes_no_share(changes: dict[str, object], code: str) -> None:
    unit = replace(LLM, attempt="a2", **changes)  # type: ignore[arg-type]
    (reason,) = reasons(unit, NODE)
    assert reason.code == code
    assert duties([LLM, unit], NODE) == {"a1": 0.3}


@pytest.mark.parametrize(
    ("unit_on", "program_on", "admitted"),
    [
        ({GPU}, {GPU}, True),
        ({GPU}, {GPU, "GPU-2"}, True),
        ({"GPU-2"}, {GPU, "GPU-2"}, False),
        ({"GPU-2"}, {"GPU-2"}, False),
        (None, {GPU}, True),
        (None, {GPU, "GPU-2"}, False),
        ({GPU}, None, True),
        (None, None, False),
    ],
)
def test_work_is_certified_only_on_the_devices_where_it_was_measured_beside_the_program(
    unit_on: set[str] | None, program_on: set[str] | None, admitted: bool
) -> None:
    unit = replace(LLM, devices=None if unit_on is None else frozenset(unit_on))
    rule = replace(TRAINER, devices=None if program_on is None else frozenset(program_on))
    node = replace(NODE, rules=(rule,))
    found = reasons(unit, node)
    assert bool(duties([unit], node)) is admitted
    if admitted:
        assert found == ()
    else:
        assert [(each.code, "ab sweep mac-01 --rule trainer" in each.remedy) for each in found] == [
            ("GPU_NOT_CERTIFIED", True)
        ]
        assert "it was measured beside the program on GPU-1" in found[0].why


def test_with_the_cpu_as_duty_device_the_program_must_have_been_seen_on_it() -> None:
    node = replace(NODE, duty_device="cpu", rules=(replace(TRAINER, devices=None),))
    unit = replace(LLM, devices=None)
    assert [each.code for each in reasons(unit, node)] == ["GPU_NOT_CERTIFIED"]
    on_cpu = InForce(HALF.certificate.model_copy(update={"devices": ("cpu",)}), 10.0)
    assert reasons(unit, replace(node, governed=replace(RUNNING, in_force=(on_cpu,)))) == ()


def test_a_certificate_of_another_device_is_none_for_the_governor() -> None:
    assert where_they_hold((HALF,), {"trainer": frozenset({GPU, "GPU-2"})}) == ((HALF,), {})
    assert where_they_hold((HALF,), {"trainer": None}) == ((HALF,), {}), "nothing was read yet"
    kept, lapsed = where_they_hold((HALF,), {"trainer": frozenset({"GPU-2"})})
    assert kept == ()
    assert lapsed == {"trainer": "it was measured beside the program on GPU-1, and they meet on GPU-2 now"}


def test_the_remedy_is_the_sweep_and_names_node_and_rule() -> None:
    none = replace(NODE, governed=Governed("mac-01", "closed", lapsed={"trainer": "its certificate is expired: x"}))
    (reason,) = reasons(LLM, none)
    assert (reason.code, reason.remedy) == (
        "GPU_NOT_CERTIFIED",
        "cotenant protection ab sweep mac-01 --rule trainer",
    )
    assert "expired" in reason.why


def test_before_the_first_judgement_nothing_is_certified() -> None:
    (reason,) = reasons(LLM, replace(NODE, governed=None))
    assert reason.code == "GPU_NOT_CERTIFIED"
    assert duties([LLM], replace(NODE, governed=None)) == {}


def test_every_holding_rule_must_cover_the_work_and_the_least_duty_bounds_it() -> None:
    renderer = replace(TRAINER, id="renderer")
    node = replace(NODE, rules=(TRAINER, renderer))
    assert [reason.code for reason in reasons(LLM, node)] == ["GPU_NOT_CERTIFIED"]
    assert duties([LLM], node) == {}, "what may not run takes no share from others"
    lower = InForce(certificate(record(), duty=0.2).model_copy(update={"rule": "renderer"}), 10.0)
    node = replace(node, governed=replace(RUNNING, in_force=(HALF, lower)))
    assert reasons(LLM, node) == ()
    assert duties([LLM], node) == {"a1": 0.2}, "the budget is 0.3, beside the renderer 0.2 is certified"


def test_a_newcomer_certified_for_less_lowers_all_shares_at_once() -> None:
    sim = Unit("b1", 2, "dev.example.sim", "batch", device=True, digest=DIGEST, devices=HERE)
    node = replace(NODE, governed=replace(RUNNING, in_force=(HALF, other_module(0.1))))
    assert duties([LLM], node) == {"a1": 0.3}
    assert duties([LLM, sim], node) == {"a1": 0.05, "b1": 0.05}


def test_the_ceiling_is_the_least_of_the_work_that_is_present() -> None:
    low = other_module(0.1)
    llm, sim = Work(MODULE, "batch", DIGEST, beside=HERE), Work("dev.example.sim", "batch", DIGEST, beside=HERE)
    assert bounding((HALF, low), "trainer", [llm]) is HALF
    assert bounding((HALF, low), "trainer", [llm, sim]) is low
    assert bounding((HALF, low), "trainer", []) is HALF
    assert bounding((HALF,), "renderer", [llm]) is None


def test_verdicts_of_the_compliance_check_bind() -> None:
    held = {"a1": Verdict("held", "over its duty in 3 samples", 0.3, 0.6, 1.0)}
    unread = {"a1": Verdict("held", "its device time cannot be read: x", 0.3, None)}
    stopped = {"a1": Verdict("stopped", "over its duty 3 times within an hour", 0.3, 0.9)}
    for verdicts, code, action in (
        (held, "GPU_DUTY_EXCEEDED", "pause"),
        (unread, "GPU_DUTY_UNVERIFIED", "pause"),
        (stopped, "GPU_DUTY_EXCEEDED", "evict"),
    ):
        node = replace(NODE, governed=replace(RUNNING, verdicts=verdicts))
        (found,) = desired([LLM], node)
        assert (found.action, found.reasons[0].code) == (action, code)
    node = replace(NODE, governed=replace(RUNNING, verdicts=held))
    assert duties([LLM, replace(LLM, attempt="a2")], node)["a2"] == 0.15, "a held unit keeps its share"
    node = replace(NODE, governed=replace(RUNNING, verdicts=stopped))
    assert duties([LLM, replace(LLM, attempt="a2")], node) == {"a2": 0.3}


def test_jobs_of_a_module_that_is_not_trusted_wait() -> None:
    node = replace(NODE, governed=replace(RUNNING, distrusted=(MODULE,)))
    assert [reason.code for reason in admission(replace(LLM, attempt=""), node)] == ["GPU_DUTY_EXCEEDED"]
    assert duties([LLM], node) == {}


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("baseline", "GPU_DUTY_BASELINE"),
        ("taken_back", "GPU_DUTY_TAKE_BACK"),
        ("unreadable", "GPU_DUTY_TAKE_BACK"),
        ("running", "GPU_DUTY_HALVE"),
    ],
)
def test_at_a_budget_of_0_what_runs_gets_duty_0_and_no_job_starts(state: str, code: str) -> None:
    node = replace(NODE, governed=replace(RUNNING, state=state, budget=0.0))  # type: ignore[arg-type]
    (found,) = desired([LLM], node)
    assert (found.action, found.duty) == ("run", 0.0), "duty 0 is no pause: the ten-minute limit does not end it"
    assert [reason.code for reason in admission(replace(LLM, attempt=""), node)] == [code]


def test_nothing_is_throttled_where_no_rule_holds() -> None:
    free = replace(NODE, rules=(), governed=Governed("n", "free", "nobody", None))
    (found,) = desired([LLM], free)
    assert (found.action, found.duty) == ("run", None)


def test_right_after_a_run_there_is_no_budget_until_the_governor_has_spoken() -> None:
    node = replace(NODE, governed=replace(RUNNING, state="stood_down", decides="run", budget=0.5))
    assert duties([LLM], node) == {"a1": 0.0}
    assert admission(replace(LLM, attempt=""), node)


def test_a_run_beside_another_certified_rule_may_ask_for_no_more_than_its_certificate() -> None:
    renderer = replace(TRAINER, id="renderer")
    other = InForce(certificate(record(), duty=0.2).model_copy(update={"rule": "renderer"}), 10.0)
    view = replace(NODE, rules=(TRAINER, renderer), governed=replace(RUNNING, in_force=(other,)))
    run = RunView("r1", "trainer", WorkSelector("gpu"), "grant", duty=0.2)
    assert reasons(LLM, replace(view, run=run)) == ()
    for duty in (0.3, None):
        (reason,) = reasons(LLM, replace(view, run=replace(run, duty=duty)))
        assert reason.code == "GPU_NOT_CERTIFIED"


def test_a_model_that_was_not_measured_is_not_covered() -> None:
    work = certificate(record()).work[0].model_copy(update={"model": "a.gguf"})
    named = InForce(certificate(record()).model_copy(update={"work": (work,)}), 10.0)
    node = replace(NODE, governed=replace(RUNNING, in_force=(named,)))
    assert reasons(replace(LLM, model="a.gguf"), node) == ()
    for model in ("b.gguf", None):
        assert [each.code for each in reasons(replace(LLM, model=model), node)] == ["GPU_NOT_CERTIFIED"]


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0.0, 1.0),
    st.floats(0.01, 1.0),
    st.lists(st.sampled_from(["covered", "uncovered", "stiff", "stopped", "cpu"]), max_size=6),
)
def test_the_shares_never_sum_to_more_than_budget_or_certificate(budget: float, duty: float, kinds: list[str]) -> None:
    certified = InForce(HALF.certificate.model_copy(update={"certified_duty": duty}), 10.0)
    units = [
        replace(
            LLM,
            attempt=str(number),
            digest=DIGEST if kind != "uncovered" else None,
            cooperative=kind != "stiff",
            device=kind != "cpu",
        )
        for number, kind in enumerate(kinds)
    ]
    stopped = {str(n): Verdict("stopped", "", 0.1, 0.9) for n, kind in enumerate(kinds) if kind == "stopped"}
    governed = Governed("n", "running", "governor", budget, (certified,), {}, stopped)
    shares = duties(units, replace(NODE, governed=governed))
    assert set(shares) == {str(number) for number, kind in enumerate(kinds) if kind == "covered"}
    assert sum(shares.values()) <= min(budget, duty) + 1e-9


def test_a_restart_keeps_levels_baselines_and_the_bar_through_json() -> None:
    state = replace(
        INITIAL, name="running", budget=0.2, barred_until_s=700.0, harm_s=5.0,
        baselines=(Baseline("trainer", 9.9, 9.8, 300.0, low=False),),
    )  # fmt: skip
    kept = json.loads(json.dumps(governor_kept(state), allow_nan=False))
    assert governor_from(kept) == replace(state, since_s=INITIAL.since_s)
    later = replace(state, ticks=7, last_tick_s=900.0, stretch_s=880.0)
    assert governor_kept(later) == governor_kept(state), "a tick on which nothing happened is not written"
    for bad in ({}, {**kept, "name": "rich"}, {**kept, "budget": 7}, {**kept, "budget": 10**400}):
        with pytest.raises((KeyError, ValueError, OverflowError)):
            governor_from(bad)


def test_a_restart_does_not_make_an_overrunner_trusted_again() -> None:
    state = ComplianceState({"a1": Record(0.1, 50.0, 2, (10.0, 40.0)), "a2": Record(0.1, 50.0)}, {MODULE: 3700.0})
    kept = json.loads(json.dumps(compliance_kept(state), allow_nan=False))
    found = compliance_from(kept, 60.0)
    assert dict(found.distrusted) == {MODULE: 3700.0}
    assert found.records == {"a1": Record(0.1, 60.0, 0, (10.0, 40.0))}
    over = Record(0.1, 50.0, times=(10.0, 30.0, 40.0), stopped=True)
    held = Record(0.1, 50.0, times=(40.0,), held_until_s=100.0, why="over its duty")
    kept = json.loads(json.dumps(compliance_kept(ComplianceState({"a1": over, "a2": held})), allow_nan=False))
    assert compliance_from(kept, 50.0).records == {"a1": over, "a2": held}
    assert compliance_from(json.loads(json.dumps(compliance_kept(CLEAR))), 0.0).records == {}
