"""A run whose windows hold too few of the program's steps is refused before anything starts, where that is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.agent.plan import Planner
from policies.harness.spec import RunSpec
from policies.refusal import Refused

RULE = cast(Any, SimpleNamespace(protect=None))


def planner(step_s: float, steps: int = 9) -> Planner:
    """Of a program whose lines carry their own times, so that how often they arrive says nothing against a window."""
    track = SimpleNamespace(
        median_step_s=step_s,
        newest_steps_s=lambda count: [step_s] * min(count, steps),
        is_stamped=True,
        arrival_cadence_s=step_s,
        rate=lambda now_s, window_s: 1.0,
    )
    view = SimpleNamespace(readable=True, path="/events", track=track, kind="jsonl")
    timed = SimpleNamespace(looks_timed=None, gaps=9, words="too few gaps", cv=None, mean_s=None)
    agent = SimpleNamespace(progress=lambda rule: view, now_s=lambda: 0.0, node="n")
    return Planner(cast(Any, agent), cast(Any, SimpleNamespace(timed=lambda spec: timed)))


def test_a_window_of_fewer_than_five_steps_is_refused_with_one_that_would_work() -> None:
    spec = RunSpec(node="n", rule="r", window_s=60.0)
    with pytest.raises(Refused) as refused:
        planner(20.0)._source(spec, RULE)
    assert refused.value.code == "RUN_WINDOW_TOO_SHORT"
    assert "--window 120 would work" in refused.value.why
    planner(20.0)._source(spec.model_copy(update={"window_s": 120.0}), RULE)


def test_where_steps_are_not_known_or_no_certificate_is_at_stake_the_run_may_begin() -> None:
    planner(20.0, steps=2)._source(RunSpec(node="n", rule="r", window_s=60.0), RULE)
    planner(20.0)._source(RunSpec(node="n", rule="r", window_s=60.0, kind="null"), RULE)
