"""What a run holds: other work must do the same in both arms, or harm of the work under test looks like none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.agent.enforcing import Enforcing
from policies.admission import admission
from policies.caps import Caps
from policies.run_holds import follows_the_arm
from policies.units import desired, is_lowered, reasons
from policies.views import Desired, NodeView, RuleView, RunView, Unit
from policies.work import WorkSelector

TESTED = Unit("a1", 1, "dev.cotenant.llmserve", "batch", device=True, gpu=True, devices=frozenset({"GPU-1"}))
SIM = Unit("a2", 2, "dev.example.sim", "run", device=False)
RULE = RuleView("trainer", active=True, holding=True, uses_device=True, protects_progress=True, reaction="free",
                devices=frozenset({"GPU-1"}))  # fmt: skip
RUN = RunView("r1", "trainer", WorkSelector("gpu"), "grant")
ON = NodeView(rules=(RULE,), run=RUN)
OFF = replace(ON, run=replace(RUN, part="hold"))
HARMED = replace(RULE, reaction="paused", reaction_code="PROTECTION_HARM", reaction_why="it is slow")


def what(units: list[Unit], node: NodeView) -> dict[str, str]:
    return {each.attempt: each.action for each in desired(units, node)}


@pytest.mark.parametrize("node", [ON, OFF], ids=["on", "off"])
def test_nothing_but_the_work_under_test_starts_while_a_run_measures(node: NodeView) -> None:
    """The cores that OFF leaves empty would go to others, which slow the program in OFF alone."""
    assert [why.code for why in admission(replace(SIM, attempt=""), node)] == ["RUN_HOLD"]
    assert admission(replace(SIM, attempt=""), replace(node, run=None)) == ()
    assert reasons(SIM, node) == (), "what ran before goes on, in both arms"


def test_the_work_under_test_starts_in_on() -> None:
    assert admission(replace(TESTED, attempt=""), ON) == ()


def test_work_that_harm_in_on_paused_stays_paused_in_off() -> None:
    harmed = replace(ON, rules=(HARMED,))
    assert what([TESTED, SIM], harmed) == {"a1": "run", "a2": "pause"}
    held, _ = follows_the_arm([TESTED, SIM], desired([TESTED, SIM], harmed), RUN)
    assert held == {"a2"}
    (wanted,) = desired([SIM], replace(OFF, run=replace(RUN, part="hold", stays_held=held)))
    assert (wanted.action, wanted.unlimited) == ("pause", True), "and the ten minutes of a pause do not end it"
    assert what([SIM], OFF) == {"a2": "run"}, "without that it would run in OFF alone"


def test_work_beyond_a_ceiling_that_the_work_under_test_fills_stays_held_in_off() -> None:
    capped = replace(ON, rules=(replace(RULE, cap=Caps(slots=1, by="rule trainer")),))
    assert what([TESTED, SIM], capped) == {"a1": "run", "a2": "pause"}
    held, _ = follows_the_arm([TESTED, SIM], desired([TESTED, SIM], capped), RUN)
    assert held == {"a2"}


def test_work_that_was_lowered_stays_lowered_until_the_run_ends() -> None:
    slow = replace(ON, rules=(replace(RULE, reaction="lowered"),))
    _, lowered = follows_the_arm([TESTED, SIM], desired([TESTED, SIM], slow), RUN)
    assert lowered == {"a2"}
    assert is_lowered(SIM, replace(OFF, run=replace(RUN, stays_lowered=lowered)))
    assert not is_lowered(SIM, OFF)


def test_a_phase_or_a_rule_of_the_owner_holds_no_longer_than_it_lasts() -> None:
    paused = replace(ON, rules=(replace(RULE, pause="cpu"),))
    assert follows_the_arm([SIM], desired([SIM], paused), RUN)[0] == frozenset()


def test_the_work_under_test_is_never_kept_by_it() -> None:
    harmed = [Desired("a1", "pause", reasons(replace(TESTED, device=False), replace(ON, rules=(HARMED,), run=None)))]
    assert harmed[0].reasons[0].code == "PROTECTION_HARM"
    assert follows_the_arm([TESTED], harmed, RUN)[0] == frozenset()


def test_the_agent_remembers_it_as_long_as_the_run_lasts() -> None:
    active: Any = SimpleNamespace(stays_held=frozenset(), stays_lowered=frozenset(), view=lambda: RUN)
    agent: Any = SimpleNamespace(runs=SimpleNamespace(active=active))
    enforcing = Enforcing(cast(Any, agent))
    for node in (replace(ON, rules=(HARMED,)), OFF):
        enforcing._keep_from_following_the_arm([TESTED, SIM], desired([TESTED, SIM], node))
    assert active.stays_held == {"a2"}
