"""When builds and doctors of modules wait: with all other work of the node, and not for lack of a certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.build_holds import build_holds
from policies.views import NodeView, PhaseView, RuleView, RunView
from policies.work import WorkSelector

ACTIVE = RuleView("x", active=True, holding=True, uses_device=True)
RUN = RunView("run-1", "x", WorkSelector("llmserve"), "hold")


def codes(**node: Any) -> list[str]:
    return [each.code for each in build_holds(NodeView(**node), gpu=True)]


@pytest.mark.parametrize(
    ("node", "code"),
    [
        ({"pause": True}, "PROTECTION_PAUSE"),
        ({"run": RUN}, "RUN_HOLD"),
        ({"run": replace(RUN, part="grant")}, "RUN_HOLD"),
        ({"admits": False, "admits_code": "MEMORY_HARD"}, "MEMORY_HARD"),
        ({"mode": "strict_yield", "rules": (ACTIVE,)}, "PROTECTION_PAUSE"),
        ({"rules": (replace(ACTIVE, evict="all"),)}, "PROTECTION_EVICT"),
        ({"rules": (replace(ACTIVE, phases=(PhaseView(0, True, "io"),)),)}, "PROTECTION_PHASE_ON"),
        ({"rules": (replace(ACTIVE, phases=(PhaseView(0, False, "cpu", soon=True),)),)}, "PROTECTION_PHASE_SOON"),
        (
            {"rules": (replace(ACTIVE, protects_progress=True, reaction="paused", reaction_code="PROTECTION_HARM"),)},
            "PROTECTION_HARM",
        ),
        (
            {"rules": (replace(ACTIVE, protects_progress=True, reaction="paused", measures=True),)},
            "PROTECTION_BASELINE",
        ),
    ],
)
def test_what_holds_all_work_holds_them(node: dict[str, Any], code: str) -> None:
    assert code in codes(**node)


@pytest.mark.parametrize("scope", ["all", "cpu", "gpu", "io"])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_pause_of_any_scope_is_one_for_them_and_said_once(scope: Any, device: Any) -> None:
    rule = replace(ACTIVE, pause=scope)
    assert codes(duty_device=device, rules=(rule,)) == ["PROTECTION_PAUSE"]
    assert codes(duty_device=device, rules=(replace(rule, active=False),)) == ["PROTECTION_PAUSE"], "in the cooldown"


def test_a_pause_of_gpu_work_is_none_for_a_module_that_uses_no_gpu_but_where_the_cpu_is_the_device() -> None:
    rules = (replace(ACTIVE, pause="gpu"),)
    assert build_holds(NodeView(rules=rules), gpu=False) == ()
    for scope in ("all", "cpu", "io"):
        assert build_holds(NodeView(rules=(replace(ACTIVE, pause=scope),)), gpu=False)
    assert build_holds(NodeView(duty_device="cpu", rules=rules), gpu=False)


@pytest.mark.parametrize("work", ["all", "cpu", "gpu", "llmserve"])
@pytest.mark.parametrize("part", ["hold", "grant"])
def test_a_run_holds_them_in_both_arms_whatever_work_it_tests(work: str, part: Any) -> None:
    run = RunView("run-1", "x", WorkSelector(work), part)
    assert codes(run=run, rules=(ACTIVE,)) == ["RUN_HOLD"]


def test_what_is_not_certified_yet_can_be_added_beside_the_program() -> None:
    rule = replace(ACTIVE, protects_progress=True, reaction="paused")
    for gpu_jobs in ("never", "when_no_gpu_protected", "certified"):
        assert codes(gpu_jobs=gpu_jobs, rules=(rule,)) == []
