"""Error rates by simulation, small enough for every run of the tests. ``benchmarks.harness_power`` is the large one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks._noise_models import DEFAULT_MODELS, Model, drift, iid, simulate
from benchmarks.harness_power import fixed_t, judge, peeking_t
from policies.harness.honesty import judge_null

RUNS = 1500
MODELS = {model.name: model for model in DEFAULT_MODELS}


def most(runs: int, rate: float = 0.05) -> float:
    """Percent that a design with this error rate exceeds about once in a thousand times."""
    return 100.0 * (rate + 3.1 * math.sqrt(rate * (1.0 - rate) / runs))


def simulated(model: Model, ratio: float, runs: int = RUNS):
    return simulate(model, ratio, runs, 40, np.random.default_rng(20_000 + round(1000 * ratio)))


@pytest.mark.parametrize("name", ["iid sd 1 %", "AR(1) 0.9", "drift 20 %/h", "periodic 2 %, 24 min, sd 1 %"])
def test_false_certificates_stay_under_five_percent(name: str) -> None:
    o, d = simulated(MODELS[name], 0.98)
    assert judge(o, d).passed_pct <= most(RUNS)
    # the same bound is no formality: looking at plain t after every block breaks it on the same data
    assert peeking_t(d) > most(RUNS)


def test_a_slow_program_is_judged_by_fractional_events() -> None:
    o, d = simulated(MODELS["slow program, 20 s steps, jitter 5 %"], 0.98, 300)
    assert judge(o, d).passed_pct <= most(300)
    # interpolated counts: about 1.8 % where whole counts would give 4.5 %
    assert 0.012 < float(d.std()) < 0.025


def test_a_program_that_is_not_harmed_passes_in_two_hours() -> None:
    o, d = simulated(iid(0.01), 1.0, 400)
    outcome = judge(o, d)
    assert outcome.passed_pct >= 99.0
    assert outcome.hours(0.5) == pytest.approx(1.6)
    assert outcome.mean_h <= 1.75


def test_twice_the_margin_is_never_certified() -> None:
    o, d = simulated(iid(0.02), 0.96, 400)
    outcome = judge(o, d)
    assert outcome.passed_pct == 0.0
    assert outcome.pct("slowdown") >= 99.0


def test_case_111_identical_arms_give_false_verdicts_no_more_often_than_promised() -> None:
    """Identical code on both arms, 200 runs: nothing is called slower beyond the margin at ordinary noise."""
    o, d = simulated(iid(0.01), 1.0, 200)
    outcome = judge(o, d)
    assert outcome.verdicts["slowdown"] == 0
    # 99 % A/A intervals over a fixed 12 blocks: at most 1.4 % false alarms are promised
    pairs = [
        judge_null(
            [("on_first" if s > 0 else "off_first", float(np.exp(x)), 1.0) for s, x in zip(signs, run, strict=True)],
            0.02,
        )
        for signs, run in zip(o[:, :12], d[:, :12], strict=True)
    ]
    assert sum(not pair.holds_1 for pair in pairs) <= 200 * most(200, 0.014) / 100


def test_case_112_pure_drift_is_not_charged_to_the_work() -> None:
    """5 % in 10 minutes: with the coin R is 1 within the margin, with OFF always first the drift would be the result."""
    o, d = simulated(drift(-0.30), 1.0, 200)
    outcome = judge(o, d)
    assert outcome.verdicts["slowdown"] <= 2
    assert outcome.passed_pct >= 95.0
    always_off_first = np.abs(d) * -1.0
    assert judge(-np.ones_like(o), always_off_first).passed_pct == 0.0
    assert fixed_t(always_off_first) == 0.0
