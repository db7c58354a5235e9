"""The governor's invariants, over any sequence of readings."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.codes import CODES
from policies.governor import INITIAL, STATES, GovernorState, Holding, Inputs, Outputs, StateName, step
from policies.governor.causes import CAUSES
from policies.governor.table import diagram, markdown
from policies.governor.transitions import TRANSITIONS, Transition, rows_from

OFF_RATE = 10.0
# Few in the unit tests' seconds; ``COTENANT_EXAMPLES=2000`` for a night.
EXAMPLES = int(os.environ.get("COTENANT_EXAMPLES", "20"))
# Rates cluster where the decisions lie: dead, collapsed, around twice the target, the target, half of it, above.
# Most are good, or no sequence would ever keep a budget running long enough to be decided on.
RATES = st.one_of(
    st.just(OFF_RATE),
    st.just(OFF_RATE),
    st.just(OFF_RATE),
    st.sampled_from([None, 0.0, 4.0, 4.99, 8.9, 9.0, 9.2, 9.5, 9.6, 9.75, 9.8, 12.0]),
    st.floats(0.0, 15.0),
)
DUTIES = st.one_of(st.just(0.35), st.just(0.2), st.sampled_from([None, 0.02, 0.1, 0.35, 1.0]), st.floats(0.0, 1.0))


@st.composite
def holdings(draw: st.DrawFn, name: str = "trainer") -> Holding:
    return Holding(
        rule=name,
        certified_duty=draw(DUTIES),
        readable=draw(st.sampled_from([True, True, True, False])),
        short_rate=draw(RATES),
        minute_rate=draw(RATES),
        baseline_rate=draw(RATES),
        median_step_s=draw(st.sampled_from([0.1] * 8 + [None, 20.0])),
        max_slowdown=draw(st.sampled_from([0.05, 0.02, 0.6])),
        certified_off_rate=draw(st.sampled_from([OFF_RATE] * 5 + [None])),
    )


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    names = draw(st.sampled_from([("trainer",)] * 5 + [(), ("trainer", "renderer")]))
    return Inputs(
        holding=tuple(draw(holdings(name)) for name in names),
        units=draw(st.sampled_from([(), ("a",), ("a", "b", "c")])),
        memory_hard=draw(st.sampled_from([False] * 9 + [True])),
        gpu_jobs=draw(st.sampled_from(["certified"] * 17 + ["always", "never", "when_no_gpu_protected"])),
        run_measures=draw(st.sampled_from([False] * 14 + [True])),
        run_duty=draw(st.sampled_from([None, 0.0, 0.8])),
    )


# A stretch: the same readings for so many ticks, so many seconds apart.
STRETCHES = st.lists(
    st.tuples(inputs(), st.sampled_from([1, 1, 5, 30, 30]), st.sampled_from([2.0] * 7 + [3.5, 0.5, 90.0])),
    min_size=1,
    max_size=8,
)
GOOD = Inputs(
    holding=(Holding("trainer", 0.35, True, OFF_RATE, OFF_RATE, OFF_RATE, 0.1, certified_off_rate=OFF_RATE),),
    units=("a", "b"),
)


def _started() -> tuple[GovernorState, float]:
    """A budget of 0.1 under a ceiling of 0.35, just started: growth, halving and clamps are all in reach."""
    state, now_s = replace(INITIAL, resume=0.1), 100.0
    while state.name != "running":
        now_s += 2.0
        state, _ = step(state, GOOD, now_s)
    return state, now_s


RUNNING = _started()


def trace(
    stretches: list[tuple[Inputs, int, float]],
) -> list[tuple[GovernorState, Inputs, float, GovernorState, Outputs]]:
    """Every tick as (state before, inputs, now, state after, outputs), from a budget that runs."""
    state, now_s, seen = *RUNNING, []
    for given_inputs, ticks, every_s in stretches:
        for _ in range(ticks):
            now_s += every_s
            after, out = step(state, given_inputs, now_s)
            seen.append((state, given_inputs, now_s, after, out))
            state = after
    return seen


def all_rows(name: StateName) -> tuple[Transition, ...]:
    return rows_from(name) + rows_from(name, routine=True)


def ceiling(given_inputs: Inputs) -> float | None:
    duties = [rule.certified_duty for rule in given_inputs.holding]
    if given_inputs.gpu_jobs != "certified" or not duties or None in duties:
        return None
    return min(duty for duty in duties if duty is not None)


@settings(max_examples=EXAMPLES, deadline=None)
@given(STRETCHES)
def test_the_budget_is_never_above_the_ceiling(stretches: list[tuple[Inputs, int, float]]) -> None:
    for _, given_inputs, _, after, out in trace(stretches):
        if given_inputs.run_measures:
            assert out.budget == given_inputs.run_duty
        elif given_inputs.gpu_jobs == "always" or (not given_inputs.holding and given_inputs.gpu_jobs != "never"):
            assert out.budget is None
        else:
            assert out.budget is not None
            assert 0.0 <= out.budget <= (ceiling(given_inputs) or 0.0)
            assert out.budget == 0.0 or out.budget >= 0.025
        assert after.name in STATES


@settings(max_examples=EXAMPLES, deadline=None)
@given(STRETCHES)
def test_the_shares_are_equal_and_sum_to_the_budget(stretches: list[tuple[Inputs, int, float]]) -> None:
    for _, given_inputs, _, _, out in trace(stretches):
        if out.decides != "governor" or not given_inputs.units:
            assert out.shares == {}
            continue
        assert set(out.shares) == set(given_inputs.units)
        assert len(set(out.shares.values())) == 1
        assert math.fsum(out.shares.values()) == pytest.approx(out.budget, abs=1e-12)


@settings(max_examples=EXAMPLES, deadline=None)
@given(STRETCHES)
def test_a_take_back_cause_takes_it_to_zero_on_its_tick(stretches: list[tuple[Inputs, int, float]]) -> None:
    for before, given_inputs, _, _, out in trace(stretches):
        if before.name != "running" or given_inputs.run_measures or out.budget is None:
            continue
        for rule in given_inputs.holding:
            baseline = before.baseline_of(rule.rule)
            blind = not rule.readable or rule.short_rate is None
            collapsed = not blind and baseline is not None and rule.short_rate < 0.5 * baseline.rate  # type: ignore[operator]
            if blind or collapsed or given_inputs.memory_hard:
                assert out.budget == 0.0
            elif baseline is not None and rule.short_rate is not None:
                harm = 1.0 - rule.short_rate / baseline.rate
                if harm > 2.0 * rule.max_slowdown + 1e-6:
                    assert out.budget == 0.0


@settings(max_examples=EXAMPLES, deadline=None)
@given(STRETCHES)
def test_no_growth_within_a_minute_of_any_harm(stretches: list[tuple[Inputs, int, float]]) -> None:
    harmful_s = -math.inf
    for before, given_inputs, now_s, after, out in trace(stretches):
        grew = before.name == after.name == "running" and (out.budget or 0.0) > (before.budget or 0.0)
        for rule in given_inputs.holding:
            baseline = before.baseline_of(rule.rule)
            known = before.name == "running" and baseline is not None and rule.short_rate is not None
            if known and 1.0 - rule.short_rate / baseline.rate >= 0.5 * rule.max_slowdown:  # type: ignore[operator, union-attr]
                harmful_s = now_s
        if any(entry.code in ("GPU_DUTY_HALVE", "GPU_DUTY_TAKE_BACK") for entry in out.entries):
            harmful_s = now_s
        if grew:
            assert now_s - harmful_s >= 60.0
            assert (out.budget or 0.0) - (before.budget or 0.0) <= 0.05 + 1e-9


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 29), st.floats(9.0, 9.74))
def test_one_harmful_tick_anywhere_in_a_clean_minute_keeps_it_from_growing(at_tick: int, rate: float) -> None:
    state, now_s = RUNNING
    harmful = replace(GOOD, holding=(replace(GOOD.holding[0], short_rate=rate),))
    for tick in range(30):
        now_s += 2.0
        state, out = step(state, harmful if tick == at_tick else GOOD, now_s)
        assert out.budget == 0.1


@settings(max_examples=EXAMPLES, deadline=None)
@given(STRETCHES)
def test_no_budget_within_five_minutes_of_memory_or_harm(stretches: list[tuple[Inputs, int, float]]) -> None:
    taken_s = -math.inf
    for _, given_inputs, now_s, _, out in trace(stretches):
        cause = next((entry.data["cause"] for entry in out.entries if entry.code == "GPU_DUTY_TAKE_BACK"), "source")
        if given_inputs.memory_hard or cause != "source":
            taken_s = now_s
        if out.decides == "governor" and now_s - taken_s < 300.0:
            assert out.budget == 0.0


@settings(max_examples=EXAMPLES, deadline=None)
@given(STRETCHES)
def test_every_change_of_state_is_a_row_of_the_table_and_every_code_is_known(
    stretches: list[tuple[Inputs, int, float]],
) -> None:
    for before, _, _, after, out in trace(stretches):
        if before.name != after.name:
            assert after.name in {row.target for row in all_rows(before.name)}
        assert {entry.code for entry in out.entries} <= set(CODES)


def _worse(draw: st.DrawFn, rule: Holding) -> Holding:
    """A reading that is worse, stale or missing in some of its parts, and better in none."""

    def lower(rate: float | None) -> float | None:
        return draw(st.one_of(st.just(rate), st.none(), st.floats(0.0, 1.0).map(lambda part: (rate or 0.0) * part)))

    duty = rule.certified_duty
    return replace(
        rule,
        readable=rule.readable and draw(st.sampled_from([True, True, False])),
        short_rate=None if rule.short_rate is None else lower(rule.short_rate),
        minute_rate=None if rule.minute_rate is None else lower(rule.minute_rate),
        median_step_s=draw(st.sampled_from([rule.median_step_s, None])),
        certified_off_rate=draw(st.sampled_from([rule.certified_off_rate, None])),
        certified_duty=None if duty is None else draw(st.one_of(st.just(duty), st.none(), st.floats(0.0, duty))),
    )


@st.composite
def better_and_worse(draw: st.DrawFn) -> tuple[Inputs, Inputs]:
    better = draw(
        inputs().filter(lambda given: given.holding and not given.run_measures and given.gpu_jobs == "certified")
    )
    more = (draw(holdings("game")),) if draw(st.sampled_from([False, False, True])) else ()
    worse = replace(
        better,
        holding=(*(_worse(draw, rule) for rule in better.holding), *more),
        memory_hard=better.memory_hard or draw(st.booleans()),
    )
    return better, worse


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(STRETCHES, better_and_worse())
def test_worse_stale_or_missing_signals_never_give_a_larger_budget(
    stretches: list[tuple[Inputs, int, float]], pair: tuple[Inputs, Inputs]
) -> None:
    """From every state of the trace, and with the minute just about to be decided. One rule more is worse, too."""
    better, worse = pair
    for _, _, now_s, state, _ in trace(stretches)[::11]:
        watched = replace(state, ticks=30, harm_s=-math.inf)
        for before, at_s in ((state, now_s + 2.0), (watched, state.stretch_s + 60.0)):
            if not now_s <= at_s < math.inf:
                continue
            with_better, with_worse = step(before, better, at_s)[1].budget, step(before, worse, at_s)[1].budget
            assert with_better is not None
            assert with_worse is not None
            assert with_worse <= with_better


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(1, 60), st.integers(0, 29))
def test_fewer_ticks_never_give_a_larger_budget(ticks: int, missed: int) -> None:
    """The same clean minutes with ticks missing: never more than with all of them."""
    for start in (0.1, 0.2, 0.35):
        state = RUNNING[0]
        full = late = replace(state, budget=start)
        now_s = state.last_tick_s
        for index in range(ticks):
            now_s += 2.0
            full, out = step(full, GOOD, now_s)
            if index % 30 >= missed:
                late, late_out = step(late, GOOD, now_s)
                assert (late_out.budget or 0.0) <= (out.budget or 0.0)


def test_every_state_is_reachable_and_none_is_a_dead_end() -> None:
    reached: set[StateName] = {"free"}
    edge: set[StateName] = {"free"}
    while edge:
        edge = {row.target for name in edge for row in all_rows(name)} - reached
        reached |= edge
    assert reached == set(STATES)
    for name in STATES:
        assert any(row.target != name for row in all_rows(name))
    for row in TRANSITIONS:
        assert row.cause in CAUSES
        assert set(row.codes) <= set(CODES)


def test_the_trace_really_visits_every_state() -> None:
    """The sequences of the properties above must be able to fail: one of them goes everywhere."""
    rule = GOOD.holding[0]

    def with_rule(**change: object) -> Inputs:
        return replace(GOOD, holding=(replace(rule, **change),))  # type: ignore[arg-type]

    walk = [
        (with_rule(readable=False), 2, 2.0),
        (GOOD, 40, 2.0),
        (with_rule(short_rate=0.0), 1, 2.0),
        (replace(GOOD, run_measures=True), 1, 2.0),
        (with_rule(certified_duty=None), 1, 2.0),
        (Inputs(), 1, 2.0),
    ]
    assert {before.name for before, *_ in trace([*walk, (GOOD, 1, 2.0)])} == set(STATES)


def test_the_documentation_is_made_from_the_rows_that_run() -> None:
    text = markdown()
    for name in STATES:
        assert f"`{name}`" in text
    for row in TRANSITIONS:
        assert CAUSES[row.cause].words in text
    assert diagram().count("-->") == 1 + sum(row.source != "any" for row in TRANSITIONS)
